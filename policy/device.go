package policy

import (
	"fmt"
	"path"
	"regexp"
	"strings"
)

type deviceRule struct {
	text    string
	allowed bool
	numbers *numbers // of a device rule; nil: it is a pattern
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

// number writes a number in one way; "*" stays as it is.
func number(digits string) string {
	if strings.Trim(digits, "0") == "" {
		return "0"
	}
	return strings.TrimLeft(digits, "0")
}

func (n numbers) String() string { return n.kind + " " + n.major + ":" + n.minor }

// CheckDevice says what is wrong with an entry of Allow.Devices.
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

// device says whether a device may be used, with the entry that would say so, and
// of one that may not what a person needs to know beside it.
func (g *Gate) device(asked string) (entry, why string, ok bool) {
	if n := parseNumbers(asked); n != nil {
		why, ok = g.numbered(*n)
		return n.String(), why, ok
	}
	if path.IsAbs(asked) {
		asked = path.Clean(asked)
	}
	var best *deviceRule
	for i := range g.devices {
		d := &g.devices[i]
		if d.numbers == nil && d.covers(asked) && (best == nil || d.before(best, asked)) {
			best = d
		}
	}
	switch {
	case best == nil:
		return asked, "", false
	case best.text == asked:
		return asked, "", best.allowed // with all that it holds
	case !best.allowed:
		return asked, best.among(), false
	case !path.IsAbs(asked):
		return asked, "", true
	}
	for _, d := range g.devices {
		if !d.allowed && within(d.text, asked) {
			return asked, ", which contains " + d.text, false
		}
	}
	return asked, "", true
}

// among says that a device is one of the entry's.
func (d *deviceRule) among() string {
	if d.text == "*" {
		return ""
	}
	return ", which falls under " + d.text
}

// covers says whether the pattern fits a device or a directory that holds it.
func (d *deviceRule) covers(asked string) bool {
	if d.text == "*" {
		return true
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

// before says whether d decides about a device rather than another entry.
func (d *deviceRule) before(other *deviceRule, asked string) bool {
	switch {
	case (d.text == asked) != (other.text == asked):
		return d.text == asked
	case len(d.text) != len(other.text):
		return len(d.text) > len(other.text)
	default:
		return !d.allowed
	}
}

// numbered says whether a device rule may be given, as device does.
func (g *Gate) numbered(n numbers) (why string, ok bool) {
	var best *deviceRule
	for i := range g.devices {
		d := &g.devices[i]
		switch {
		case d.numbers != nil && *d.numbers == n:
			return "", d.allowed
		case d.text != "*" && (d.numbers == nil || !d.numbers.cover(n)):
		case best == nil || d.numbers.exactness() > best.numbers.exactness() ||
			d.numbers.exactness() == best.numbers.exactness() && !d.allowed:
			best = d
		}
	}
	switch {
	case n.kind == "a":
		for _, kind := range []string{"b", "c"} {
			if why, ok := g.numbered(numbers{kind, n.major, n.minor}); !ok {
				return why, false
			}
		}
		return "", true
	case best == nil:
		return "", false
	case !best.allowed:
		return best.among(), false
	}
	for _, d := range g.devices {
		if !d.allowed && d.numbers != nil && !d.numbers.cover(n) && d.numbers.overlap(n) {
			return ", which contains " + d.text, false
		}
	}
	return "", true
}

// cover says whether all devices of o are of n, too.
func (n *numbers) cover(o numbers) bool {
	return (n.kind == "a" || n.kind == o.kind) && (n.major == "*" || n.major == o.major) && (n.minor == "*" || n.minor == o.minor)
}

func (n *numbers) overlap(o numbers) bool {
	meet := func(a, b, any string) bool { return a == b || a == any || b == any }
	return meet(n.kind, o.kind, "a") && meet(n.major, o.major, "*") && meet(n.minor, o.minor, "*")
}

// exactness is how closely numbers describe a device; nil is anything.
func (n *numbers) exactness() int {
	if n == nil {
		return -1
	}
	e := 0
	for _, part := range []bool{n.kind != "a", n.major != "*", n.minor != "*"} {
		if part {
			e++
		}
	}
	return e
}
