package main

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"

	"github.com/margolite/margolite/test/expect"
)

const root = "../.."

// The table on disk is the one that the tests of this module make, each
// requirement has a test or a reason, and no test names anything else.
func TestTableAgreesWithTheTests(t *testing.T) {
	all := expect.Value(load(definitions))(t)
	for _, r := range all {
		if !slices.ContainsFunc(areas, func(a struct{ id, heading string }) bool { return a.id == area(r.ID) }) {
			t.Errorf("there is no heading for %s, which the table lacks", r.ID)
		}
	}
	shown := expect.Value(scan(root))(t)
	for _, problem := range problems(all, shown) {
		t.Error(problem)
	}
	now := expect.Value(os.ReadFile(filepath.Join(root, tableFile)))(t)
	expect.True(t, bytes.Equal(now, table(all, shown)), "%s is not what the tests say, run: go run ./test/requirements", tableFile)
}

// What a document calls a test is one.
func TestDocumentsNameTestsThatExist(t *testing.T) {
	declared, named := regexp.MustCompile(`(?m)^func (Test\w+)\(`), regexp.MustCompile("`(Test[A-Z]\\w+)`")
	tests, documents := make(map[string]bool), make(map[string]string)
	err := filepath.WalkDir(root, func(file string, _ fs.DirEntry, err error) error {
		var text []byte
		if ext := filepath.Ext(file); err == nil && (ext == ".md" || ext == ".go") {
			text, err = os.ReadFile(file)
		}
		for _, match := range declared.FindAllSubmatch(text, -1) {
			tests[string(match[1])] = true
		}
		for _, match := range named.FindAllSubmatch(text, -1) {
			documents[string(match[1])] = file
		}
		return err
	})
	expect.Check(t, err)
	for name, file := range documents {
		expect.True(t, tests[name], "%s names %s, which is no test", file, name)
	}
}
