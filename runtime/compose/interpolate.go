package compose

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/compose-spec/compose-go/v2/template"
)

const (
	// maxSubstituted bounds the bytes that variables add to one project.
	maxSubstituted = 8 << 20
	// maxNesting bounds defaults within defaults: ${A:-${B:-...}}.
	maxNesting = 16
)

// interpolator replaces variables as Compose says. It is not compose-go's own
// because that one neither bounds time and growth nor tells which variables were
// not set other than through a global logger.
type interpolator struct {
	ctx   context.Context // of one Load: compose-go passes none on
	left  int             // bytes that variables may still add
	unset map[string]bool
	read  map[string]bool // variables that were looked for, and Options.Ports that were taken
}

func newInterpolator(ctx context.Context) *interpolator {
	return &interpolator{ctx: ctx, left: maxSubstituted, unset: map[string]bool{}, read: map[string]bool{}}
}

// warnings names the variables that were replaced by nothing.
func (i *interpolator) warnings() []string {
	var warnings []string
	for _, name := range slices.Sorted(maps.Keys(i.unset)) {
		warnings = append(warnings, fmt.Sprintf("variable %q is not set and has no default; using an empty value", name))
	}
	return warnings
}

// substitute replaces the variables in s by what lookup knows of them.
func (i *interpolator) substitute(s string, lookup template.Mapping) (string, error) {
	if err := i.ctx.Err(); err != nil {
		return "", err
	}
	return i.expand(s, lookup, 0)
}

func (i *interpolator) expand(s string, lookup template.Mapping, nesting int) (string, error) {
	if !strings.Contains(s, "$") {
		return s, nil
	}
	if nesting > maxNesting {
		return "", fmt.Errorf("variables are nested more than %d levels deep", maxNesting)
	}
	whole := s
	var out strings.Builder
	for {
		before, after, found := strings.Cut(s, "$")
		out.WriteString(before)
		if !found {
			return out.String(), nil
		}
		switch name := leadingName(after); {
		case strings.HasPrefix(after, "$"):
			out.WriteByte('$')
			s = after[1:]
		case name != "":
			value, err := i.value(name, lookup)
			if err != nil {
				return "", err
			}
			out.WriteString(value)
			s = after[len(name):]
		case strings.HasPrefix(after, "{"):
			length := closingBrace(after)
			if length < 0 {
				return "", &template.InvalidTemplateError{Template: whole}
			}
			value, err := i.braced(after[1:length], lookup, nesting)
			if err != nil {
				return "", err
			}
			out.WriteString(value)
			s = after[length+1:]
		default: // a lone $ stands for itself
			out.WriteByte('$')
			s = after
		}
	}
}

// braced is the value of what stands between the braces of ${...}.
func (i *interpolator) braced(expression string, lookup template.Mapping, nesting int) (string, error) {
	name := leadingName(expression)
	rest := expression[len(name):]
	if name == "" {
		return "", &template.InvalidTemplateError{Template: "${" + expression + "}"}
	}
	if rest == "" {
		return i.value(name, lookup)
	}
	i.read[name] = true
	value, set := lookup(name)
	if operator, ok := strings.CutPrefix(rest, ":"); ok { // empty is as good as not set
		rest = operator
		set = set && value != ""
	}
	switch {
	case strings.HasPrefix(rest, "-"):
		if !set {
			return i.expand(rest[1:], lookup, nesting+1)
		}
		return value, i.spend(value)
	case strings.HasPrefix(rest, "+"):
		if set {
			return i.expand(rest[1:], lookup, nesting+1)
		}
		return "", nil
	case strings.HasPrefix(rest, "?"):
		if !set {
			reason, err := i.expand(rest[1:], lookup, nesting+1)
			if err != nil {
				return "", err
			}
			return "", &template.MissingRequiredError{Variable: name, Reason: reason}
		}
		return value, i.spend(value)
	}
	return "", &template.InvalidTemplateError{Template: "${" + expression + "}"}
}

func (i *interpolator) value(name string, lookup template.Mapping) (string, error) {
	i.read[name] = true
	value, set := lookup(name)
	if !set {
		i.unset[name] = true
	}
	return value, i.spend(value)
}

// spend accounts for what a value adds; a few lines of variables that hold each
// other twice would otherwise fill any memory.
func (i *interpolator) spend(value string) error {
	if i.left -= len(value); i.left < 0 {
		return fmt.Errorf("variables expand to more than %d bytes", maxSubstituted)
	}
	return nil
}

// leadingName is the name of a variable at the start of s, empty if there is none.
func leadingName(s string) string {
	for n := range len(s) {
		switch c := s[n]; {
		case c == '_', 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', n > 0 && '0' <= c && c <= '9':
		default:
			return s[:n]
		}
	}
	return s
}

// closingBrace is where the brace at the start of s is closed, -1 if it is not.
func closingBrace(s string) int {
	open := 0
	for n := range len(s) {
		switch s[n] {
		case '{':
			open++
		case '}':
			if open--; open == 0 {
				return n
			}
		}
	}
	return -1
}
