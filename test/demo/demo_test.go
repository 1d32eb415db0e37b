package main

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/margolite/margolite/test/expect"
)

// What the README shows of the walk-through is what it says today.
func TestTheRecordingIsOfThisStory(t *testing.T) {
	story := expect.Value(os.ReadFile("main.go"))(t)
	for _, file := range []string{"demo.svg", "../../README.md"} {
		text := expect.Value(os.ReadFile(file))(t)
		for _, m := range regexp.MustCompile(`screen\.chapter\("(.*)"\)`).FindAllSubmatch(story, -1) {
			if title := string(m[1]); !strings.Contains(string(text), title) {
				t.Errorf("%s does not show %q: run make recording", file, title)
			}
		}
	}
}
