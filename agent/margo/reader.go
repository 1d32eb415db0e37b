package margo

import (
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"unicode"
)

type reader struct {
	refused   Errors
	tolerated Errors
	ignored   Errors // unknown members of a deployment
	foreign   Errors // and those that change its meaning
}

// accept reads a document. The error is what read refuses, or why nothing could be read.
func accept[T any](
	what string, parse func([]byte, limits) (tree, error), body []byte, l limits, read func(*reader, node) T,
) (value T, err error) {
	var r reader
	root, err := parse(body, l)
	if err != nil {
		return value, fmt.Errorf("cannot accept %s: %w", what, Errors{{Message: err.Error()}})
	}
	accepted := read(&r, node{tree: root})
	if err := r.refused.err(); err != nil {
		return value, fmt.Errorf("cannot accept %s: %w", what, err)
	}
	return accepted, nil
}

func (r *reader) refuse(requirement string, at node, format string, args ...any) {
	r.refused.add(requirement, at.path, format, args...)
}

func (r *reader) tolerate(requirement string, at node, format string, args ...any) {
	r.tolerated.add(requirement, at.path, format, args...)
}

type node struct {
	tree
	path string // JSON Pointer
}

// given reports whether there is a value other than null.
func (n node) given() bool {
	return n.kind != absent && n.kind != null
}

// member is the value of an object's key, absent if n is no object.
func (n node) member(name string) node {
	child := node{path: n.path + "/" + pathName(name)}
	for _, m := range n.members {
		if m.name == name {
			child.tree = m.value
			break
		}
	}
	return child
}

func (n node) each(f func(node)) {
	for i, item := range n.items {
		f(node{item, n.path + "/" + strconv.Itoa(i)})
	}
}

func (n node) eachMember(f func(name string, value node)) {
	for _, m := range n.members {
		f(m.name, node{m.value, n.path + "/" + pathName(m.name)})
	}
}

func pathName(name string) string {
	name = strings.ReplaceAll(strings.ReplaceAll(name, "~", "~0"), "/", "~1")
	return Shown(name, 80)
}

// Shown makes outside text fit to be shown and logged: one line of at most max bytes, without
// terminal control characters.
func Shown(s string, max int) string {
	if isPrintable(s) && len(s) <= max { // as nearly all are
		return s
	}
	if len(s) > 4*max { // enough for what may be left out
		s = s[:4*max]
	}
	return cut(Line(s), max)
}

// Line makes one line of a text, without terminal control characters.
func Line(s string) string {
	return strings.Join(strings.FieldsFunc(strings.ToValidUTF8(s, "\uFFFD"), func(c rune) bool {
		return unicode.IsSpace(c) || !unicode.IsGraphic(c)
	}), " ")
}

// ShownURL is Shown for a redirect's target, without password, query and fragment, which may be
// secrets.
func ShownURL(s string) string {
	u, err := url.Parse(s)
	if err != nil {
		return "a URL that cannot be read"
	}
	u.User, u.RawQuery, u.ForceQuery, u.Fragment, u.RawFragment = nil, "", false, "", ""
	return Shown(u.String(), 200)
}

// cut shortens s to at most max bytes without splitting a character.
func cut(s string, max int) string {
	if len(s) <= max {
		return s
	}
	const mark = "..."
	end := max - len(mark)
	for end > 0 && s[end]&0xC0 == 0x80 { // inside a UTF-8 sequence
		end--
	}
	return s[:end] + mark
}

// is refuses n unless it has a value of the wanted kind.
func (r *reader) is(k kind, requirement string, n node) bool {
	switch {
	case n.kind == absent:
		r.refuse(requirement, n, "is missing")
	case n.kind != k:
		r.refuse(requirement, n, "must be %s, is %s", k, n.kind)
	default:
		return true
	}
	return false
}

// isOptional is is, but reports false, without a fault, for an absent or null n.
func (r *reader) isOptional(k kind, requirement string, n node) bool {
	return n.given() && r.is(k, requirement, n)
}

// text reads a required string that must not be empty.
func (r *reader) text(requirement string, n node) string {
	if !r.is(text, requirement, n) {
		return ""
	}
	if n.literal == "" {
		r.refuse(requirement, n, "must not be empty")
	}
	return n.literal
}

// word reads a string of a YAML document. An unquoted number or boolean is taken as written.
func (r *reader) word(requirement string, n node) string {
	if n.kind == number || n.kind == boolean {
		return n.written
	}
	return r.text(requirement, n)
}

// float reads a number where exactness does not matter.
func (r *reader) float(requirement string, n node) float64 {
	if !r.is(number, requirement, n) {
		return 0
	}
	f, ok := n.float()
	if !ok {
		r.refuse(requirement, n, "is too large")
	}
	return f
}

func (r *reader) oneOf(requirement string, n node, wanted ...string) string {
	if !r.is(text, requirement, n) {
		return ""
	}
	if slices.Contains(wanted, n.literal) {
		return n.literal
	}
	r.refuse(requirement, n, "must be one of %s, is %.80q", strings.Join(wanted, ", "), n.literal)
	return ""
}

// version reads a manifest version, 1 ... 2^64-1, from its literal.
func (r *reader) version(requirement string, n node) uint64 {
	if !r.is(number, requirement, n) {
		return 0
	}
	v, ok := parseUint(n.literal)
	if !ok || v == 0 {
		r.refuse(requirement, n, "must be an integer from 1 to 2^64-1, is %.80s", n.literal)
		return 0
	}
	return v
}

// deploymentID reads the id of a deployment. One that is not a UUID is tolerated if safe
// to use; any other is for the caller to judge.
func (r *reader) deploymentID(requirement string, n node) string {
	id := r.text(requirement, n)
	if IsDeploymentID(id) && !IsUUID(id) {
		r.tolerate(requirement, n, "must be a UUID, is %q", id)
	}
	return id
}

// parseUint gives the exact value of a JSON number that is an unsigned 64-bit integer, even if
// written with a fraction or exponent.
func parseUint(literal string) (uint64, bool) {
	mantissa, exponent := literal, 0
	if i := strings.IndexAny(literal, "eE"); i >= 0 {
		e, err := strconv.ParseInt(literal[i+1:], 10, 32)
		if err != nil {
			return 0, false // no 64-bit integer needs so large an exponent
		}
		mantissa, exponent = literal[:i], int(e)
	}
	whole, fraction, _ := strings.Cut(mantissa, ".")
	digits := strings.TrimLeft(whole+fraction, "0")
	point := len(digits) - len(fraction) + exponent // digits before the decimal point
	digits = strings.TrimRight(digits, "0")
	switch {
	case strings.Trim(whole, "0123456789") != "": // a sign
		return 0, false
	case digits == "":
		return 0, true
	case point < len(digits) || point > 20: // a fraction remains, or more digits than 2^64 has
		return 0, false
	}
	v, err := strconv.ParseUint(digits+strings.Repeat("0", point-len(digits)), 10, 64)
	return v, err == nil
}
