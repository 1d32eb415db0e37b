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

	"github.com/margolite/margolite/cmd/command"
	"github.com/margolite/margolite/test/expect"
)

const root = "../.."

// pages are the README files and their like, by their path in the repository.
func pages(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && slices.Contains([]string{".git", "bin", "dist", "shared"}, d.Name()):
			return fs.SkipDir
		case filepath.Ext(path) == ".md":
			text, err := os.ReadFile(path)
			all[path] = string(text)
			return err
		}
		return nil
	})
	check(t, err)
	return all
}

var (
	link    = regexp.MustCompile(`\]\(([^) ]+)\)|src="([^"]+)"`)
	heading = regexp.MustCompile(`(?m)^#+ (.*)$`)
	code    = regexp.MustCompile("(?s)```.*?\n(.*?)```|`([^`\n]+)`")
)

// anchors are what links to the headings of a page end with.
func anchors(page string) []string {
	var all []string
	for _, m := range heading.FindAllStringSubmatch(page, -1) {
		plain := strings.Map(func(r rune) rune {
			if strings.ContainsRune("`*.,:;?!()[]/'\"", r) {
				return -1
			}
			return r
		}, strings.ToLower(m[1]))
		all = append(all, strings.ReplaceAll(plain, " ", "-"))
	}
	return all
}

func TestLinksLeadSomewhere(t *testing.T) {
	all := pages(t)
	for path, text := range all {
		for _, m := range link.FindAllStringSubmatch(text, -1) {
			to := m[1] + m[2]
			if strings.Contains(to, "://") {
				continue
			}
			file, anchor, _ := strings.Cut(to, "#")
			target := path
			if file != "" {
				target = filepath.Join(filepath.Dir(path), file)
			}
			if _, err := os.Stat(target); err != nil {
				t.Errorf("%s: %v", path, err)
			} else if anchor != "" && !slices.Contains(anchors(all[target]), anchor) {
				t.Errorf("%s: %s has no heading for %q", path, target, anchor)
			}
		}
	}
}

// The README names verbs and flags that margolite has, and targets that make has.
func TestCommandsOfTheREADMEAreKnown(t *testing.T) {
	makefile := expect.Value(os.ReadFile(filepath.Join(root, "Makefile")))(t)
	text := pages(t)[filepath.Join(root, "README.md")]
	if lines := strings.Split(text, "\n"); len(lines) > 200 || slices.ContainsFunc(lines, func(l string) bool { return len([]rune(l)) > 120 }) {
		t.Error("the README has more than 200 lines, or one of more than 120 characters")
	}
	seen := 0
	for _, m := range code.FindAllStringSubmatch(text, -1) {
		for line := range strings.Lines(m[1] + m[2]) {
			line, _, _ = strings.Cut(line, " #")
			line, _, _ = strings.Cut(line, " -- ")
			words := strings.Fields(line)
			if len(words) < 2 {
				continue
			}
			switch words[0] {
			case "make":
				if seen++; !strings.Contains(string(makefile), "\n"+words[1]+":") {
					t.Errorf("make has no target for %q", line)
				}
			case "margolite":
				seen++
				var stderr bytes.Buffer
				c := &cli{in: strings.NewReader(""), out: &bytes.Buffer{}, err: &stderr}
				if code := c.main(t.Context(), append(words[1:], "--help")); code != command.Done {
					t.Errorf("%q: exit code %d, %s", line, code, &stderr)
				}
			}
		}
	}
	expect.True(t, seen >= 20, "found %d commands", seen)
}
