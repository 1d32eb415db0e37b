package main

import (
	"bytes"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const root = "../.."

// The table on disk is the one that the tests of this module make, each
// requirement has a test or a reason, and no test names anything else.
func TestTableAgreesWithTheTests(t *testing.T) {
	all, err := load(definitions)
	if err != nil {
		t.Fatal(err)
	}
	shown, err := scan(root)
	if err != nil {
		t.Fatal(err)
	}
	for _, problem := range problems(all, shown) {
		t.Error(problem)
	}
	now, err := os.ReadFile(filepath.Join(root, tableFile))
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(now, table(all, shown)) {
		t.Errorf("%s is not what the tests say, run: go run ./test/requirements", tableFile)
	}
}

func TestIDsAreFoundWhereTheyAreMeant(t *testing.T) {
	dir := t.TempDir()
	files := map[string]string{
		"a/a_test.go": `package a
func TestDS01DS02Something(t *testing.T) {}
func TestAnIDIsNotMeant(t *testing.T) {}
func TestADevice(t *testing.T) {}
func TestID1Digit(t *testing.T) {}
func BenchmarkDS03(b *testing.B) {}
func (s *suite) TestDS04(t *testing.T) {}
func TestTables(t *testing.T) {
	t.Run("ST-01 in a call", f)
	t.Run("ST-02, ST-03: several", f)
	t.Run("ST-04", f)
	t.Run("about ST-05", f)
	t.Run("ST-06x", f)
	t.Run("ST-07 "+backend, f)
	t.Run(fmt.Sprintf("ST-08 %d", 1), f)
	for name, row := range map[string]struct{ requirement string }{
		"AD-01 in a map": {"AD-02"},
	} {
		t.Run(name, f)
	}
	for _, test := range []struct{ name, want string }{
		{"AD-03 first", "AD-04"},
		{want: "AD-05", name: "AD-06 by name"},
	} {
		onBoth(t, func(t *testing.T) { t.Run(test.name+backend, f) })
	}
	cases := []test{{"AD-07 in a variable", "AD-08"}}
	for _, c := range cases {
		t.Run(c.name, f)
	}
	for _, name := range []string{"AD-09 in a list"} {
		t.Run(name, f)
	}
	for want, text := range map[string]string{"AD-10": "AD-11"} {
		check(want, text)
	}
}
func helper(t *testing.T) { t.Run("PKG-01 in a helper", f) }
func TestOtherTables(t *testing.T) {
	cases := []test{{"AD-12 in another variable of that name", ""}}
	for _, c := range cases {
		for _, name := range []string{"PKG-02 nested"} {
			t.Run(name, func(t *testing.T) { t.Run(c.name, f) })
		}
	}
	for _, row := range table {
		t.Run(row.name, f)
	}
}
var table = []test{{name: "PKG-03 outside"}}
`,
		"b_test.go":           "package b\nfunc TestERR01(t *testing.T) {}\n",
		"a/a.go":              "package a\nfunc TestERR02(t *testing.T) {}\n",
		"testdata/c_test.go":  "package c\nfunc TestERR03(t *testing.T) {}\n",
		"a/.hidden/d_test.go": "package d\nfunc TestERR04(t *testing.T) {}\n",

		"test/wfmsim/api/e_test.go": "package api\nfunc TestERR05(t *testing.T) {}\n",
	}
	for name, content := range files {
		if err := os.MkdirAll(filepath.Join(dir, filepath.Dir(name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	shown, err := scan(dir)
	if err != nil {
		t.Fatal(err)
	}
	got := make(map[string]string)
	for id, tests := range shown {
		var labels []string
		for _, t := range tests {
			labels = append(labels, t.label())
		}
		got[id] = strings.Join(labels, " ")
	}
	want := map[string]string{
		"DS-01":  "a.TestDS01DS02Something",
		"DS-02":  "a.TestDS01DS02Something",
		"ST-01":  "a.TestTables/ST-01_in_a_call",
		"ST-02":  "a.TestTables/ST-02,_ST-03:_several",
		"ST-03":  "a.TestTables/ST-02,_ST-03:_several",
		"ST-04":  "a.TestTables/ST-04",
		"ST-07":  "a.TestTables/ST-07_",
		"ST-08":  "a.TestTables/ST-08_%d",
		"AD-01":  "a.TestTables/AD-01_in_a_map",
		"AD-03":  "a.TestTables/AD-03_first",
		"AD-06":  "a.TestTables/AD-06_by_name",
		"AD-07":  "a.TestTables/AD-07_in_a_variable",
		"AD-09":  "a.TestTables/AD-09_in_a_list",
		"PKG-01": "a.helper/PKG-01_in_a_helper",
		"AD-12":  "a.TestOtherTables/AD-12_in_another_variable_of_that_name",
		"PKG-02": "a.TestOtherTables/PKG-02_nested",
		"PKG-03": "a.TestOtherTables/PKG-03_outside",
		"ERR-01": "TestERR01",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("found (-want +got):\n%s", diff)
	}
}

func TestTableSaysWhatIsMissing(t *testing.T) {
	all, err := load([]byte(`
- {id: DS-02, text: b | c, level: MUST, revisions: rc3}
- {id: DS-01, text: a, level: MUST, revisions: all, note: mostly}
- {id: GW-01, text: d, level: MAY, revisions: rc3, applies: no, why: none here}
- {id: OBS-01, text: e, level: MUST, revisions: rc3, later: soon}
- {id: OBS-02, text: f, level: MUST, revisions: rc3, later: soon}
`))
	if err != nil {
		t.Fatal(err)
	}
	shown := shownBy{
		"DS-01":  {{file: "test/e2e/a_test.go", name: "TestDS01"}, {file: "agent/b_test.go", name: "TestB", sub: "DS-01_x"}},
		"OBS-02": {{file: "a/a_test.go", name: "TestOBS02"}},
		"DS-99":  {{file: "a/a_test.go", name: "TestDS99"}},
	}
	text := string(table(all, shown))
	for _, line := range []string{
		"5 requirements: 1 have tests, 1 do not concern this device, 2 come later, 1 lack a test.",
		"| DS-01 | all | MUST | a | [`test/e2e.TestDS01`](e2e/a_test.go)<br>[`agent.TestB/DS-01_x`](../agent/b_test.go)<br>(mostly) |\n| DS-02 |",
		`| DS-02 | rc3 | MUST | b \| c | **no test** |`,
		"| GW-01 | rc3 | MAY | d | does not apply: none here |",
		"| OBS-01 | rc3 | MUST | e | later: soon |",
	} {
		if !strings.Contains(text, line) {
			t.Errorf("the table lacks %q:\n%s", line, text)
		}
	}
	want := []string{
		"DS-02 has no test: b | c",
		"OBS-02 has a reason to have no test, and has a.TestOBS02",
		"DS-99 is not a requirement, and a.TestDS99 names it",
	}
	if diff := cmp.Diff(want, problems(all, shown)); diff != "" {
		t.Errorf("problems (-want +got):\n%s", diff)
	}
}

func TestChecklistsThatMakeNoSenseAreRefused(t *testing.T) {
	for name, entry := range map[string]string{
		"no id":                    "{id: DS-1, text: a, level: MUST, revisions: all}",
		"an area that nobody has":  "{id: XX-01, text: a, level: MUST, revisions: all}",
		"no text":                  "{id: DS-01, level: MUST, revisions: all}",
		"an unknown key":           "{id: DS-01, text: a, level: MUST, revisions: all, source: b}",
		"a reason without applies": "{id: DS-01, text: a, level: MUST, revisions: all, why: b}",
		"applies without a reason": "{id: DS-01, text: a, level: MUST, revisions: all, applies: no}",
		"another answer":           "{id: DS-01, text: a, level: MUST, revisions: all, applies: perhaps, why: b}",
		"two reasons":              "{id: DS-01, text: a, level: MUST, revisions: all, applies: no, why: b, later: c}",
		"a note about nothing":     "{id: DS-01, text: a, level: MUST, revisions: all, later: c, note: d}",
		"the same twice":           "{id: DS-01, text: a, level: MUST, revisions: all}\n- {id: DS-01, text: a, level: MUST, revisions: all}",
	} {
		t.Run(name, func(t *testing.T) {
			if all, err := load([]byte("- " + entry + "\n")); err == nil {
				t.Errorf("read as %+v", all)
			}
		})
	}
}

// Every area has a heading, so that no requirement is left out of the table.
func TestEveryAreaIsInTheTable(t *testing.T) {
	all, err := load(definitions)
	if err != nil {
		t.Fatal(err)
	}
	missing := make(map[string]bool)
	for _, r := range all {
		missing[area(r.ID)] = true
	}
	for _, a := range areas {
		delete(missing, a.id)
	}
	if len(missing) > 0 {
		t.Errorf("there are no headings for %v", slices.Sorted(maps.Keys(missing)))
	}
}
