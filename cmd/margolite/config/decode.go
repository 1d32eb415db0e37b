package config

import (
	"encoding"
	"errors"
	"fmt"
	"maps"
	"math"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v4"

	"github.com/margolite/margolite/capability"
	"github.com/margolite/margolite/policy"
	"github.com/margolite/margolite/runtime/image"
)

// The file's format is in the tags of the structs that it fills:
//
//	yaml     the key; with a dot, a key of a section of its own; ",inline": the keys
//	         of the field are those of the struct
//	is       the check of the text; with a question mark it may be empty
//	one      the allowed words
//	least    the least number, duration or size
//	most     the greatest, or the maximum length of a list
//	names    the check for keys that the operator chooses
//	all      the check of a list as a whole, one of lists
//	empty    "kept": an empty list means something other than no list
//	restart  "true": takes effect when the daemon is restarted, see Change
//	with     the way to the WFM that it belongs to, see WFM.agree

const maxTable = 512

// retired are former keys without effect, accepted with a warning until the next release.
var retired = []string{"wfm.limits", "wfm.signature"}

type fields map[string]func(n *yaml.Node, key string)

func (r *reader) fields(v reflect.Value) fields {
	known, below := fields{}, map[string]fields{}
	for i := range v.NumField() {
		tag := v.Type().Field(i).Tag
		read := func(n *yaml.Node, key string) { r.decode(n, v.Field(i), key, tag) }
		name := tag.Get("yaml")
		section, key, deep := strings.Cut(name, ".")
		switch {
		case name == "":
		case name == ",inline":
			maps.Copy(known, r.fields(v.Field(i)))
		case !deep:
			known[name] = read
		case below[section] == nil:
			all := fields{key: read}
			below[section] = all
			known[section] = func(n *yaml.Node, key string) { r.section(n, key, all) }
		default:
			below[section][key] = read
		}
	}
	return known
}

func (r *reader) section(n *yaml.Node, key string, known fields) {
	if !r.is(n, key, yaml.MappingNode, mapTag, "a section") {
		return
	}
	r.pairs(n, key, func(name, value *yaml.Node) {
		at := join(key, name.Value)
		read, ok := known[name.Value]
		switch {
		case ok:
			r.places[at] = place{r.file, name}
			read(value, at)
		case slices.Contains(retired, at):
			r.warnings = append(r.warnings, &Error{File: r.file, Line: name.Line, Key: at, Problem: "has no effect; the next release will reject it"})
		default:
			r.mistake(name, at, "unknown key; known here: %s", strings.Join(slices.Sorted(maps.Keys(known)), ", "))
		}
	})
}

// decode reads a value into v and reports mistakes. Without a value v stays.
func (r *reader) decode(n *yaml.Node, v reflect.Value, key string, tag reflect.StructTag) {
	before := len(r.mistakes)
	var err error
	switch into := v.Addr().Interface().(type) {
	case *bool:
		if r.is(n, key, yaml.ScalarNode, flagTag, "true or false") && n.Decode(into) != nil {
			err = fmt.Errorf("expected true or false, got %s", describe(n))
		}
	case *int:
		if r.is(n, key, yaml.ScalarNode, intTag, "a number") {
			*into, err = number(n, tag)
		}
	case *time.Duration:
		if expected := "a duration with its unit, such as 60s or 5m"; r.is(n, key, yaml.ScalarNode, textTag, expected) {
			*into, err = bounded(n, tag, time.ParseDuration, expected, "")
		}
	case *int64:
		if expected := "a number of bytes, such as 500k or 10m"; isInt(n) || r.is(n, key, yaml.ScalarNode, textTag, expected) {
			*into, err = bounded(n, tag, parseBytes, expected, " bytes")
		}
	case *uint64:
		size := int64(*into)
		r.decode(n, reflect.ValueOf(&size).Elem(), key, tag)
		*into = uint64(size)
	case *float64:
		if expected := "a number of cores, such as 2 or 0.5"; isInt(n) || r.is(n, key, yaml.ScalarNode, floatTag, expected) {
			if *into, err = strconv.ParseFloat(n.Value, 64); err != nil || !(*into >= 0 && *into <= math.MaxUint16) {
				err = fmt.Errorf("expected %s, got %s", expected, describe(n))
			}
		}
	case *any:
		*into, err = label(n)
	case encoding.TextUnmarshaler:
		if s, ok := r.text(n, key, tag); ok {
			err = into.UnmarshalText([]byte(s))
		}
	case *policy.Window:
		if s, ok := r.text(n, key, tag); ok {
			*into, err = policy.ParseWindow(s, time.Local)
		}
	case *policy.PortRange:
		if *into, err = policy.ParsePorts(n.Value); err != nil || n.Kind != yaml.ScalarNode {
			err = fmt.Errorf("expected a port from 1 to 65535, or a range such as 8000-8999, got %s", describe(n))
		}
	case *capability.Interface:
		if s, ok := r.text(n, key, tag); ok {
			into.Kind = capability.Kind(s)
		}
	default:
		r.compound(n, v, key, tag)
		if len(r.mistakes) == before {
			err = complete(into)
		}
	}
	if err != nil {
		r.mistake(n, key, "%v", err)
	}
}

func (r *reader) compound(n *yaml.Node, v reflect.Value, key string, tag reflect.StructTag) {
	switch v.Kind() {
	case reflect.String:
		if s, ok := r.text(n, key, tag); ok {
			v.SetString(s)
		}
	case reflect.Struct:
		r.section(n, key, r.fields(v))
	case reflect.Map:
		r.table(n, v, key, tag)
	case reflect.Slice:
		r.list(n, v, key, tag)
	case reflect.Pointer:
		p := reflect.New(v.Type().Elem())
		r.decode(n, p.Elem(), key, tag)
		if n.Kind == yaml.MappingNode {
			v.Set(p)
		}
	default:
		panic("no value of the configuration is a " + v.Type().String())
	}
}

// table reads a section with the operator's keys. Entries that the file does not set stay.
func (r *reader) table(n *yaml.Node, v reflect.Value, key string, tag reflect.StructTag) {
	if !r.is(n, key, yaml.MappingNode, mapTag, "a section") {
		return
	}
	if given := len(n.Content) / 2; given > maxTable {
		r.mistake(n, key, "expected at most %d entries, got %d", maxTable, given)
		return
	}
	r.pairs(n, key, func(name, value *yaml.Node) {
		at := join(key, name.Value)
		if err := checks[tag.Get("names")](name.Value); err != nil {
			r.mistake(name, at, "%v", err)
			return
		}
		item := reflect.New(v.Type().Elem()).Elem()
		r.decode(value, item, at, tag)
		if value.ShortTag() == nullTag && item.Kind() != reflect.Struct {
			return
		}
		if v.IsNil() {
			v.Set(reflect.MakeMap(v.Type()))
		}
		v.SetMapIndex(reflect.ValueOf(name.Value), item)
	})
}

// list reads a list, which replaces the existing one.
func (r *reader) list(n *yaml.Node, v reflect.Value, key string, tag reflect.StructTag) {
	kind, one, some := "a list", "text", "values"
	if isSection(v.Type().Elem()) {
		kind, one, some = "a list of sections", "a section", "sections"
	}
	before := len(r.mistakes)
	if r.is(n, key, yaml.SequenceNode, listTag, kind) {
		if most, err := strconv.Atoi(tag.Get("most")); err != nil || len(n.Content) > most {
			r.mistake(n, key, "expected at most %d %s, got %d", most, some, len(n.Content))
			return
		}
		v.SetZero()
		if len(n.Content) > 0 || tag.Get("empty") == "kept" {
			v.Set(reflect.MakeSlice(v.Type(), len(n.Content), len(n.Content)))
		}
		for i, item := range n.Content {
			at := fmt.Sprintf("%s[%d]", key, i)
			if item.ShortTag() == nullTag {
				r.mistake(item, at, "expected %s, got nothing", one)
				continue
			}
			r.decode(item, v.Index(i), at, tag)
		}
	}
	if texts, ok := v.Interface().([]string); ok && len(r.mistakes) == before && tag.Get("all") != "" {
		if err := lists[tag.Get("all")](texts); err != nil {
			r.mistake(n, key, "%v", err)
		}
	}
}

func isSection(t reflect.Type) bool {
	return t.Kind() == reflect.Struct && t.Field(0).Tag.Get("yaml") != ""
}

// text returns the text of a value, and whether it is valid.
//
// A provisioning file names the files next to it without a path: it comes from outside, and must
// not make the device send its own files.
func (r *reader) text(n *yaml.Node, key string, tag reflect.StructTag) (string, bool) {
	if !r.is(n, key, yaml.ScalarNode, textTag, "text (in quotes if it looks like something else)") {
		return "", false
	}
	is, optional := strings.CutSuffix(tag.Get("is"), "?")
	var err error
	words := strings.Fields(tag.Get("one"))
	switch {
	case len(words) > 0 && !slices.Contains(words, n.Value):
		err = fmt.Errorf("expected %s, got %s", strings.Join(words, " or "), quote(n.Value))
	case is == "" || optional && n.Value == "":
	case r.enrols != nil && slices.Contains(named, is) && n.Value != "" && !strings.Contains(n.Value, "://"):
		if err = fileName(n.Value); err == nil {
			r.enrols.names = append(r.enrols.names, n.Value)
			return filepath.Join(r.enrols.place, n.Value), true
		}
	default:
		err = checks[is](n.Value)
	}
	if err != nil {
		r.mistake(n, key, "%v", err)
	}
	return n.Value, err == nil
}

func complete(v any) error {
	switch v := v.(type) {
	case *policy.Override:
		switch {
		case len(v.Deployments) == 0 && len(v.Labels) == 0:
			return errors.New("set deployments or labels, which select the deployments")
		case v.Approval == "" && v.Windows == nil && v.Rollback == "" && v.Hook == nil:
			return errors.New("set approval, windows, rollback or hook")
		}
	case *capability.Peripheral:
		if v.Kind == "" {
			return errors.New("set the type of the peripheral")
		}
	case *image.Registry:
		if (v.Certificate == "") != (v.Key == "") {
			return errors.New("set certificate and key together")
		}
	}
	return nil
}

func isInt(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.ShortTag() == intTag }

func number(n *yaml.Node, tag reflect.StructTag) (int, error) {
	least, lowest := strconv.Atoi(tag.Get("least"))
	most, highest := strconv.Atoi(tag.Get("most"))
	v, err := strconv.Atoi(n.Value)
	if errors.Join(lowest, highest, err) != nil || v < least || v > most {
		return 0, fmt.Errorf("expected a number from %d to %d, got %s", least, most, describe(n))
	}
	return v, nil
}

// bounded reads a value with a unit. Bounds missing in the tag do not apply.
func bounded[T int64 | time.Duration](n *yaml.Node, tag reflect.StructTag, parse func(string) (T, error), expected, unit string) (T, error) {
	v, err := parse(n.Value)
	if err != nil {
		return 0, fmt.Errorf("expected %s, got %s", expected, describe(n))
	}
	if least, err := parse(tag.Get("least")); err == nil && v < least {
		return 0, fmt.Errorf("expected at least %v%s, got %v", least, unit, v)
	}
	if most, err := parse(tag.Get("most")); err == nil && v > most {
		return 0, fmt.Errorf("expected at most %v%s, got %v", most, unit, v)
	}
	return v, nil
}

// maxBytes exceeds any device.
const maxBytes = 1 << 50

// units are those of Compose files and of the standard. All are binary.
var units = map[string]int64{
	"": 1, "b": 1,
	"k": 1 << 10, "kb": 1 << 10, "ki": 1 << 10, "kib": 1 << 10,
	"m": 1 << 20, "mb": 1 << 20, "mi": 1 << 20, "mib": 1 << 20,
	"g": 1 << 30, "gb": 1 << 30, "gi": 1 << 30, "gib": 1 << 30,
	"t": 1 << 40, "tb": 1 << 40, "ti": 1 << 40, "tib": 1 << 40,
}

// parseBytes reads a number of bytes, such as 500k, 10m, 256KiB or 32Mi.
func parseBytes(s string) (int64, error) {
	s = strings.ToLower(s)
	digits := strings.TrimRight(s, "kmgtib")
	v, err := strconv.ParseInt(digits, 10, 64)
	unit := units[s[len(digits):]]
	if err != nil || unit == 0 || v < 0 || v > maxBytes/unit {
		return 0, strconv.ErrSyntax
	}
	return v * unit, nil
}

// label reads a capability label: text, number, boolean, or a list of texts or numbers (CAP-09).
func label(n *yaml.Node) (v any, err error) {
	expected := errors.New("expected text, a number, true or false, or a list of texts or of numbers")
	switch tag := n.ShortTag(); {
	case n.Kind == yaml.SequenceNode:
		list := make([]any, len(n.Content))
		for i, item := range n.Content {
			if item.Kind != yaml.ScalarNode || item.ShortTag() == flagTag || (item.ShortTag() == textTag) != (n.Content[0].ShortTag() == textTag) {
				return nil, expected
			}
			if list[i], err = label(item); err != nil {
				return nil, err
			}
		}
		return list, nil
	case n.Kind == yaml.ScalarNode && tag == textTag:
		return n.Value, line(n.Value)
	case n.Kind != yaml.ScalarNode || tag != intTag && tag != floatTag && tag != flagTag || n.Decode(&v) != nil:
		return nil, expected
	}
	if f, ok := v.(float64); ok && (math.IsNaN(f) || math.IsInf(f, 0)) {
		return nil, expected
	}
	return v, nil
}
