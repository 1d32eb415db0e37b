package main

import (
	"fmt"
	"strings"

	"github.com/margolite/margolite/cmd/command"
)

// manual puts the commands into the page.
func manual(page string, commands []command.Description) string {
	var b strings.Builder
	for _, c := range commands {
		fmt.Fprintf(&b, ".TP\n.B %s\n", roff(strings.TrimSpace("margolite "+c.Name+" "+c.Args)))
		fmt.Fprintf(&b, "%s.\n", roff(strings.ToUpper(c.Text[:1])+c.Text[1:]))
		for _, f := range c.Flags {
			if f.Name == "config" {
				continue // said once
			}
			fmt.Fprintf(&b, ".br\n\\fB%s\\fR: %s.\n", roff(f.String()), roff(strings.TrimRight(f.Text, ".")))
		}
	}
	return strings.Replace(page, ".\\\" COMMANDS\n", b.String(), 1)
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
