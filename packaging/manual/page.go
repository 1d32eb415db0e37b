package main

import (
	"fmt"
	"strings"
)

// manual puts the commands into the page.
func manual(page string, commands []command) string {
	var b strings.Builder
	for _, c := range commands {
		fmt.Fprintf(&b, ".TP\n.B %s\n", roff(strings.TrimSpace("margolite "+c.name()+" "+c.usage)))
		fmt.Fprintf(&b, "%s.\n", roff(c.text))
		for _, f := range c.flags {
			if f.long == "config" {
				continue // said once
			}
			fmt.Fprintf(&b, ".br\n\\fB%s\\fR: %s.\n", roff(strings.TrimSpace(f.name()+" "+f.value)), roff(strings.TrimRight(f.text, ".")))
		}
	}
	return strings.Replace(page, ".\\\" COMMANDS\n", b.String(), 1)
}

func (f option) name() string {
	if f.letter != "" {
		return "-" + f.letter + ", --" + f.long
	}
	return "--" + f.long
}

// roff keeps a text from being taken for a request, and its dashes from becoming
// typographic ones.
func roff(text string) string {
	text = strings.NewReplacer(`\`, `\e`, "-", `\-`).Replace(text)
	if strings.HasPrefix(text, ".") || strings.HasPrefix(text, "'") {
		text = `\&` + text
	}
	return text
}
