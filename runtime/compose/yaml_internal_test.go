package compose

import (
	"reflect"
	"strings"
	"testing"

	"go.yaml.in/yaml/v4"
)

// A document with tags is written for compose-go to read: nothing in it may change
// on that way.
func FuzzTextOf(f *testing.F) {
	for _, s := range []string{
		"a: b", "a: [1, '2', 3.5, 0x1f, ~, '', yes, 'yes', 1:20, 2001-01-01]", "a: |\n  text\n\n   more\n", "a: {b: [[c], [{d: e}]]}",
		"a: &x {b: c}\nd: {<<: *x, e: *x}\nf: &y [1]\ng: *y", "a: !reset null\nb: !override [c]\nd: !override {e: f}\n- : x", "'': \"\\u2028 \\U0001f600\"",
		"? &k key\n: v\n*k : w", "a: [&z !override {b: c}, &n 'x: y', *n]", "a: !!str 1\nb: !!int '2'\nc: !!float 3\nd: !!binary aGk=", "a: {b: , c}\nd: [&e ]\n: f", "a: {}\nb: []\nc: [[], {}]",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		var node yaml.Node
		var want, got any
		if yaml.Unmarshal([]byte(text), &node) != nil || len(node.Content) != 1 || node.Content[0].Kind != yaml.MappingNode {
			return // no document of ours
		}
		documents, err := parse([]byte(text), &size{}, false, strings.Clone)
		if err != nil {
			return // nothing of it is written
		}
		if err := yaml.Unmarshal([]byte(text), &want); err != nil {
			return // it has no value to compare
		}
		written, err := marshal(node.Content[0])
		if err != nil {
			t.Fatalf("%v, for %q", err, text)
		}
		if err := yaml.Unmarshal(written, &got); err != nil {
			t.Fatalf("%s: %v, for %q", written, err, text)
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s is %v, not %v, for %q", written, got, want, text)
		}
		if again, err := parse(written, &size{}, false, strings.Clone); err != nil || !reflect.DeepEqual(again[0].tree, documents[0].tree) {
			t.Errorf("%s has the trees %v (%v), not %v", written, again, err, documents)
		}
	})
}
