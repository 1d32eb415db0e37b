package config

import (
	"fmt"
	"strings"

	"go.yaml.in/yaml/v4"
)

type reader struct {
	file     string
	mistakes []*Error
	warnings []error
	places   map[string]place // of the keys of sections
	enrols   *enrolment       // of a provisioning file; nil: the configuration
}

type place struct {
	file string
	node *yaml.Node
}

func (r *reader) mistake(n *yaml.Node, key, format string, args ...any) {
	switch {
	case len(r.mistakes) < maxMistakes:
		r.mistakes = append(r.mistakes, &Error{File: r.file, Line: n.Line, Key: key, Problem: fmt.Sprintf(format, args...)})
	case len(r.mistakes) == maxMistakes:
		r.mistakes = append(r.mistakes, &Error{File: r.file, Line: n.Line, Problem: "too many errors; the rest is not shown"})
	}
}

func (r *reader) disagree(key, format string, args ...any) {
	at := r.places[key]
	defer func(file string) { r.file = file }(r.file)
	r.file = at.file
	r.mistake(at.node, key, format, args...)
}

// is reports whether n has a value of the kind, and records a wrong kind as a mistake.
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

func quote(s string) string {
	if len(s) > 60 {
		s = s[:60] + "..."
	}
	return fmt.Sprintf("%q", s)
}

// pairs calls each for all keys of a mapping that occur once.
func (r *reader) pairs(n *yaml.Node, key string, each func(name *yaml.Node, value *yaml.Node)) {
	lines := make(map[string]int)
	for i := 0; i+1 < len(n.Content); i += 2 {
		name, value := n.Content[i], n.Content[i+1]
		if name.Kind != yaml.ScalarNode {
			r.mistake(name, key, "expected a key, got %s", describe(name))
			continue
		}
		if first, twice := lines[name.Value]; twice {
			r.mistake(name, join(key, name.Value), "duplicate key; first used in line %d", first)
			continue
		}
		lines[name.Value] = name.Line
		each(name, value)
	}
}

// join names a key within a section. Names that are not words, such as hosts, are bracketed:
// registries[registry.example:5000].ca
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
