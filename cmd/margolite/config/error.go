package config

import (
	"fmt"
	"strings"
)

const maxMistakes = 50

// Error is one mistake in a configuration file.
type Error struct {
	File    string
	Line    int    // 0: the file as a whole
	Key     string // such as "poll.interval"; empty: no single key
	Problem string
}

func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString(e.File)
	if e.Line > 0 {
		fmt.Fprintf(&b, ":%d", e.Line)
	}
	if e.Key != "" {
		b.WriteString(": " + e.Key)
	}
	b.WriteString(": " + e.Problem)
	return b.String()
}

// syntaxError reports where the file is not YAML, as far as the parser knows.
func syntaxError(file string, err error) error {
	problem := strings.TrimPrefix(err.Error(), "yaml: ")
	line := 0
	if _, scanErr := fmt.Sscanf(problem, "line %d:", &line); scanErr == nil {
		_, problem, _ = strings.Cut(problem, ": ")
	}
	return &Error{File: file, Line: line, Problem: "invalid YAML: " + problem}
}
