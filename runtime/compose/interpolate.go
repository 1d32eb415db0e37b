package compose

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/compose-spec/compose-go/v2/template"
)

const (
	// maxSubstituted bounds the bytes that variables add to one project.
	maxSubstituted = 4 << 20
	// maxNesting bounds defaults within defaults: ${A:-${B:-...}}.
	maxNesting = 16
)

// interpolator bounds time and growth and reports unset variables, which compose-go's own does not.
type interpolator struct {
	ctx   context.Context // of one Load: compose-go passes none on
	left  int             // bytes that variables may still add
	unset map[string]bool
	read  map[string]bool // variables that were looked for, and Options.Ports that were taken
}

func newInterpolator(ctx context.Context) *interpolator {
	return &interpolator{ctx: ctx, left: maxSubstituted, unset: map[string]bool{}, read: map[string]bool{}}
}

func (i *interpolator) warnings() []string {
	var warnings []string
	for _, name := range slices.Sorted(maps.Keys(i.unset)) {
		warnings = append(warnings, fmt.Sprintf("variable %q is not set and has no default; using an empty value", name))
	}
	return warnings
}

func (i *interpolator) substitute(s string, lookup template.Mapping) (string, error) {
	if err := i.ctx.Err(); err != nil {
		return "", err
	}
	return i.expand(s, lookup, 0)
}

// variable is the text after a $: $, NAME, {NAME}, or {NAME with an operator.
var variable = regexp.MustCompile(`^(?:\$|[a-zA-Z_]\w*|\{([a-zA-Z_]\w*)(?:\}|(:?[-+?])))`)

func (i *interpolator) expand(s string, lookup template.Mapping, nesting int) (string, error) {
	if nesting > maxNesting {
		return "", fmt.Errorf("variables are nested more than %d levels deep", maxNesting)
	}
	var out strings.Builder
	for rest := s; ; {
		before, after, found := strings.Cut(rest, "$")
		out.WriteString(before)
		if !found {
			return out.String(), nil
		}
		m := variable.FindStringSubmatch(after)
		switch {
		case m == nil && strings.HasPrefix(after, "{"):
			return "", malformed(after)
		case m == nil || m[0] == "$": // one alone stands for itself
			out.WriteByte('$')
			rest = strings.TrimPrefix(after, "$")
			continue
		}
		operator, operand := m[2], ""
		if rest = after[len(m[0]):]; operator != "" {
			end := closingBrace(rest)
			if end < 0 {
				return "", malformed(after)
			}
			operand, rest = rest[:end], rest[end+1:]
		}
		value, err := i.value(cmp.Or(m[1], m[0]), operator, operand, lookup, nesting)
		if err != nil {
			return "", err
		}
		out.WriteString(value)
	}
}

func malformed(after string) error {
	return fmt.Errorf("malformed variable %.80q; write $$ for a dollar sign", "$"+after)
}

// value is the value of a variable, with the operator :-, -, :+, +, :?, ? or none.
func (i *interpolator) value(name, operator, operand string, lookup template.Mapping, nesting int) (string, error) {
	i.read[name] = true
	value, set := lookup(name)
	operator, orEmpty := strings.CutPrefix(operator, ":") // empty counts as not set
	given := set && !(orEmpty && value == "")
	switch {
	case operator == "-" && !given, operator == "+" && given:
		return i.expand(operand, lookup, nesting+1)
	case operator == "+":
		return "", nil
	case operator == "?" && !given:
		reason, err := i.expand(operand, lookup, nesting+1)
		if err != nil {
			return "", err
		}
		return "", &template.MissingRequiredError{Variable: name, Reason: reason}
	case !set:
		i.unset[name] = true
	}
	// A few lines of variables that contain each other twice could fill any memory.
	if i.left -= len(value); i.left < 0 {
		return "", fmt.Errorf("variables expand to more than %d bytes", maxSubstituted)
	}
	return value, nil
}

// closingBrace is the index of the brace that closes the one before s, -1: none.
func closingBrace(s string) int {
	open := 1
	for n, c := range s {
		switch c {
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
