package compose

import (
	"reflect"
	"strings"
	"testing"

	"go.yaml.in/yaml/v4"
)

// Documents are written for compose-go to read: nothing in them may change on that way.
func FuzzTextOf(f *testing.F) {
	for _, s := range []string{
		"a: b", "a: [1, '2', 3.5, 0x1f, ~, '', yes, 'yes', 1:20, 2001-01-01]", "a: |\n  text\n\n   more\n", "a: {b: [[c], [{d: e}]]}",
		"a: &x {b: c}\nd: {<<: *x, e: *x}\nf: &y [1]\ng: *y", "a: !reset null\nb: !override [c]\nd: !override {e: f}\n- : x", "'': \"\\u2028 \\U0001f600\"",
		"? &k key\n: v\n*k : w", "a: [&z !override {b: c}, &n 'x: y', *n]", "a: !!str 1\nb: !!int '2'\nc: !!float 3\nd: !!binary aGk=", "a: {b: , c}\nd: [&e ]\n: f", "a: {}\nb: []\nc: [[], {}]",
		"a: [{null: b}, {: }]", "a: \" V\\nV \\x07\"", "a: !override V\nb: V\nV: c", ": &x\n0: {*x,:}",
	} {
		f.Add(s)
	}
	value := func(_ []string, written string) (string, error) {
		return strings.ReplaceAll(written, "V", " 1\n\t'\"\xff"), nil
	}
	f.Fuzz(func(t *testing.T, text string) {
		_, written, err := (&reading{size: &size{}, value: value}).parse([]byte(text))
		if err != nil {
			return // nothing of it is written
		}
		var want, got map[string]any
		if err := yaml.Unmarshal(written, &got); err != nil && strings.Contains(err.Error(), `"null" already defined`) {
			return // the library takes a null and an alias to one for different keys until they are written
		}
		if !strings.ContainsAny(text, "V!") && strings.Count(string(written), "---\n") == 1 && yaml.Unmarshal([]byte(text), &want) == nil {
			for _, key := range ownKeys {
				delete(want, key)
			}
			clear(got)
			if err := yaml.Unmarshal(written, &got); err != nil || !reflect.DeepEqual(got, want) {
				t.Fatalf("written as %s, which is %v (%v), not %v, for %q", written, got, err, want, text)
			}
		}
		same := func(_ []string, written string) (string, error) { return written, nil }
		_, again, err := (&reading{size: &size{}, value: same}).parse(written)
		if len(written) > 0 && (err != nil || string(again) != string(written)) {
			t.Errorf("%s is written again as %s (%v), for %q", written, again, err, text)
		}
	})
}
