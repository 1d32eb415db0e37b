package margo

import (
	"fmt"
	"strconv"
	"strings"
)

// Parameter is a value and the places that want it.
type Parameter struct {
	Name    string
	Value   Value
	Targets []Target
}

// Target is one place that wants a parameter's value.
type Target struct {
	Pointer    string   // Compose: name of an environment variable, older documents with the prefix "ENV."
	Components []string // names of components of the same deployment
}

// Value is the value of a parameter: a string, a number, a boolean, or a list
// of these; the zero Value is null. It may be a secret: printing or logging a
// Value shows only that there is one, [Value.Text] shows it.
type Value struct{ tree *tree }

// IsNull reports that there is no value; such a parameter sets nothing.
func (v Value) IsNull() bool {
	return v.tree == nil || v.tree.kind == null
}

// Text is the value as the content of an environment variable: strings as they
// are, numbers in decimal without exponent, booleans as true or false, lists as
// compact JSON.
func (v Value) Text() string {
	switch {
	case v.IsNull():
		return ""
	case v.tree.kind == list:
		return string(appendJSON(nil, v.tree))
	default:
		return v.tree.literal
	}
}

// String hides the value.
func (v Value) String() string { return "[hidden]" }

// GoString hides the value.
func (v Value) GoString() string { return v.String() }

// Environment gives the environment variables that the parameters set for one
// component of a Compose deployment (AD-09, AD-10), and warnings about targets
// that name components which the deployment does not have: those set nothing,
// all other targets still count.
func (d *Deployment) Environment(component string) (map[string]string, []string, error) {
	known := make(map[string]bool, len(d.Components))
	for _, c := range d.Components {
		known[c.Name] = true
	}
	if !known[component] {
		return nil, nil, fmt.Errorf("cannot build environment: deployment has no component %q", component)
	}

	environment := map[string]string{}
	var (
		warnings []string
		faults   Errors
	)
	for _, p := range d.Parameters {
		for i, t := range p.Targets {
			at := "/spec/parameters/" + pathName(p.Name) + "/targets/" + strconv.Itoa(i)
			wanted := false
			for _, name := range t.Components {
				wanted = wanted || name == component
				if !known[name] {
					warnings = append(warnings, fmt.Sprintf("%s: deployment has no component %.80q [AD-09]", at, name))
				}
			}
			if !wanted || p.Value.IsNull() {
				continue
			}
			variable, value := strings.TrimPrefix(t.Pointer, "ENV."), p.Value.Text()
			switch before, set := environment[variable]; {
			case !isVariable(variable):
				faults.add("AD-10", at, "pointer %.80q is not the name of an environment variable", t.Pointer)
			case strings.ContainsRune(value, 0):
				faults.add("AD-10", at, "variable %s cannot hold the value: it contains a NUL character", variable)
			case set && before != value:
				// The specification leaves it open which one counts; a guess could
				// start a machine with the wrong settings.
				faults.add("AD-09", at, "variable %s of component %s already has another value", variable, component)
			default:
				environment[variable] = value
			}
		}
	}
	if err := faults.err(); err != nil {
		return nil, warnings, fmt.Errorf("cannot build environment: %w", err)
	}
	return environment, warnings, nil
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
			parameters = append(parameters, Parameter{
				Name:    name,
				Value:   r.value(n.member("value")),
				Targets: r.targets(n.member("targets")),
			})
		}
	})
	return parameters
}

// value reads a scalar or a list of scalars; none at all is null.
func (r *reader) value(n node) Value {
	if !n.given() {
		return Value{}
	}
	scalar := func(n node) bool {
		return n.kind == text || n.kind == number || n.kind == boolean
	}
	switch {
	case scalar(n):
		return Value{n.tree}
	case n.kind == list:
		n.each(func(item node) {
			if !scalar(item) {
				r.refuse("AD-09", item, "must be a string, a number or a boolean, is %s", item.kind)
			}
		})
		return Value{n.tree}
	}
	r.refuse("AD-09", n, "must be a string, a number, a boolean or a list of these, is %s", n.kind)
	return Value{}
}

func (r *reader) targets(n node) []Target {
	if !n.given() {
		r.tolerate("AD-09", n, "is missing")
		return nil
	}
	if !r.is(list, "AD-09", n) {
		return nil
	}
	targets := make([]Target, 0, len(n.items))
	n.each(func(n node) {
		if !r.is(object, "AD-09", n) {
			return
		}
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
