package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/margolite/margolite/test/expect"
)

// imagePrograms are the programs of an image, each with its name and this text.
func imagePrograms(t *testing.T, text string) map[string]*os.File {
	t.Helper()
	dir, programs := t.TempDir(), map[string]*os.File{}
	for _, name := range hostPrograms {
		path := filepath.Join(dir, name)
		check(t, os.WriteFile(path, []byte(name+text), 0o600))
		file := expect.Value(os.Open(path))(t)
		t.Cleanup(func() { _ = file.Close() })
		programs[name] = file
	}
	return programs
}

// The host gets the programs of the image. They are written once, and what runs keeps its own.
func TestTheHostGetsTheProgramsOfTheImage(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "lib", "bin")
	install := func(text string) {
		t.Helper()
		check(t, installPrograms(imagePrograms(t, text), dir))
		for _, name := range hostPrograms {
			path := filepath.Join(dir, name)
			got, err := os.ReadFile(path)
			expect.Require(t, err == nil && string(got) == name+text, "%s is not the image's: %d bytes, %v", name, len(got), err)
			expect.Equal(t, expect.Value(os.Stat(path))(t).Mode(), 0o755, "%s", name)
		}
	}
	// Longer than what is compared at once; the last byte alone tells versions apart.
	long := strings.Repeat("x", 128<<10)
	install(long + "1")

	running := expect.Value(os.Open(filepath.Join(dir, "margolite")))(t)
	defer running.Close()
	before := expect.Value(running.Stat())(t)
	install(long + "1")
	if now, err := os.Stat(running.Name()); err != nil || !os.SameFile(before, now) {
		t.Errorf("the same program was written again: %v", err)
	}

	// A power cut may leave a part of the next one.
	check(t, os.WriteFile(filepath.Join(dir, "margolite.new"), []byte(long+long), 0o600))
	install(long + "2")
	if now, err := os.Stat(running.Name()); err != nil || os.SameFile(before, now) {
		t.Errorf("a program that may be running was written to: %v", err)
	}
	// Files may be damaged, and end where a block ends.
	check(t, os.Truncate(running.Name(), 64<<10))
	install(long + "2")
	install("short")
	left, err := os.ReadDir(dir)
	expect.True(t, err == nil && len(left) == len(hostPrograms), "there are %v, %v", left, err)
}
