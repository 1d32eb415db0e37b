package build

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/margolite/margolite/test/expect"
)

// Only what Go says by mistake at the end of the time is no finding.
func TestFuzzingFailsOfEverythingButTheEndOfItsTime(t *testing.T) {
	const (
		elapsed = "fuzz: elapsed: 0s, gathering baseline coverage: 0/7 completed\nfuzz: elapsed: 5s, execs: 61440 (12288/sec), new interesting: 4 (total: 11)\n"
		failed  = "--- FAIL: FuzzParser (5.04s)\n"
		ended   = "    context deadline exceeded\n"
	)
	for name, c := range map[string]struct {
		said   string
		status int
		passes bool
	}{
		"nothing found":               {elapsed + "PASS\n", 0, true},
		"the end of the time":         {elapsed + failed + ended + "FAIL\n", 1, true},
		"a failing input":             {elapsed + failed + "    --- FAIL: FuzzParser (0.00s)\n        parser_test.go:9: it is 8\n    \n    Failing input written to testdata/fuzz/FuzzParser/771e938e4458e983\n    To re-run:\n    go test -run=FuzzParser/771e938e4458e983\nFAIL\n", 1, false},
		"one that is late":            {elapsed + failed + "    --- FAIL: FuzzParser (0.00s)\n        parser_test.go:9: context deadline exceeded\n    \n    Failing input written to testdata/fuzz/FuzzParser/771e938e4458e983\nFAIL\n", 1, false},
		"one that is being shortened": {elapsed + "fuzz: minimizing 34-byte failing input file\n" + failed + ended + "FAIL\n", 1, false},
		"an end and more":             {elapsed + failed + ended + "    cannot write corpus\nFAIL\n", 1, false},
		"a seed that fails":           {"--- FAIL: FuzzParser (0.00s)\n    --- FAIL: FuzzParser/seed#0 (0.00s)\n        parser_test.go:9: context deadline exceeded\nFAIL\n", 1, false},
		"another target":              {elapsed + "--- FAIL: FuzzOther (5.04s)\n" + ended + "FAIL\n", 1, false},
		"a program that crashes":      {elapsed + failed + ended + "FAIL\n", 2, false},
		"a program that says nothing": {"", 1, false},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			program := filepath.Join(dir, "program")
			script := fmt.Sprintf("#!/bin/sh\ncat <<'END'\n%sEND\nexit %d\n", c.said, c.status)
			expect.Check(t, os.WriteFile(program, []byte(script), 0o755))
			out, err := fuzzTarget(t, dir, program, "FuzzParser")
			if passes := err == nil; passes != c.passes {
				t.Errorf("it ended with %v, want success: %v\n%s", err, c.passes, out)
			}
			expect.True(t, strings.Contains(out, c.said), "it said %q, want all that the program says", out)
		})
	}
}

// What fuzzing really finds fails it, and is kept.
func TestFuzzingFindsWhatFails(t *testing.T) {
	if testing.Short() {
		t.Skip("in make test-all: builds for fuzzing")
	}
	dir := t.TempDir()
	for name, content := range map[string]string{
		"go.mod": "module parser\n\ngo 1.26\n",
		"parser_test.go": `package parser

import "testing"

func FuzzFails(f *testing.F) {
	f.Add("a")
	f.Fuzz(func(t *testing.T, s string) {
		if s != "a" {
			t.Fatal("context deadline exceeded")
		}
	})
}

func FuzzPasses(f *testing.F) {
	f.Add("a")
	f.Fuzz(func(*testing.T, string) {})
}
`,
	} {
		expect.Check(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644))
	}
	program := filepath.Join(dir, "parser.test")
	build := exec.Command("go", "test", "-c", "-fuzz", ".", "-o", program)
	build.Dir = dir
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if out, err := fuzzTarget(t, dir, program, "FuzzPasses"); err != nil {
		t.Errorf("what passes fails: %v\n%s", err, out)
	}
	out, err := fuzzTarget(t, dir, program, "FuzzFails")
	expect.True(t, err != nil, "what fails passes\n%s", out)
	if found, _ := filepath.Glob(filepath.Join(dir, "testdata/fuzz/FuzzFails/*")); len(found) != 1 {
		t.Errorf("%q was kept\n%s", found, out)
	}
}

// fuzzTarget fuzzes a target of a test program as `make fuzz` does.
func fuzzTarget(t *testing.T, dir, program, target string) (string, error) {
	script := expect.Value(filepath.Abs("fuzztarget"))(t)
	out, err := exec.Command(script, dir, program, target, "1000x", t.TempDir()).CombinedOutput()
	return string(out), err
}
