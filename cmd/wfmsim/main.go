// Wfmsim is a Workload Fleet Manager for development, with an OCI registry built
// in: a device agent can be tried out against it on one machine, from the first
// deployment to the removal. It speaks the management interface of Margo
// 1.0.0-rc.3, rc.2 and rc.1. Type "wfmsim help" for what it can do.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/margolite/margolite/test/wfmsim/admin"
)

// Exit codes.
const (
	exitDone   = 0
	exitFailed = 1
	exitUsage  = 2
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// command is one verb of the command line.
type command struct {
	name    string
	args    string // what follows the flags, a word for each; in brackets: it may be missing
	summary string
	help    string // the rest of what there is to say
	// prepare defines the flags and gives what is to be done once they are read.
	prepare func(*flag.FlagSet) action
}

// action does what a command is for.
type action func(ctx context.Context, args []string, out io.Writer) error

// usageError says that the command line itself is wrong.
type usageError struct{ text string }

func (e usageError) Error() string { return e.text }

func commands() []command {
	return []command{
		serveCommand(),
		publishCommand(), publishComposeCommand(), pushImageCommand(), removeCommand(),
		listCommand(), statusesCommand(), capabilitiesCommand(), requestsCommand(),
		faultCommand(), clearCommand(), versionCommand(),
		clientCommand("restart", "restart the client's manifest versions at 1"),
		pendingCommand(), approveCommand(),
		clientCommand("forget", "forget a client, before rc.3: it must be onboarded again"),
	}
}

func run(ctx context.Context, args []string, out, talk io.Writer) int {
	if len(args) == 0 || args[0] == "help" || args[0] == "--help" || args[0] == "-h" {
		return help(args, out, talk)
	}
	for _, c := range commands() {
		if c.name == args[0] {
			return c.run(ctx, args[1:], out, talk)
		}
	}
	fmt.Fprintf(talk, "wfmsim: unknown command %q\nfix: see \"wfmsim help\"\n", args[0])
	return exitUsage
}

func (c command) run(ctx context.Context, args []string, out, talk io.Writer) int {
	flags := flag.NewFlagSet(c.name, flag.ContinueOnError)
	flags.SetOutput(io.Discard) // errors and help are written below
	do := c.prepare(flags)
	arguments, err := parse(flags, args)
	if errors.Is(err, flag.ErrHelp) {
		c.explain(flags, out)
		return exitDone
	}
	if err == nil {
		err = c.count(arguments)
	}
	if err == nil {
		err = do(ctx, arguments, out)
	} else {
		err = usageError{err.Error()}
	}
	var usage usageError
	switch {
	case err == nil:
		return exitDone
	case errors.As(err, &usage):
		fmt.Fprintf(talk, "wfmsim %s: %v\nfix: see \"wfmsim help %s\"\n", c.name, err, c.name)
		return exitUsage
	}
	fmt.Fprintf(talk, "wfmsim %s: %v\n", c.name, err)
	if errors.Is(err, admin.ErrNotRunning) {
		fmt.Fprintln(talk, "fix: start one with \"wfmsim serve --dir DIR\", or name another with --admin URL")
	}
	return exitFailed
}

// parse reads flags before, between and after the arguments; package flag alone
// stops at the first argument.
func parse(flags *flag.FlagSet, args []string) (arguments []string, err error) {
	for {
		if err := flags.Parse(args); err != nil {
			return nil, err
		}
		if flags.NArg() == 0 {
			return arguments, nil
		}
		arguments = append(arguments, flags.Arg(0))
		args = flags.Args()[1:]
	}
}

// count refuses too few arguments, and too many. Those in brackets may be missing.
func (c command) count(arguments []string) error {
	names := strings.Fields(c.args)
	switch {
	case len(arguments) < len(names)-strings.Count(c.args, "["):
		return fmt.Errorf("give %s", c.args)
	case len(arguments) > len(names):
		return fmt.Errorf("unexpected argument %q", arguments[len(names)])
	}
	return nil
}

func (c command) explain(flags *flag.FlagSet, out io.Writer) {
	usage := strings.TrimSpace("usage: wfmsim " + c.name + " [flags] " + c.args)
	fmt.Fprintf(out, "%s\n\nwfmsim %s: %s.\n", usage, c.name, c.summary)
	if c.help != "" {
		fmt.Fprintf(out, "\n%s\n", strings.TrimSpace(c.help))
	}
	fmt.Fprintln(out, "\nFlags:")
	flags.VisitAll(func(f *flag.Flag) {
		name, usage := flag.UnquoteUsage(f)
		if f.DefValue != "" && f.DefValue != "0" && f.DefValue != "false" && f.DefValue != "0s" {
			usage += " (default " + f.DefValue + ")"
		}
		fmt.Fprintf(out, "  --%-20s %s\n", strings.TrimSpace(f.Name+" "+name), usage)
	})
}

func help(args []string, out, talk io.Writer) int {
	if len(args) > 1 {
		for _, c := range commands() {
			if c.name == args[1] {
				flags := flag.NewFlagSet(c.name, flag.ContinueOnError)
				c.prepare(flags)
				c.explain(flags, out)
				return exitDone
			}
		}
		fmt.Fprintf(talk, "wfmsim: unknown command %q\n", args[1])
		return exitUsage
	}
	fmt.Fprint(out, `wfmsim is a Workload Fleet Manager for development, with an OCI registry.

usage: wfmsim COMMAND [flags] [arguments]

Commands:
`)
	for _, c := range commands() {
		fmt.Fprintf(out, "  %-16s %s\n", c.name, c.summary)
	}
	fmt.Fprint(out, `
A first trial, each of the first two commands in a terminal of its own:
  wfmsim serve --dir /tmp/wfm
  margolite run --config /tmp/wfm/margolite.yaml
  CGO_ENABLED=0 go build -o demoapp ./test/demoapp
  wfmsim push-image --name margolite/demoapp --binary demoapp
  wfmsim publish-compose --name demoapp --package test/demoapp/package
  wfmsim statuses --follow

"wfmsim help COMMAND" explains a command.
`)
	return exitDone
}
