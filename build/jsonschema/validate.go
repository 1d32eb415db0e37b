package jsonschema

import (
	"encoding/json"
	"maps"
	"math"
	"math/big"
	"slices"
	"strconv"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6/kind"
	"golang.org/x/text/message"
)

// ErrorKind says in which way a value does not conform: one of package kind.
type ErrorKind interface {
	LocalizedString(*message.Printer) string
}

// ValidationError is what Validate fails with, and each of its causes. Those
// have no causes of their own, other than in the original: whoever looks for
// the most specific one finds the same, as they come in the same order.
type ValidationError struct {
	InstanceLocation []string
	ErrorKind        ErrorKind
	Causes           []*ValidationError
}

func (e *ValidationError) Error() string {
	lines := []string{"/" + strings.Join(e.InstanceLocation, "/") + ": " + e.ErrorKind.LocalizedString(nil)}
	for _, cause := range e.Causes {
		lines = append(lines, cause.Error())
	}
	return strings.Join(lines, "\n")
}

// Validate holds a value, as UnmarshalJSON reads it, against the schema. The
// error is a *ValidationError.
func (s *Schema) Validate(value any) error {
	if errs, _ := s.check(value, nil); len(errs) > 0 {
		return &ValidationError{ErrorKind: &kind.Schema{}, Causes: errs}
	}
	return nil
}

// check returns every way in which the value at a place does not conform, and
// which of its properties the schema has something to say about.
func (s *Schema) check(value any, at []string) (errs []*ValidationError, evaluated map[string]bool) {
	fail := func(k ErrorKind) {
		errs = append(errs, &ValidationError{InstanceLocation: slices.Clone(at), ErrorKind: k})
	}
	if s.nothing {
		fail(&kind.FalseSchema{})
		return errs, nil
	}
	if got := typeOf(value); len(s.types) > 0 && !slices.Contains(s.types, got) &&
		!(got == "integer" && slices.Contains(s.types, "number")) {
		fail(&kind.Type{Got: got, Want: slices.Clone(s.types)}) // a clone, as compose-go writes into it
		return errs, nil
	}
	if text, isText := value.(string); len(s.enum) > 0 && !(isText && slices.Contains(s.enum, text)) {
		fail(&kind.Enum{Want: s.enum})
		return errs, nil
	}
	evaluated = map[string]bool{}
	within := func(other *Schema) []*ValidationError {
		errs, by := other.check(value, at)
		if len(errs) == 0 {
			maps.Copy(evaluated, by)
		}
		return errs
	}
	if s.ref != nil {
		errs = append(errs, within(s.ref)...)
	}
	switch v := value.(type) {
	case map[string]any:
		errs = append(errs, s.checkObject(v, at, evaluated)...)
	case []any:
		errs = append(errs, s.checkList(v, at)...)
	case string:
		if s.pattern != nil && !s.pattern.MatchString(v) {
			fail(&kind.Pattern{Got: v, Want: s.pattern.String()})
		}
	case float64:
		number := new(big.Rat).SetFloat64(v)
		if s.minimum != nil && number.Cmp(s.minimum) < 0 {
			fail(&kind.Minimum{Got: v, Want: s.minimum})
		}
		if s.maximum != nil && number.Cmp(s.maximum) > 0 {
			fail(&kind.Maximum{Got: v, Want: s.maximum})
		}
	}
	for _, all := range s.allOf {
		errs = append(errs, within(all)...)
	}
	if matched, why := matches(s.anyOf, within); len(matched) == 0 {
		errs = append(errs, why...)
	}
	switch matched, why := matches(s.oneOf, within); len(matched) {
	case 0:
		errs = append(errs, why...)
	case 1:
	default:
		fail(&kind.OneOf{Subschemas: [2]int(matched)})
	}
	if object, is := value.(map[string]any); is && s.unevaluated != nil {
		for _, name := range slices.Sorted(maps.Keys(object)) {
			if !evaluated[name] {
				more, _ := s.unevaluated.check(object[name], append(at, name))
				errs, evaluated[name] = append(errs, more...), true
			}
		}
	}
	return errs, evaluated
}

// matches are those of some schemas that a value conforms to, and why it does
// not to the others.
func matches(some []*Schema, check func(*Schema) []*ValidationError) (matched []int, why []*ValidationError) {
	for i, s := range some {
		if errs := check(s); len(errs) > 0 {
			why = append(why, errs...)
		} else {
			matched = append(matched, i)
		}
	}
	return matched, why
}

func (s *Schema) checkObject(object map[string]any, at []string, evaluated map[string]bool) (errs []*ValidationError) {
	fail := func(k ErrorKind) {
		errs = append(errs, &ValidationError{InstanceLocation: slices.Clone(at), ErrorKind: k})
	}
	var missing, unknown []string
	for _, name := range s.required {
		if _, there := object[name]; !there {
			missing = append(missing, name)
		}
	}
	if len(missing) > 0 {
		fail(&kind.Required{Missing: missing})
	}
	for _, name := range slices.Sorted(maps.Keys(object)) {
		known := false
		check := func(property *Schema) {
			more, _ := property.check(object[name], append(at, name))
			errs, known, evaluated[name] = append(errs, more...), true, true
		}
		if property := s.properties[name]; property != nil {
			check(property)
		}
		for _, p := range s.patterns {
			if p.name.MatchString(name) {
				check(p.schema)
			}
		}
		switch {
		case known || s.additional == nil:
		case s.additional.nothing:
			unknown, evaluated[name] = append(unknown, name), true
		default:
			check(s.additional)
		}
	}
	if len(unknown) > 0 {
		fail(&kind.AdditionalProperties{Properties: unknown})
	}
	return errs
}

func (s *Schema) checkList(list []any, at []string) (errs []*ValidationError) {
	if s.unique {
		if i, j, are := duplicates(list); are {
			errs = append(errs, &ValidationError{InstanceLocation: slices.Clone(at), ErrorKind: &kind.UniqueItems{Duplicates: [2]int{i, j}}})
		}
	}
	if s.items != nil {
		for i, item := range list {
			more, _ := s.items.check(item, append(at, strconv.Itoa(i)))
			errs = append(errs, more...)
		}
	}
	return errs
}

// duplicates are the first two elements that are equal.
func duplicates(list []any) (first, second int, are bool) {
	seen := map[string]int{}
	for i, element := range list {
		text, err := json.Marshal(element)
		if err != nil {
			continue // it did not come from JSON
		}
		if earlier, is := seen[string(text)]; is {
			return earlier, i, true
		}
		seen[string(text)] = i
	}
	return 0, 0, false
}

// typeOf names the type of a value, the narrower one of numbers.
func typeOf(value any) string {
	switch v := value.(type) {
	case nil:
		return "null"
	case bool:
		return "boolean"
	case string:
		return "string"
	case float64:
		if v == math.Trunc(v) {
			return "integer"
		}
		return "number"
	case []any:
		return "array"
	default:
		return "object"
	}
}
