package policy

import (
	"cmp"
	"fmt"
	"path"
	"regexp"
	"strings"
)

type deviceRule struct {
	text    string
	allowed bool
	numbers *numbers // nil: the entry is a pattern
}

type numbers struct {
	kind         string // a, b or c
	major, minor string // "*": any
}

var ruleForm = regexp.MustCompile(`^([abc]) ([0-9]{1,10}|\*):([0-9]{1,10}|\*)( [rwm]{1,3})?$`)

func parseNumbers(text string) *numbers {
	m := ruleForm.FindStringSubmatch(text)
	if m == nil {
		return nil
	}
	return &numbers{m[1], number(m[2]), number(m[3])}
}

// number normalizes a number; "*" stays as it is.
func number(digits string) string { return cmp.Or(strings.TrimLeft(digits, "0"), "0") }

func (n numbers) String() string { return n.kind + " " + n.major + ":" + n.minor }

// CheckDevice returns what is wrong with an entry of Allow.Devices.
func CheckDevice(text string) error {
	rule := parseNumbers(text)
	_, malformed := path.Match(text, "")
	switch {
	case rule != nil && rule.String() != text:
		return fmt.Errorf("write device rule %q as %q", text, rule)
	case rule != nil || text == "*":
	case len(text) > 256 || malformed != nil || strings.ContainsRune(text, 0):
		return fmt.Errorf("%q is not a pattern such as /dev/ttyS*", clip(text, maxHolder))
	case path.IsAbs(text) && path.Clean(text) != text:
		return fmt.Errorf("expected a path without //, .. or a trailing /, got %q", text)
	case !path.IsAbs(text) && !(strings.Contains(text, "/") && strings.Contains(text, "=")):
		return fmt.Errorf(`expected a path, a CDI name such as vendor.com/class=name, or a device rule such as "c 188:*", got %q`, text)
	}
	return nil
}

// device reports whether a device may be used, by which entry and, if not, why.
func (g *Gate) device(asked string) (entry, why string, ok bool) {
	n := parseNumbers(asked)
	switch {
	case n != nil:
		asked = n.String()
	case path.IsAbs(asked):
		asked = path.Clean(asked)
	}
	var best *deviceRule
	for i := range g.devices {
		if d := &g.devices[i]; d.covers(asked, n) && (best == nil || d.before(best, asked)) {
			best = d
		}
	}
	switch {
	case best != nil && best.text == asked:
		return asked, "", best.allowed // with all that it holds
	case n != nil && n.kind == "a":
		for _, kind := range []string{"b", "c"} {
			if _, why, ok := g.device(numbers{kind, n.major, n.minor}.String()); !ok {
				return asked, why, false
			}
		}
		return asked, "", true
	case best == nil:
		return asked, "", false
	case !best.allowed:
		return asked, best.among(), false
	}
	for i := range g.devices {
		if d := &g.devices[i]; !d.allowed && !d.covers(asked, n) && d.inside(asked, n) {
			return asked, ", which contains " + d.text, false
		}
	}
	return asked, "", true
}

// among explains that a device matched the entry's pattern.
func (d *deviceRule) among() string {
	if d.text == "*" {
		return ""
	}
	return ", which falls under " + d.text
}

// covers reports whether the entry matches a device, its directory, or all devices of rule n.
func (d *deviceRule) covers(asked string, n *numbers) bool {
	switch {
	case d.text == "*":
		return true
	case n != nil || d.numbers != nil:
		return n != nil && d.numbers != nil && d.numbers.cover(*n)
	}
	for {
		if d.text == asked {
			return true
		}
		if fits, err := path.Match(d.text, asked); fits && err == nil {
			return true
		}
		if !path.IsAbs(asked) || asked == "/" {
			return false
		}
		asked = path.Dir(asked)
	}
}

// inside reports whether the entry's devices may be part of what is asked for.
func (d *deviceRule) inside(asked string, n *numbers) bool {
	if n != nil {
		return d.numbers != nil && d.numbers.overlap(*n)
	}
	return path.IsAbs(asked) && within(d.text, asked)
}

// before reports whether d takes precedence over another entry.
func (d *deviceRule) before(other *deviceRule, asked string) bool {
	switch {
	case (d.text == asked) != (other.text == asked):
		return d.text == asked
	case d.closeness() != other.closeness():
		return d.closeness() > other.closeness()
	default:
		return !d.allowed
	}
}

// closeness is how specific an entry is. A rule is more specific than "*".
func (d *deviceRule) closeness() int {
	if d.numbers == nil {
		return len(d.text)
	}
	n := 2
	for _, part := range []bool{d.numbers.kind != "a", d.numbers.major != "*", d.numbers.minor != "*"} {
		if part {
			n++
		}
	}
	return n
}

// cover reports whether n includes all devices of o.
func (n *numbers) cover(o numbers) bool {
	return (n.kind == "a" || n.kind == o.kind) && (n.major == "*" || n.major == o.major) && (n.minor == "*" || n.minor == o.minor)
}

func (n *numbers) overlap(o numbers) bool {
	meet := func(a, b, any string) bool { return a == b || a == any || b == any }
	return meet(n.kind, o.kind, "a") && meet(n.major, o.major, "*") && meet(n.minor, o.minor, "*")
}
