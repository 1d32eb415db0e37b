package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/margolite/margolite/cmd/command"
)

func yesFlag(f *command.Flags, yes *bool) {
	f.BoolVar(yes, "yes,y", false, "do not ask for confirmation")
}

// confirm asks for confirmation, unless --yes was given. Its error says that nothing was done and,
// if there is no terminal, what to do instead.
func (c *cli) confirm(ctx context.Context, yes bool, question, nothing, instead string) error {
	switch {
	case yes:
		return nil
	case !isTerminal(c.in):
		return command.Hint(errors.New(nothing+": there is no terminal to ask for confirmation"), instead)
	case !c.agreed(ctx, question):
		return errors.New(nothing)
	}
	return nil
}

// agreed asks, and accepts only yes.
func (c *cli) agreed(ctx context.Context, question string) bool {
	fmt.Fprintf(c.err, "%s [y/N] ", question)
	answers := make(chan string, 1)
	go func() { // ends with the input, which cannot be interrupted
		line, _ := bufio.NewReader(c.in).ReadString('\n') // no answer means no
		answers <- strings.ToLower(strings.TrimSpace(line))
	}()
	select {
	case a := <-answers:
		return a == "y" || a == "yes"
	case <-ctx.Done():
		return false
	}
}
