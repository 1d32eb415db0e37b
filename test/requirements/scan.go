package main

import (
	"cmp"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
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

// add takes up the tests of one file. Subtests count in helpers, too, under
// their name.
func (s shownBy) add(file string, parsed *ast.File) {
	global := make(map[string]*ast.CompositeLit)
	for _, decl := range parsed.Decls {
		if _, ok := decl.(*ast.GenDecl); ok {
			variablesOf(decl, global)
		}
	}
	for _, decl := range parsed.Decls {
		f, ok := decl.(*ast.FuncDecl)
		if !ok || f.Body == nil {
			continue
		}
		t := test{file: file, name: f.Name.Name}
		if f.Recv == nil {
			for _, id := range idsOfFunction(t.name) {
				s[id] = append(s[id], t)
			}
		}
		variables := maps.Clone(global)
		variablesOf(f.Body, variables)
		for _, name := range subtests(f.Body, variables) {
			for _, id := range idsOfName(name) {
				t.sub = strings.ReplaceAll(name, " ", "_")
				if !slices.Contains(s[id], t) {
					s[id] = append(s[id], t)
				}
			}
		}
	}
}

var (
	functionIDs = regexp.MustCompile(`^Test((?:` + areaPattern + `\d\d)+)`)
	nameIDs     = regexp.MustCompile(`^(?:` + areaPattern + `-\d\d(?:, ?|: ?| |$))+`)
	eachID      = regexp.MustCompile(`(` + areaPattern + `)-?(\d\d)`)
)

// idsOfFunction are the ids at the beginning of the name of a test.
func idsOfFunction(name string) []string {
	if m := functionIDs.FindStringSubmatch(name); m != nil {
		return ids(m[1])
	}
	return nil
}

// idsOfName are the ids at the beginning of the name of a subtest.
func idsOfName(name string) []string { return ids(nameIDs.FindString(name)) }

func ids(text string) []string {
	var all []string
	for _, m := range eachID.FindAllStringSubmatch(text, -1) {
		all = append(all, m[1]+"-"+m[2])
	}
	return all
}

// variablesOf adds the tables that have names in a part of a file.
func variablesOf(part ast.Node, variables map[string]*ast.CompositeLit) {
	ast.Inspect(part, func(n ast.Node) bool {
		var names []ast.Expr
		var values []ast.Expr
		switch n := n.(type) {
		case *ast.AssignStmt:
			names, values = n.Lhs, n.Rhs
		case *ast.ValueSpec:
			for _, name := range n.Names {
				names = append(names, name)
			}
			values = n.Values
		default:
			return true
		}
		if len(names) != len(values) {
			return true
		}
		for i, name := range names {
			if table, ok := values[i].(*ast.CompositeLit); ok {
				if ident, ok := name.(*ast.Ident); ok {
					variables[ident.Name] = table
				}
			}
		}
		return true
	})
}

// subtests are the names of the subtests that are run in a function, as far as
// they are written there.
func subtests(body *ast.BlockStmt, variables map[string]*ast.CompositeLit) []string {
	var names []string
	var loops []*ast.RangeStmt
	var visit func(n ast.Node) bool
	visit = func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.RangeStmt:
			loops = append(loops, n)
			ast.Inspect(n.Body, visit)
			loops = loops[:len(loops)-1]
			return false
		case *ast.CallExpr:
			if called, ok := n.Fun.(*ast.SelectorExpr); ok && called.Sel.Name == "Run" && len(n.Args) == 2 {
				names = append(names, namesOf(n.Args[0], loops, variables)...)
			}
		}
		return true
	}
	ast.Inspect(body, visit)
	return names
}

// namesOf are the names that an expression gives to subtests: a text or its
// beginning, or what a table has in the place of the name.
func namesOf(name ast.Expr, loops []*ast.RangeStmt, variables map[string]*ast.CompositeLit) []string {
	switch name := name.(type) {
	case *ast.BasicLit:
		return textOf(name)
	case *ast.BinaryExpr:
		return namesOf(name.X, loops, variables)
	case *ast.CallExpr: // fmt.Sprintf
		if len(name.Args) > 0 {
			return namesOf(name.Args[0], loops, variables)
		}
	case *ast.Ident:
		for _, loop := range slices.Backward(loops) {
			if isIdent(loop.Key, name.Name) {
				return fieldOf(tableOf(loop, variables), "")
			}
			if isIdent(loop.Value, name.Name) {
				return elementsOf(tableOf(loop, variables))
			}
		}
	case *ast.SelectorExpr:
		for _, loop := range slices.Backward(loops) {
			if row, ok := name.X.(*ast.Ident); ok && isIdent(loop.Value, row.Name) {
				return fieldOf(tableOf(loop, variables), name.Sel.Name)
			}
		}
	}
	return nil
}

func isIdent(e ast.Expr, name string) bool {
	ident, ok := e.(*ast.Ident)
	return ok && ident.Name == name
}

// tableOf is what a loop goes through, or nil where that is not written down.
func tableOf(loop *ast.RangeStmt, variables map[string]*ast.CompositeLit) *ast.CompositeLit {
	switch x := loop.X.(type) {
	case *ast.CompositeLit:
		return x
	case *ast.Ident:
		return variables[x.Name]
	}
	return nil
}

// fieldOf are the texts of a field of each row of a table, the first field where
// the rows name none; or the keys of the rows where no field is asked for.
func fieldOf(table *ast.CompositeLit, field string) []string {
	if table == nil {
		return nil
	}
	var names []string
	for _, element := range table.Elts {
		pair, keyed := element.(*ast.KeyValueExpr)
		if field == "" {
			if keyed {
				names = append(names, textOf(pair.Key)...)
			}
			continue
		}
		if keyed {
			element = pair.Value
		}
		row, ok := element.(*ast.CompositeLit)
		if !ok || len(row.Elts) == 0 {
			continue
		}
		if _, named := row.Elts[0].(*ast.KeyValueExpr); !named {
			names = append(names, textOf(row.Elts[0])...)
			continue
		}
		for _, member := range row.Elts {
			if pair, ok := member.(*ast.KeyValueExpr); ok && isIdent(pair.Key, field) {
				names = append(names, textOf(pair.Value)...)
			}
		}
	}
	return names
}

// elementsOf are the texts of a list.
func elementsOf(table *ast.CompositeLit) []string {
	if table == nil {
		return nil
	}
	var names []string
	for _, element := range table.Elts {
		names = append(names, textOf(element)...)
	}
	return names
}

// textOf is the text of a literal, or the one that an expression begins with.
func textOf(e ast.Expr) []string {
	switch e := e.(type) {
	case *ast.BasicLit:
		if text, err := strconv.Unquote(e.Value); err == nil && e.Kind == token.STRING {
			return []string{text}
		}
	case *ast.BinaryExpr:
		return textOf(e.X)
	}
	return nil
}
