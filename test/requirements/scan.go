package main

import (
	"cmp"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
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
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, file)
		if err != nil {
			return err
		}
		shown.add(filepath.ToSlash(rel), parsed)
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
// begins with ids in a function that runs subtests, for it is the name of one. Those
// of helpers count, too.
func (s shownBy) add(file string, parsed *ast.File) {
	for _, decl := range parsed.Decls {
		f, ok := decl.(*ast.FuncDecl)
		if !ok || f.Body == nil {
			continue
		}
		t := test{file: file, name: f.Name.Name}
		if f.Recv == nil {
			for _, id := range ids(functionIDs.FindString(t.name)) {
				s[id] = append(s[id], t)
			}
		}
		for _, name := range subtests(f.Body) {
			for _, id := range ids(nameIDs.FindString(name)) {
				t.sub = strings.ReplaceAll(name, " ", "_")
				if !slices.Contains(s[id], t) {
					s[id] = append(s[id], t)
				}
			}
		}
	}
}

// subtests are all texts in a function that calls Run, none of another one.
func subtests(body *ast.BlockStmt) (texts []string) {
	runs := false
	ast.Inspect(body, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.CallExpr:
			called, ok := n.Fun.(*ast.SelectorExpr)
			runs = runs || ok && called.Sel.Name == "Run" && len(n.Args) == 2
		case *ast.BasicLit:
			if text, err := strconv.Unquote(n.Value); err == nil && n.Kind == token.STRING {
				texts = append(texts, text)
			}
		}
		return true
	})
	if !runs {
		return nil
	}
	return texts
}

var (
	functionIDs = regexp.MustCompile(`^Test(?:` + areaPattern + `\d\d)+`)
	nameIDs     = regexp.MustCompile(`^(?:` + areaPattern + `-\d\d(?:, ?|: ?| ))+`)
	eachID      = regexp.MustCompile(`(` + areaPattern + `)-?(\d\d)`)
)

func ids(text string) []string {
	var all []string
	for _, m := range eachID.FindAllStringSubmatch(text, -1) {
		all = append(all, m[1]+"-"+m[2])
	}
	return all
}
