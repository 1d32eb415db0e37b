package config

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v4"

	"github.com/margolite/margolite/policy"
)

// A field reads one value of the file into its place, and reports what is wrong
// with it to the reader.
type field func(r *reader, key string, n *yaml.Node)

// reader collects the mistakes of one file.
type reader struct {
	file     string
	mistakes []error
	places   map[string]place // of the keys of sections
	enrols   *enrolment       // the file is part of it; nil: it is the configuration
}

// place is where a key is.
type place struct {
	file string
	node *yaml.Node
}

func (r *reader) mistake(n *yaml.Node, key, format string, args ...any) {
	switch {
	case len(r.mistakes) < maxMistakes:
		r.mistakes = append(r.mistakes, &Error{File: r.file, Line: n.Line, Key: key, Problem: fmt.Sprintf(format, args...)})
	case len(r.mistakes) == maxMistakes:
		r.mistakes = append(r.mistakes, &Error{File: r.file, Line: n.Line, Problem: "there are more mistakes from here on"})
	}
}

// disagree reports a key of the file whose value does not go with those of others.
func (r *reader) disagree(key, format string, args ...any) {
	at := r.places[key]
	defer func(file string) { r.file = file }(r.file)
	r.file = at.file
	r.mistake(at.node, key, format, args...)
}

// is says whether n is of the kind, and reports it otherwise. A key without a
// value is neither: it says that nothing is set.
func (r *reader) is(n *yaml.Node, key string, kind yaml.Kind, tag, expected string) bool {
	switch {
	case n.Kind == yaml.AliasNode:
		r.mistake(n, key, "expected %s, got an alias; aliases are not supported", expected)
		return false
	case n.Kind == kind && n.ShortTag() == tag:
		return true
	case n.ShortTag() != nullTag:
		r.mistake(n, key, "expected %s, got %s", expected, describe(n))
	}
	return false
}

const (
	textTag  = "!!str"
	flagTag  = "!!bool"
	intTag   = "!!int"
	floatTag = "!!float"
	nullTag  = "!!null"
	listTag  = "!!seq"
	mapTag   = "!!map"
)

func describe(n *yaml.Node) string {
	switch n.ShortTag() {
	case mapTag:
		return "a section"
	case listTag:
		return "a list"
	case textTag:
		return "the text " + quote(n.Value)
	case intTag, floatTag:
		return "the number " + quote(n.Value)
	case flagTag:
		return quote(n.Value)
	case nullTag:
		return "nothing"
	default:
		return fmt.Sprintf("%s of the type %s", quote(n.Value), quote(n.ShortTag()))
	}
}

// quote bounds what an error repeats of the file.
func quote(s string) string {
	if len(s) > 60 {
		s = s[:60] + "..."
	}
	return fmt.Sprintf("%q", s)
}

// pairs calls each for all keys of a mapping that are given once.
func (r *reader) pairs(n *yaml.Node, key string, each func(name *yaml.Node, value *yaml.Node)) {
	lines := make(map[string]int)
	for i := 0; i+1 < len(n.Content); i += 2 {
		name, value := n.Content[i], n.Content[i+1]
		if name.Kind != yaml.ScalarNode {
			r.mistake(name, key, "expected a key, got %s", describe(name))
			continue
		}
		if first, twice := lines[name.Value]; twice {
			r.mistake(name, join(key, name.Value), "given twice, the first time in line %d", first)
			continue
		}
		lines[name.Value] = name.Line
		each(name, value)
	}
}

// join names a key within a section. Names that are not words, such as hosts,
// are set apart: registries[registry.example:5000].ca
func join(section, name string) string {
	if len(name) > 60 {
		name = name[:60] + "..."
	}
	switch {
	case section == "":
		return name
	case strings.ContainsFunc(name, func(r rune) bool { return !('a' <= r && r <= 'z' || 'A' <= r && r <= 'Z') }):
		return section + "[" + strings.Trim(fmt.Sprintf("%q", name), `"`) + "]"
	default:
		return section + "." + name
	}
}

// fields are the keys of a section.
type fields map[string]field

func section(known fields) field {
	return func(r *reader, key string, n *yaml.Node) {
		if !r.is(n, key, yaml.MappingNode, mapTag, "a section") {
			return
		}
		r.pairs(n, key, func(name, value *yaml.Node) {
			read, ok := known[name.Value]
			if !ok {
				names := slices.Sorted(maps.Keys(known))
				r.mistake(name, join(key, name.Value), "unknown key; known here: %s", strings.Join(names, ", "))
				return
			}
			r.places[join(key, name.Value)] = place{r.file, name}
			read(r, join(key, name.Value), value)
		})
	}
}

// table is a section whose keys the operator chooses.
func table[T any](into *map[string]T, name check, row func(*T) field) field {
	return func(r *reader, key string, n *yaml.Node) {
		if !r.is(n, key, yaml.MappingNode, mapTag, "a section") {
			return
		}
		r.pairs(n, key, func(at, value *yaml.Node) {
			if err := name(at.Value); err != nil {
				r.mistake(at, join(key, at.Value), "%v", err)
				return
			}
			var t T
			row(&t)(r, join(key, at.Value), value)
			if *into == nil {
				*into = make(map[string]T)
			}
			(*into)[at.Value] = t
		})
	}
}

func text(into *string, valid check) field {
	return func(r *reader, key string, n *yaml.Node) {
		if !r.is(n, key, yaml.ScalarNode, textTag, "text (in quotes where it could be something else)") {
			return
		}
		if err := valid(n.Value); err != nil {
			r.mistake(n, key, "%v", err)
			return
		}
		*into = n.Value
	}
}

// file is the path of a file. What is beside a provisioning file is named without
// a path: that one comes from elsewhere, and must not send what lies on the device.
func file(into *string, valid check) field {
	absolute := text(into, valid)
	return func(r *reader, key string, n *yaml.Node) {
		if r.enrols == nil || n.Kind != yaml.ScalarNode || n.ShortTag() != textTag || n.Value == "" || strings.Contains(n.Value, "://") {
			absolute(r, key, n)
			return
		}
		if err := fileName(n.Value); err != nil {
			r.mistake(n, key, "%v", err)
			return
		}
		r.enrols.names = append(r.enrols.names, n.Value)
		*into = filepath.Join(r.enrols.place, n.Value)
	}
}

func list(into *[]string, most int, valid check) field {
	return func(r *reader, key string, n *yaml.Node) {
		if !r.is(n, key, yaml.SequenceNode, listTag, "a list") {
			return
		}
		if len(n.Content) > most {
			r.mistake(n, key, "expected at most %d values, got %d", most, len(n.Content))
			return
		}
		*into = nil // of a file before
		for i, item := range n.Content {
			var s string
			at := fmt.Sprintf("%s[%d]", key, i)
			if item.ShortTag() == nullTag {
				r.mistake(item, at, "expected text, got nothing")
			}
			text(&s, valid)(r, at, item)
			*into = append(*into, s)
		}
	}
}

func flag(into *bool) field {
	return func(r *reader, key string, n *yaml.Node) {
		if !r.is(n, key, yaml.ScalarNode, flagTag, "true or false") {
			return
		}
		if err := n.Decode(into); err != nil {
			r.mistake(n, key, "expected true or false, got %s", describe(n))
		}
	}
}

func number(into *int, least, most int) field {
	return func(r *reader, key string, n *yaml.Node) {
		if !r.is(n, key, yaml.ScalarNode, intTag, "a number") {
			return
		}
		v, err := strconv.Atoi(n.Value)
		if err != nil || v < least || v > most {
			r.mistake(n, key, "expected a number from %d to %d, got %s", least, most, describe(n))
			return
		}
		*into = v
	}
}

func duration(into *time.Duration, least, most time.Duration) field {
	return func(r *reader, key string, n *yaml.Node) {
		if !r.is(n, key, yaml.ScalarNode, textTag, "a duration with its unit, such as 60s or 5m") {
			return
		}
		d, err := time.ParseDuration(n.Value)
		switch {
		case err != nil:
			r.mistake(n, key, "expected a duration with its unit, such as 60s or 5m, got %s", describe(n))
		case d < least:
			r.mistake(n, key, "expected at least %v, got %v", least, d)
		case d > most:
			r.mistake(n, key, "expected at most %v, got %v", most, d)
		default:
			*into = d
		}
	}
}

// maxBytes is more than any device has.
const maxBytes = 1 << 50

// size is a number of bytes, with the units of Compose files and with those of
// the standard: 500k, 10m, 1g, 256KiB, 1MiB, 32Mi, 1GiB. All of them are binary.
func size(into *int64, least, most int64) field {
	units := map[string]int64{
		"": 1, "b": 1,
		"k": 1 << 10, "kb": 1 << 10, "ki": 1 << 10, "kib": 1 << 10,
		"m": 1 << 20, "mb": 1 << 20, "mi": 1 << 20, "mib": 1 << 20,
		"g": 1 << 30, "gb": 1 << 30, "gi": 1 << 30, "gib": 1 << 30,
		"t": 1 << 40, "tb": 1 << 40, "ti": 1 << 40, "tib": 1 << 40,
	}
	return func(r *reader, key string, n *yaml.Node) {
		const expected = "a number of bytes, such as 500k or 10m"
		if n.ShortTag() != intTag && !r.is(n, key, yaml.ScalarNode, textTag, expected) {
			return
		}
		digits := strings.TrimRight(strings.ToLower(n.Value), "kmgtib")
		number, err := strconv.ParseInt(digits, 10, 64)
		unit := units[strings.ToLower(n.Value)[len(digits):]]
		switch {
		case err != nil || unit == 0 || number < 0 || number > maxBytes/unit:
			r.mistake(n, key, "expected %s, got %s", expected, describe(n))
		case number*unit < least:
			r.mistake(n, key, "expected at least %d bytes, got %d", least, number*unit)
		case number*unit > most:
			r.mistake(n, key, "expected at most %d bytes, got %d", most, number*unit)
		default:
			*into = number * unit
		}
	}
}

// windows are times of the week, in the time zone of the device where they name
// none.
func windows(into *policy.Windows) field {
	return func(r *reader, key string, n *yaml.Node) {
		var texts []string
		if n.Kind == yaml.SequenceNode {
			*into = nil // of a file before
		}
		list(&texts, 64, func(s string) error {
			w, err := policy.ParseWindow(s, time.Local)
			*into = append(*into, w)
			return err
		})(r, key, n)
	}
}

// values are the words that a key can have.
type values []string

// choice is one of the words that are possible.
func choice(into *string, possible values) field {
	return text(into, func(s string) error {
		if !slices.Contains(possible, s) {
			return fmt.Errorf("expected %s, got %s", strings.Join(possible, " or "), quote(s))
		}
		return nil
	})
}

func level(into *slog.Level) field {
	levels := map[string]slog.Level{"debug": slog.LevelDebug, "info": slog.LevelInfo, "warn": slog.LevelWarn, "error": slog.LevelError}
	return func(r *reader, key string, n *yaml.Node) {
		var name string
		choice(&name, values{"debug", "info", "warn", "error"})(r, key, n)
		if l, ok := levels[name]; ok {
			*into = l
		}
	}
}

// labels are those of the capabilities document: CAP-09 allows text, numbers,
// booleans, and lists of texts or of numbers.
func labels(into *map[string]any) field {
	return table(into, line, func(value *any) field {
		return func(r *reader, key string, n *yaml.Node) {
			v, err := labelValue(n)
			if err != nil {
				r.mistake(n, key, "%v", err)
				return
			}
			*value = v
		}
	})
}

func labelValue(n *yaml.Node) (any, error) {
	expected := errors.New("expected text, a number, true or false, or a list of texts or of numbers")
	switch n.Kind {
	case yaml.ScalarNode:
		return labelScalar(n, expected)
	case yaml.SequenceNode:
		list := make([]any, len(n.Content))
		for i, item := range n.Content {
			v, err := labelScalar(item, expected)
			if err != nil {
				return nil, err
			}
			if item.ShortTag() == flagTag || (item.ShortTag() == textTag) != (n.Content[0].ShortTag() == textTag) {
				return nil, expected
			}
			list[i] = v
		}
		return list, nil
	default:
		return nil, expected
	}
}

func labelScalar(n *yaml.Node, expected error) (v any, err error) {
	switch tag := n.ShortTag(); {
	case n.Kind != yaml.ScalarNode:
		return nil, expected
	case tag == textTag:
		return n.Value, line(n.Value)
	case tag != intTag && tag != floatTag && tag != flagTag:
		return nil, expected
	}
	if n.Decode(&v) != nil {
		return nil, expected
	}
	if f, ok := v.(float64); ok && (math.IsNaN(f) || math.IsInf(f, 0)) {
		return nil, expected
	}
	return v, nil
}
