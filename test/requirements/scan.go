package main

import (
	"cmp"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// shownBy are the tests that name a requirement, by its id.
type shownBy map[string][]test

// test is a test function, or a subtest of one.
type test struct {
	file string // from the root of the module, with slashes
	name string // of the function
	sub  string // of the subtest; empty: the function itself
}

// label is how the table calls a test.
func (t test) label() string {
	label := t.name
	if dir := path.Dir(t.file); dir != "." {
		label = dir + "." + label
	}
	if t.sub != "" {
		label += "/" + t.sub
	}
	return label
}

// simulator is where the WFM of the tests is. That it is strict shows nothing of
// the device.
const simulator = "test/wfmsim"

// scan finds the tests of a module that name requirements, but for those of the
// simulated WFM.
func scan(root string) (shownBy, error) {
	shown := make(shownBy)
	err := filepath.WalkDir(root, func(file string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := d.Name()
		if d.IsDir() {
			if file == filepath.Join(root, filepath.FromSlash(simulator)) || file != root && (name == "testdata" || strings.HasPrefix(name, ".") || strings.HasPrefix(name, "_")) {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(name, "_test.go") {
			return nil
		}
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, file)
		if err != nil {
			return err
		}
		shown.add(filepath.ToSlash(rel), string(text))
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("cannot look for tests in %s: %w", root, err)
	}
	for _, tests := range shown {
		slices.SortFunc(tests, func(a, b test) int { return cmp.Compare(a.label(), b.label()) })
	}
	return shown, nil
}

// add takes up the tests of one file: functions by their names, and each text that
// begins with ids, for it is the name of a subtest. Those of helpers count, too.
func (s shownBy) add(file, text string) {
	t := test{file: file}
	for line := range strings.Lines(text) {
		if function := functionName.FindStringSubmatch(line); function != nil {
			t = test{file: file, name: function[1]}
			s.show(t, functionIDs.FindString(t.name))
		}
		for _, name := range nameWithIDs.FindAllStringSubmatch(line, -1) {
			t.sub = strings.ReplaceAll(name[1], " ", "_")
			s.show(t, name[2])
		}
	}
}

// show notes that a test shows the requirements that a text names.
func (s shownBy) show(t test, text string) {
	for _, m := range eachID.FindAllStringSubmatch(text, -1) {
		if id := m[1] + "-" + m[2]; !slices.Contains(s[id], t) {
			s[id] = append(s[id], t)
		}
	}
}

var (
	functionName = regexp.MustCompile(`^func (?:\([^)]*\) )?(\w+)\(`)
	functionIDs  = regexp.MustCompile(`^Test(?:` + areaPattern + `\d\d)+`)
	nameWithIDs  = regexp.MustCompile(`"((` + areaPattern + `-\d\d(?:(?:, ?|: ?| )` + areaPattern + `-\d\d)*)(?:, ?|: ?| )[^"]*)"`)
	eachID       = regexp.MustCompile(`(` + areaPattern + `)-?(\d\d)`)
)
