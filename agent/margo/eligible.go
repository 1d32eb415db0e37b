package margo

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Unmet is why a device may not host a deployment.
type Unmet struct {
	Capacity bool   // too little of something; otherwise no rule is met
	Text     string // which requirement, and what the device has
}

func (u *Unmet) Error() string { return u.Text }

// Check evaluates the constraints against capabilities reported in rc.3: the capacity first, then
// the rules, one of which has to be met (AD-11, AD-12). The error is an *Unmet, or says that the
// capabilities cannot be read. Nil constraints are met by every device.
func (c *DeviceConstraints) Check(capabilities []byte) error {
	if c == nil {
		return nil
	}
	root, err := parseJSON(capabilities, limits{bytes: MaxCapabilitiesBytes, depth: 64, nodes: 1 << 14})
	if err != nil {
		return fmt.Errorf("cannot evaluate device constraints: %w", err)
	}
	properties, labels := node{tree: root}.member("properties"), node{tree: root}.member("labels")
	if unmet := c.capacity(properties); unmet != "" {
		return &Unmet{Capacity: true, Text: unmet}
	}
	if len(c.Rules) == 0 {
		return nil
	}
	var why []string
	for i, rule := range c.Rules {
		unmet := rule.Property.unmet(properties, pointed)
		if unmet == "" {
			unmet = rule.Label.unmet(labels, node.member)
		}
		if unmet == "" {
			return nil
		}
		why = append(why, fmt.Sprintf("rule %d: %s", i+1, unmet))
	}
	return &Unmet{Text: Shown("the device does not meet the eligibility rules: "+strings.Join(why, "; "), MaxFaultMessage)}
}

func (c *DeviceConstraints) capacity(properties node) string {
	if c.CPU != nil && !c.CPU.met(properties.member("cpus")) {
		wanted := strconv.FormatFloat(c.CPU.Cores, 'f', -1, 64) + " cores"
		if len(c.CPU.Architectures) > 0 {
			wanted += " of " + strings.Join(c.CPU.Architectures, " or ")
		}
		return Shown("capacityRequirements.cpu: no CPU of this device has "+wanted, 256)
	}
	for _, of := range []struct {
		name   string
		wanted Quantity
	}{{"memory", c.Memory}, {"storage", c.Storage}} {
		has, _ := ParseQuantity(shown(properties.member(of.name), 64)) // an unreadable quantity counts as none
		if has < of.wanted {
			return fmt.Sprintf("capacityRequirements.%s: %s required, this device has %s", of.name, of.wanted, has)
		}
	}
	return ""
}

// met looks for one CPU that meets the whole requirement: entries are never added up (CAP-12).
func (r *CPURequirement) met(cpus node) bool {
	return slices.ContainsFunc(cpus.items, func(t tree) bool {
		cpu := node{tree: t}
		architecture := cmp.Or(shown(cpu.member("architecture"), 64), "other") // one without a name on the wire
		has, ok := cpu.member("cores").float()
		return ok && has >= r.Cores && (len(r.Architectures) == 0 || slices.ContainsFunc(r.Architectures, func(name string) bool {
			return name == architecture || Architecture(name) == architecture
		}))
	})
}

// pointed takes the key as a JSON Pointer (RFC 6901).
func pointed(in node, key string) node {
	if key == "" {
		return in
	}
	names, ok := strings.CutPrefix(key, "/")
	if !ok {
		return node{}
	}
	for name := range strings.SplitSeq(names, "/") {
		name = strings.ReplaceAll(strings.ReplaceAll(name, "~1", "/"), "~0", "~")
		if in.kind != list {
			in = in.member(name)
			continue
		}
		i, err := strconv.ParseUint(name, 10, 31)
		if err != nil || int(i) >= len(in.items) || len(name) > 1 && name[0] == '0' {
			return node{}
		}
		in = node{tree: in.items[i]}
	}
	return in
}

// unmet describes an expression that is not met, or "". find gives what a key refers to.
func (s Selector) unmet(in node, find func(in node, key string) node) string {
	for _, e := range s {
		if !e.met(find(in, e.Key)) {
			return e.shown()
		}
	}
	return ""
}

func (e MatchExpression) shown() string {
	s := e.Key + " " + e.Operator
	var values []string
	for _, v := range e.Values {
		values = append(values, v.Text())
	}
	if len(values) > 0 {
		s += " " + strings.Join(values, ", ")
	}
	if len(e.Items) > 0 {
		var items []string
		for _, item := range e.Items {
			items = append(items, item.shown())
		}
		s += " (" + strings.Join(items, "; ") + ")"
	}
	return cmp.Or(Shown(s, 256), "an expression that cannot be shown") // "" would say that it is met
}

// met evaluates the expression for the value that its key refers to. What does not fit the
// operator, the expression or the specification's types does not meet it.
func (e MatchExpression) met(n node) bool {
	present := n.given()
	objects := slices.ContainsFunc(n.items, func(t tree) bool { return t.kind == object })
	switch e.Operator {
	case "ContainsAll", "ContainsAny":
		return e.contained(n)
	case "Exists":
		return len(e.Values) == 0 && present && !objects && n.kind != object
	case "DoesNotExist":
		return len(e.Values) == 0 && !present
	case "In", "NotIn":
		if objects || !e.comparable() {
			return false
		}
		values := []tree{n.tree}
		if n.kind == list {
			values = n.items
		}
		if !slices.ContainsFunc(values, scalar) && len(values) > 0 {
			return false
		}
		shared := slices.ContainsFunc(values, func(have tree) bool {
			return slices.ContainsFunc(e.Values, func(want Value) bool { return same(have, want.tree) })
		})
		return shared == (e.Operator == "In")
	case "Gt", "Lt":
		if len(e.Values) != 1 {
			return false
		}
		have, ok := n.float()
		want, err := strconv.ParseFloat(e.Values[0].Text(), 64)
		if !ok || err != nil {
			return false
		}
		return e.Operator == "Gt" && have > want || e.Operator == "Lt" && have < want
	}
	return false
}

// contained looks for a list element that meets all, or any, of the item expressions.
func (e MatchExpression) contained(n node) bool {
	if len(e.Items) == 0 || len(e.Values) > 0 || n.kind != list {
		return false
	}
	return slices.ContainsFunc(n.items, func(element tree) bool {
		if element.kind != object {
			return false
		}
		if e.Operator == "ContainsAll" {
			return e.Items.unmet(node{tree: element}, pointed) == ""
		}
		return slices.ContainsFunc(e.Items, func(item MatchExpression) bool {
			return item.met(pointed(node{tree: element}, item.Key))
		})
	})
}

// comparable says that In and NotIn take the values: strings, numbers, or one boolean.
func (e MatchExpression) comparable() bool {
	if len(e.Values) == 0 {
		return false
	}
	kind := e.Values[0].tree.kind
	for _, v := range e.Values {
		if v.tree.kind != kind || !scalar(v.tree) || kind == boolean && len(e.Values) > 1 {
			return false
		}
	}
	return true
}

func scalar(t tree) bool { return t.kind == text || t.kind == number || t.kind == boolean }

// same compares two scalars: strings exactly, numbers by value.
func same(a, b tree) bool {
	if a.kind != b.kind {
		return false
	}
	if a.kind == number {
		x, xOK := a.float()
		y, yOK := b.float()
		return xOK && yOK && x == y
	}
	return a.literal == b.literal
}

// float is the value of a number as precisely as a float has it.
func (t tree) float() (float64, bool) {
	f, err := strconv.ParseFloat(t.literal, 64)
	return f, t.kind == number && err == nil
}
