package main

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/margolite/margolite/test/expect"
)

func TestStartsOfADayAreCounted(t *testing.T) {
	dir := t.TempDir()
	for n := 1; n <= 3; n++ {
		expect.Equal(t, expect.Value(noteStart(dir))(t), n, "starts")
	}
	for name, c := range map[string]struct {
		lines string
		want  int
	}{
		"lines that are none":          {"soon\n-5\n99999999999999999999\n", 1},
		"a time that is still to come": {"2147483647\n", 1},
		"more than are kept":           {strings.Repeat("PAST\n", 2*maxStarts), maxStarts},
	} {
		now := expect.Value(os.ReadFile(filepath.Join(dir, "starts")))(t)
		past, _, _ := strings.Cut(string(now), "\n")
		check(t, os.WriteFile(filepath.Join(dir, "starts"), []byte(strings.ReplaceAll(c.lines, "PAST", past)), 0o600))
		expect.Equal(t, expect.Value(noteStart(dir))(t), c.want, "starts after %s", name)
	}
}

// What a process ends with that panics is known to the next one.
func TestACrashIsKnownToTheNextProcess(t *testing.T) {
	const variable = "MARGOLITE_TEST_CRASH"
	if dir := os.Getenv(variable); dir != "" {
		expect.Value(keepCrash(dir))(t)
		go func() { panic(errors.New("no loop is left")) }()
		select {} // it ends with that
	}
	dir := t.TempDir()
	cmd := exec.Command(os.Args[0], "-test.run=^TestACrashIsKnownToTheNextProcess$")
	cmd.Env = append(os.Environ(), variable+"="+dir)
	out, err := cmd.CombinedOutput()
	expect.Require(t, err != nil && bytes.Contains(out, []byte("no loop is left")), "the process ended with %v and said\n%s", err, out)
	former := expect.Value(keepCrash(dir))(t)
	expect.True(t, former != nil && strings.Contains(former.Text, "no loop is left"), "the former process ended with %+v", former)
	expect.Equal(t, expect.Value(keepCrash(dir))(t), nil, "the one after it ended with")
}
