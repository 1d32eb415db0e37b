package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/margolite/margolite/test/expect"
)

// Whoever reads a line of check finds it explained.
func TestEveryFindingIsExplained(t *testing.T) {
	page := expect.Value(os.ReadFile("README.md"))(t)
	for dir, c := range map[string]struct {
		least int      // of names that there are
		names []string // how the code names what it looked at
	}{
		".": {18, []string{
			`(?:fine|warning|failure|judge|directory|broken)\(\s*"([^"]+)"`,
			`object (?::?=) "([^"]+?) ?"`, `object := fmt\.Sprintf\("([^" %]+)`,
		}},
		"../../runtime/embedded": {7, []string{`add\("([^"]+)", (?:true|false), `}},
		"../../runtime/network":  {13, []string{`lacks\(.*, "([^"]+)", "`, `\{"([^"]+)", "[^"]+", (?:true|false), `, `What: "([^"]+)"`}},
	} {
		files := expect.Value(filepath.Glob(filepath.Join(dir, "*.go")))(t)
		found := map[string]bool{}
		for _, file := range files {
			source := expect.Value(os.ReadFile(file))(t)
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			for _, pattern := range c.names {
				for _, match := range regexp.MustCompile(pattern).FindAllStringSubmatch(string(source), -1) {
					found[match[1]] = true
				}
			}
		}
		for name := range found {
			if quoted := regexp.QuoteMeta(name); !regexp.MustCompile("(?m)^\\|.*[ `,]" + quoted + "[ `,]").Match(page) {
				t.Errorf("README.md does not explain %q of %s", name, dir)
			}
		}
		expect.True(t, len(found) >= c.least, "only %d names were found in %s: %v", len(found), dir, found)
	}
}
