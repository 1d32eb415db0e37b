package margo

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Parameter is a value and its targets.
type Parameter struct {
	Name      string
	Value     Value
	Sensitive bool // the value is a secret, as drafts of the specification have it
	Targets   []Target
}

// Target is one place that uses a parameter's value.
type Target struct {
	// Pointer is, for Compose, the name of an environment variable (in older documents with the
	// prefix "ENV."), or PORTS.<container port>[/udp] as tools of the Margo sandbox write it.
	Pointer    string
	Components []string // names of components of the same deployment
}

// Value is the value of a parameter: a string, a number, a boolean, or a list of these; the zero
// Value is null. It may be a secret, so printing or logging hides it; [Value.Text] shows it.
type Value struct{ tree tree }

// IsNull reports that there is no value; such a parameter sets nothing.
func (v Value) IsNull() bool {
	return v.tree.kind == absent || v.tree.kind == null
}

// Text is the value as the content of an environment variable: strings as they are, numbers in
// decimal without exponent, booleans as true or false, lists as compact JSON.
func (v Value) Text() string {
	switch {
	case v.IsNull():
		return ""
	case v.tree.kind == list:
		return string(v.tree.json())
	default:
		return v.tree.literal
	}
}

// String hides the value.
func (v Value) String() string { return "[hidden]" }

// GoString hides the value.
func (v Value) GoString() string { return v.String() }

const maxUnread = 64

// Settings are what the parameters of a deployment set for one component.
type Settings struct {
	Environment map[string]string // variables of the Compose project
	Ports       map[string]string // device ports by the container port that each publishes, such as 80/tcp
}

// Settings gives what the parameters set for one component of a Compose deployment (AD-09,
// AD-10), and warnings about targets that set nothing because their component or pointer is
// unknown. All other targets still count.
func (d *Deployment) Settings(component string) (Settings, Errors, error) {
	if !d.has(component) {
		return Settings{}, nil, fmt.Errorf("cannot apply parameters: deployment has no component %q", component)
	}
	settings := Settings{map[string]string{}, map[string]string{}}
	var warnings, faults Errors
	for _, p := range d.Parameters {
		for i, t := range p.Targets {
			at := "/spec/parameters/" + pathName(p.Name) + "/targets/" + strconv.Itoa(i)
			wanted := false
			for _, name := range t.Components {
				wanted = wanted || name == component
				if !d.has(name) {
					warnings.add("AD-09", at, "deployment has no component %.80q", name)
				}
			}
			if !wanted || p.Value.IsNull() {
				continue
			}
			setting, isPort := t.setting()
			into, value := settings.Environment, p.Value.Text()
			if isPort {
				into = settings.Ports
			}
			switch before, set := into[setting]; {
			case setting == "":
				warnings.add("AD-10", at, "pointer %.80q is neither the name of a variable nor PORTS.<container port>[/udp]", t.Pointer)
			case isPort && !isPortNumber(value):
				faults.add("AD-10", at, "cannot publish container port %s: the value is not a port from 1 to 65535", setting)
			case strings.ContainsRune(value, 0):
				faults.add("AD-10", at, "variable %s cannot hold the value: it contains a NUL character", setting)
			case set && before != value:
				// The specification does not say which one counts, and a guess could start a
				// machine with the wrong settings.
				faults.add("AD-09", at, "%s of component %s already has another value", setting, component)
			default:
				into[setting] = value
			}
		}
	}
	if err := faults.err(); err != nil {
		return Settings{}, warnings, fmt.Errorf("cannot apply parameters: %w", err)
	}
	return settings, warnings, nil
}

// Unread names up to maxUnread parameters that have a value and set nothing: none of their
// targets counts, or only what is unused in its component.
func (d *Deployment) Unread(unused map[string]map[string]bool) []string {
	var names []string
	for _, p := range d.Parameters {
		read := p.Value.IsNull()
		for _, t := range p.Targets {
			setting, _ := t.setting()
			for _, component := range t.Components {
				read = read || setting != "" && d.has(component) && !unused[component][setting]
			}
		}
		if !read && len(names) < maxUnread {
			names = append(names, pathName(p.Name))
		}
	}
	return names
}

func (d *Deployment) has(component string) bool {
	return slices.ContainsFunc(d.Components, func(c Component) bool { return c.Name == component })
}

// setting is what a Compose pointer names: a variable, or a container port as 80/tcp; "":
// unknown.
func (t Target) setting() (name string, isPort bool) {
	if port, ok := strings.CutPrefix(t.Pointer, "PORTS."); ok {
		number, protocol, given := strings.Cut(port, "/")
		if !given {
			protocol = "tcp"
		}
		if isPortNumber(number) && (protocol == "tcp" || protocol == "udp") {
			return number + "/" + protocol, true
		}
	}
	if variable := strings.TrimPrefix(t.Pointer, "ENV."); isVariable(variable) {
		return variable, false
	}
	return "", false
}

// parameters reads the values for the components; there may be none.
func (r *reader) parameters(n node) []Parameter {
	if !r.isOptional(object, "AD-09", n) {
		return nil
	}
	if len(n.members) > MaxParameters {
		r.refuse("AD-09", n, "has more than %d entries", MaxParameters)
		return nil
	}
	parameters := make([]Parameter, 0, len(n.members))
	n.eachMember(func(name string, n node) {
		if r.is(object, "AD-09", n) {
			r.exact(n, "value", "targets", "sensitive", "name", "description", "schema", "immutable")
			sensitive := n.member("sensitive")
			parameters = append(parameters, Parameter{
				Name:      name,
				Value:     r.value(n.member("value")),
				Sensitive: sensitive.given() && sensitive.literal != "false",
				Targets:   r.targets(n.member("targets")),
			})
		}
	})
	return parameters
}

// value reads a scalar or a list of scalars; an absent one is null.
func (r *reader) value(n node) Value {
	if !n.given() {
		return Value{}
	}
	switch {
	case scalar(n.tree):
		return Value{n.tree}
	case n.kind == list:
		n.each(func(item node) {
			if !scalar(item.tree) {
				r.refuse("AD-09", item, "must be a string, a number or a boolean, is %s", item.kind)
			}
		})
		return Value{n.tree}
	}
	r.refuse("AD-09", n, "must be a string, a number, a boolean or a list of these, is %s", n.kind)
	return Value{}
}

func (r *reader) targets(n node) []Target {
	if !r.isOptional(list, "AD-09", n) {
		return nil
	}
	targets := make([]Target, 0, len(n.items))
	n.each(func(n node) {
		if !r.is(object, "AD-09", n) {
			return
		}
		r.exact(n, "pointer", "components", "name", "description")
		target := Target{Pointer: r.word("AD-09", n.member("pointer"))}
		if components := n.member("components"); r.is(list, "AD-09", components) {
			components.each(func(n node) {
				target.Components = append(target.Components, r.word("AD-09", n))
			})
		}
		targets = append(targets, target)
	})
	return targets
}
