package config

import (
	"fmt"
	"math"
	"strconv"
	"time"

	"go.yaml.in/yaml/v4"

	"github.com/margolite/margolite/policy"
)

func approval(into *policy.Approval) field {
	return choice((*string)(into), values{string(policy.ApproveNone), string(policy.ApproveUpdates), string(policy.ApproveAll)})
}

func order(into *policy.Order) field {
	return choice((*string)(into), values{string(policy.OrderNone), string(policy.OrderManifest)})
}

func rollback(into *policy.Rollback) field {
	return choice((*string)(into), values{string(policy.RollbackAuto), string(policy.RollbackManual), string(policy.RollbackOff)})
}

// hook is a program and how long it may take.
func hook(into *policy.Hook) field {
	command := list(&into.Command, 64, argument)
	return section(fields{
		"command": func(r *reader, key string, n *yaml.Node) {
			command(r, key, n)
			if err := policy.CheckCommand(into.Command); err != nil {
				r.mistake(n, key, "%v", err)
			}
		},
		"timeout": duration(&into.Timeout, time.Second, time.Hour),
	})
}

// imageKeys are the files of keys for some images.
func imageKeys(into *[]string) field {
	files := list(into, 16, path)
	return func(r *reader, key string, n *yaml.Node) {
		files(r, key, n)
		if n.ShortTag() == nullTag || n.Kind == yaml.SequenceNode && len(n.Content) == 0 {
			r.mistake(n, key, "expected at least one file of public keys")
		}
	}
}

// override is what is different for some deployments. What it does not say is
// not replaced, and an empty list of windows is said: changes may happen at any
// time.
func override(into *policy.Override) field {
	var own policy.Hook
	body := section(fields{
		"deployments": list(&into.Deployments, 256, deployment),
		"labels":      table(&into.Labels, word, func(value *string) field { return text(value, line) }),
		"approval":    approval(&into.Approval),
		"windows": func(r *reader, key string, n *yaml.Node) {
			windows(&into.Windows)(r, key, n)
			if n.Kind == yaml.SequenceNode && into.Windows == nil {
				into.Windows = policy.Windows{}
			}
		},
		"rollback": rollback(&into.Rollback),
		"hook": func(r *reader, key string, n *yaml.Node) {
			if n.Kind == yaml.MappingNode {
				own.Timeout, into.Hook = policy.HookTimeout, &own
			}
			hook(&own)(r, key, n)
		},
	})
	return func(r *reader, key string, n *yaml.Node) {
		before := len(r.mistakes)
		body(r, key, n)
		switch {
		case len(r.mistakes) > before:
		case len(into.Deployments) == 0 && len(into.Labels) == 0:
			r.mistake(n, key, "expected deployments or labels: which ones is this about?")
		case into.Approval == "" && into.Windows == nil && into.Rollback == "" && into.Hook == nil:
			r.mistake(n, key, "expected approval, windows, rollback or hook: what is different?")
		}
	}
}

// allow is what workloads may ask for.
func allow(into *policy.Allow) field {
	return section(fields{
		"privileged":     flag(&into.Privileged),
		"namespaces":     entries(&into.Namespaces, policy.CheckNamespace, flag),
		"mounts":         entries(&into.Mounts, policy.CheckMount, access),
		"devices":        entries(&into.Devices, policy.CheckDevice, flag),
		"capabilities":   entries(&into.Capabilities, policy.CheckCapability, flag),
		"unconfined":     entries(&into.Unconfined, policy.CheckUnconfined, flag),
		"ports":          ports(&into.Ports),
		"registries":     replaced(&into.Registries, 64, registry),
		"tags":           flag(&into.Tags),
		"unsigned":       flag(&into.Unsigned),
		"unsignedImages": flag(&into.UnsignedImages),
		"cpus":           cores(&into.CPUs),
		"memory":         size(&into.Memory, 0, maxBytes),
		"storage":        size(&into.Storage, 0, maxBytes),
	})
}

func access(into *policy.MountAccess) field {
	return text((*string)(into), policy.CheckAccess)
}

// entries are a table to which the file adds, and in which it replaces: what it
// does not name stays as it is.
func entries[T any](into *map[string]T, name check, value func(*T) field) field {
	return func(r *reader, key string, n *yaml.Node) {
		if !r.is(n, key, yaml.MappingNode, mapTag, "a section") {
			return
		}
		if most := 512; len(n.Content)/2 > most {
			r.mistake(n, key, "expected at most %d entries, got %d", most, len(n.Content)/2)
			return
		}
		r.pairs(n, key, func(at, v *yaml.Node) {
			if err := name(at.Value); err != nil {
				r.mistake(at, join(key, at.Value), "%v", err)
				return
			}
			if v.ShortTag() == nullTag {
				return
			}
			var t T
			value(&t)(r, join(key, at.Value), v)
			(*into)[at.Value] = t
		})
	}
}

// replaced is a list in whose place that of the file comes, be it empty.
func replaced(into *[]string, most int, valid check) field {
	return func(r *reader, key string, n *yaml.Node) {
		if n.Kind == yaml.SequenceNode {
			*into = nil
		}
		list(into, most, valid)(r, key, n)
	}
}

// ports are numbers, and ranges of them.
func ports(into *[]policy.PortRange) field {
	return func(r *reader, key string, n *yaml.Node) {
		if !r.is(n, key, yaml.SequenceNode, listTag, "a list") {
			return
		}
		if most := 64; len(n.Content) > most {
			r.mistake(n, key, "expected at most %d values, got %d", most, len(n.Content))
			return
		}
		*into = nil
		for i, item := range n.Content {
			p, err := policy.ParsePorts(item.Value)
			if err != nil || item.Kind != yaml.ScalarNode {
				r.mistake(item, fmt.Sprintf("%s[%d]", key, i), "expected a port from 1 to 65535, or a range as 8000-8999, got %s", describe(item))
			}
			*into = append(*into, p)
		}
	}
}

// cores is a number of CPU cores, and parts of one.
func cores(into *float64) field {
	return func(r *reader, key string, n *yaml.Node) {
		const expected = "a number of cores, such as 2 or 0.5"
		if n.ShortTag() != intTag && !r.is(n, key, yaml.ScalarNode, floatTag, expected) {
			return
		}
		v, err := strconv.ParseFloat(n.Value, 64)
		if err != nil || !(v >= 0 && v <= math.MaxUint16) {
			r.mistake(n, key, "expected %s, got %s", expected, describe(n))
			return
		}
		*into = v
	}
}

// items are sections one after the other.
func items[T any](into *[]T, most int, item func(*T) field) field {
	return func(r *reader, key string, n *yaml.Node) {
		if !r.is(n, key, yaml.SequenceNode, listTag, "a list of sections") {
			return
		}
		if len(n.Content) > most {
			r.mistake(n, key, "expected at most %d sections, got %d", most, len(n.Content))
			return
		}
		if len(n.Content) == 0 {
			return
		}
		all := make([]T, len(n.Content))
		for i := range all {
			at := fmt.Sprintf("%s[%d]", key, i)
			if n.Content[i].ShortTag() == nullTag {
				r.mistake(n.Content[i], at, "expected a section, got nothing")
				continue
			}
			item(&all[i])(r, at, n.Content[i])
		}
		*into = all
	}
}
