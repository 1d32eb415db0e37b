package main

import (
	"fmt"
	"regexp"
	"strings"
)

// command is a command as its help describes it.
type command struct {
	words []string // such as compose, up
	usage string   // arguments behind the words
	text  string   // a sentence, without its full stop
	flags []option
}

// name is what is typed.
func (c command) name() string { return strings.Join(c.words, " ") }

// option is a flag of a command.
type option struct {
	long, letter string // without dashes; a letter may be missing
	value        string // such as FILE; "": it takes none
	text         string
}

var (
	entryLine = regexp.MustCompile(`^  ([a-z][a-z-]*) +(\S.*)$`)
	flagLine  = regexp.MustCompile(`^  (?:-(\w), )?--([a-zA-Z-]+)(?: ([A-Z][A-Z=-]*|string|int|duration))? +(\S.*)$`)
)

// read asks for all commands, those of compose behind it.
func read(help func(args ...string) (string, error)) ([]command, error) {
	overview, err := help()
	if err != nil {
		return nil, err
	}
	var commands []command
	for _, word := range entries(overview, "Commands:") {
		c, verbs, err := describe(help, word)
		if err != nil {
			return nil, err
		}
		commands = append(commands, c)
		for _, verb := range verbs {
			c, _, err := describe(help, word, verb)
			if err != nil {
				return nil, err
			}
			commands = append(commands, c)
		}
	}
	if len(commands) == 0 {
		return nil, fmt.Errorf("its help names no commands")
	}
	return commands, nil
}

// entries are the first words of the lines below a title.
func entries(help, title string) []string {
	_, list, _ := strings.Cut(help, "\n"+title+"\n")
	var words []string
	for line := range strings.Lines(list) {
		m := entryLine.FindStringSubmatch(strings.TrimRight(line, "\n"))
		if m == nil {
			break
		}
		words = append(words, m[1])
	}
	return words
}

func describe(help func(args ...string) (string, error), words ...string) (c command, verbs []string, err error) {
	text, err := help(words...)
	if err != nil {
		return c, nil, err
	}
	c.words = words
	usage, rest, found := strings.Cut(text, "\n\n")
	c.text, _, _ = strings.Cut(rest, ".\n")
	c.usage, _ = strings.CutPrefix(usage, "Usage: margolite "+c.name())
	c.usage = strings.TrimSpace(c.usage)
	if !found || c.text == "" || c.usage == usage {
		return c, nil, fmt.Errorf("the help of %s is not understood", c.name())
	}
	_, flags, _ := strings.Cut(text, "\nFlags:\n")
	for line := range strings.Lines(flags) {
		m := flagLine.FindStringSubmatch(strings.TrimRight(line, "\n"))
		if m == nil {
			return c, nil, fmt.Errorf("a flag of %s is not understood: %s", c.name(), line)
		}
		c.flags = append(c.flags, option{letter: m[1], long: m[2], value: m[3], text: m[4]})
	}
	return c, entries(text, "Verbs:"), nil
}
