package main

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// What the README shows of the walk-through is what it says today.
func TestTheRecordingIsOfThisStory(t *testing.T) {
	story, err := os.ReadFile("main.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{"demo.svg", "../../README.md"} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(`screen\.chapter\("(.*)"\)`).FindAllSubmatch(story, -1) {
			if title := string(m[1]); !strings.Contains(string(text), title) {
				t.Errorf("%s does not show %q: run make recording", file, title)
			}
		}
	}
}
