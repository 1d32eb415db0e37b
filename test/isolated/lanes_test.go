package isolated_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/margolite/margolite/test/expect"
)

// Tests in lanes run at once, and what is wrong with one of them is told as of
// tests that run in one process, and of that one alone.
func TestLanes(t *testing.T) {
	if testing.Short() {
		t.Skip("in make test-all: five runs of go test")
	}
	needRoot(t)
	if found, err := filepath.Glob("/sys/fs/cgroup/*/cgroup.procs"); err != nil || len(found) == 0 {
		t.Skip("needs control groups of version 1")
	}
	for _, c := range []struct {
		alone     string // what TestAlone does
		arguments []string
		tests     map[string]string // their results
		says      string
	}{
		{alone: "passes", tests: map[string]string{"": "pass", "TestLeft": "pass", "TestRight": "pass", "TestAlone": "pass", "TestAlone/below": "pass"}},
		{alone: "fails", tests: map[string]string{"": "fail", "TestLeft": "pass", "TestRight": "pass", "TestAlone": "fail", "TestAlone/below": "fail"}, says: "What failed:\nTestAlone: exit status 1\n    lanes_test.go:42: it is not so"},
		{alone: "crashes", tests: map[string]string{"": "fail", "TestLeft": "pass", "TestRight": "pass", "TestAlone": "fail", "TestAlone/below": "fail"}, says: "unexpected call to os.Exit(0)"},
		{alone: "hangs", arguments: []string{"-timeout", "5s"}, tests: map[string]string{"": "fail", "TestLeft": "pass", "TestRight": "pass"}, says: "test timed out"},
		{alone: "passes", arguments: []string{"-run", "TestAlone/below"}, tests: map[string]string{"": "pass", "TestAlone": "pass", "TestAlone/below": "pass"}},
	} {
		t.Run(strings.Join(append([]string{c.alone}, c.arguments...), " "), func(t *testing.T) {
			cmd := exec.CommandContext(t.Context(), "go", slices.Concat([]string{"test", "-json", "-count=1"}, c.arguments, []string{"./testdata/lanes"})...)
			cmd.Env = slices.DeleteFunc(os.Environ(), func(e string) bool { return strings.HasPrefix(e, "MARGOLITE_TEST_") })
			cmd.Env = append(cmd.Env, "ALONE="+c.alone, "MEETING="+t.TempDir())
			out, err := cmd.Output()
			if passed := err == nil; passed != (c.tests[""] == "pass") {
				t.Errorf("it ended with %v", err)
			}
			results, said := map[string]string{}, ""
			lines := bufio.NewScanner(bytes.NewReader(out))
			for lines.Scan() {
				var e struct{ Action, Test, Output string }
				if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
					t.Fatalf("%v: %s", err, lines.Bytes())
				}
				switch e.Action {
				case "pass", "fail", "skip":
					results[e.Test] = e.Action
				case "output":
					said += e.Output
				}
			}
			for name, want := range c.tests {
				if results[name] != want {
					t.Errorf("result of %q is %q, want %s", name, results[name], want)
				}
			}
			expect.True(t, len(results) == len(c.tests), "results are %v, want %v", results, c.tests)
			expect.True(t, strings.Contains(said, c.says), "it said\n%s", said)
		})
	}
}
