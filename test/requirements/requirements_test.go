package main

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
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
	for _, r := range all {
		if !slices.ContainsFunc(areas, func(a struct{ id, heading string }) bool { return a.id == area(r.ID) }) {
			t.Errorf("there is no heading for %s, which the table lacks", r.ID)
		}
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
	if err != nil {
		t.Fatal(err)
	}
	for name, file := range documents {
		if !tests[name] {
			t.Errorf("%s names %s, which is no test", file, name)
		}
	}
}

func TestTableSaysWhatIsMissing(t *testing.T) {
	all, err := load([]byte(`
- {id: DS-02, text: b | c, level: MUST, revisions: rc3}
- {id: DS-01, text: a, level: MUST, revisions: all, note: mostly}
- {id: GW-01, text: d, level: MAY, revisions: rc3, untested: "does not apply: none here"}
- {id: OBS-01, text: e, level: MUST, revisions: rc3, untested: "later: soon"}
- {id: OBS-02, text: f, level: MUST, revisions: rc3, untested: "later: soon"}
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
		"5 requirements: 1 have tests, 3 a reason to have none, 1 lack a test.",
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
		"no id":             "{id: DS-1, text: a, level: MUST, revisions: all}",
		"no text":           "{id: DS-01, level: MUST, revisions: all}",
		"an unknown key":    "{id: DS-01, text: a, level: MUST, revisions: all, source: b}",
		"a note on no test": "{id: DS-01, text: a, level: MUST, revisions: all, untested: b, note: c}",
		"the same twice":    "{id: DS-01, text: a, level: MUST, revisions: all}\n- {id: DS-01, text: a, level: MUST, revisions: all}",
	} {
		t.Run(name, func(t *testing.T) {
			if all, err := load([]byte("- " + entry + "\n")); err == nil {
				t.Errorf("read as %+v", all)
			}
		})
	}
}
