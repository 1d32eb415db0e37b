package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"github.com/margolite/margolite/agent/control"
	"github.com/margolite/margolite/cmd/margolite/config"
)

// Exit codes, part of the contract.
const (
	exitDone   = 0
	exitFailed = 1
	exitUsage  = 2
)

// defaultConfig is the configuration that is read when none is named.
const defaultConfig = "/etc/margolite/config.yaml"

// cli is one invocation of the command line.
type cli struct {
	out, err io.Writer
	env      []string

	configFile string
	json       bool
}

// command is one verb.
type command struct {
	name  string
	args  string // for the usage line
	short string // one line for the overview
	run   func(c *cli, ctx context.Context, args []string) error
}

func commands() []command {
	return []command{
		{"run", "", "run the agent", (*cli).run},
		{"status", "[--json]", "show the last poll, the manifest and every deployment", (*cli).status},
		{"sync", "", "poll the WFM now", (*cli).sync},
		{"logs", "DEPLOYMENT [SERVICE] [--follow] [--tail N]", "show what workloads print", (*cli).logs},
		{"capabilities", "[--json]", "show what is reported about this device", (*cli).capabilities},
		{"check", "[--json]", "say whether this device can do the job, and what to mend", (*cli).check},
		{"compose", "up|down|ps|logs|config [-f FILE] [-p PROJECT]", "run a Compose file without a WFM", (*cli).compose},
		{"version", "[--json]", "show version, flavour and the revisions of the standard", (*cli).version},
	}
}

// usageError is a wrong invocation.
type usageError struct{ text string }

func (e *usageError) Error() string { return e.text }

func usagef(format string, args ...any) error {
	return &usageError{fmt.Sprintf(format, args...)}
}

// hintError adds what to do next to an error.
type hintError struct {
	err  error
	hint string
}

func (e *hintError) Error() string { return e.err.Error() }
func (e *hintError) Unwrap() error { return e.err }

// main runs one command and returns the exit code.
func (c *cli) main(ctx context.Context, args []string) int {
	c.configFile = defaultConfig
	err := c.dispatch(ctx, args)
	var usage *usageError
	switch {
	case err == nil:
		return exitDone
	case errors.Is(err, flag.ErrHelp):
		return exitDone
	case errors.As(err, &usage):
		fmt.Fprintf(c.err, "margolite: %v\nhint: margolite help\n", err)
		return exitUsage
	case ctx.Err() != nil && errors.Is(err, context.Canceled):
		return exitFailed // interrupted; nobody needs to be told
	}
	fmt.Fprintf(c.err, "margolite: %v\n", err)
	var hint *hintError
	if errors.As(err, &hint) {
		fmt.Fprintf(c.err, "hint: %s\n", hint.hint)
	}
	return exitFailed
}

func (c *cli) dispatch(ctx context.Context, args []string) error {
	flags := c.flags("margolite")
	flags.Usage = func() {}
	if err := flags.Parse(args); err != nil {
		return c.flagError(err, c.overview)
	}
	if flags.NArg() == 0 {
		c.overview(c.err)
		return usagef("no command given")
	}
	name, args := flags.Arg(0), flags.Args()[1:]
	if name == "help" {
		c.overview(c.out)
		return nil
	}
	all := commands()
	i := slices.IndexFunc(all, func(cmd command) bool { return cmd.name == name })
	if i < 0 {
		return usagef("unknown command %q", name)
	}
	return all[i].run(c, ctx, args)
}

// flags makes a flag set with what every command takes.
func (c *cli) flags(name string) *flag.FlagSet {
	f := flag.NewFlagSet(name, flag.ContinueOnError)
	f.SetOutput(io.Discard)
	f.StringVar(&c.configFile, "config", c.configFile, "configuration `FILE`")
	return f
}

// jsonFlag adds --json.
func (c *cli) jsonFlag(f *flag.FlagSet) { f.BoolVar(&c.json, "json", false, "print JSON for programs") }

// parse parses flags in any place among args and returns the others.
func (c *cli) parse(f *flag.FlagSet, args []string) ([]string, error) {
	var positional []string
	for {
		if err := f.Parse(args); err != nil {
			return nil, c.flagError(err, func(w io.Writer) { c.usage(w, f) })
		}
		rest := f.Args()
		if len(rest) == 0 {
			return positional, nil
		}
		if i := len(args) - len(rest); i > 0 && args[i-1] == "--" {
			return append(positional, rest...), nil
		}
		positional, args = append(positional, rest[0]), rest[1:]
	}
}

// parseNone is parse for commands without arguments.
func (c *cli) parseNone(f *flag.FlagSet, args []string) error {
	rest, err := c.parse(f, args)
	if err == nil && len(rest) > 0 {
		err = usagef("%s takes no argument %q", f.Name(), rest[0])
	}
	return err
}

// flagError shows help when it was asked for, and makes a usage error of the rest.
func (c *cli) flagError(err error, help func(io.Writer)) error {
	if errors.Is(err, flag.ErrHelp) {
		help(c.out)
		return err
	}
	return &usageError{err.Error()}
}

func (c *cli) overview(w io.Writer) {
	fmt.Fprint(w, "margolite is the Margo device agent for small machines.\n\nUsage: margolite COMMAND [--config FILE] [ARGUMENTS]\n\nCommands:\n")
	for _, cmd := range commands() {
		fmt.Fprintf(w, "  %-14s %s\n", cmd.name, cmd.short)
	}
	fmt.Fprintf(w, "\nThe configuration is %s unless --config names another.\nmargolite COMMAND --help shows the arguments of a command.\n", defaultConfig)
}

func (c *cli) usage(w io.Writer, f *flag.FlagSet) {
	name, _, _ := strings.Cut(f.Name(), " ")
	for _, cmd := range commands() {
		if cmd.name == name {
			fmt.Fprintf(w, "Usage: margolite %s %s\n\n%s.\n\nFlags:\n", cmd.name, cmd.args, strings.ToUpper(cmd.short[:1])+cmd.short[1:])
		}
	}
	f.VisitAll(func(fl *flag.Flag) {
		kind, text := flag.UnquoteUsage(fl)
		dash := "--"
		if len(fl.Name) == 1 {
			dash = "-"
		}
		fmt.Fprintf(w, "  %-18s %s\n", strings.TrimSpace(dash+fl.Name+" "+kind), text)
	})
}

// load reads the configuration. Where the default file is missing, the
// defaults stand, if required is false.
func (c *cli) load(required bool) (*config.Config, error) {
	cfg, err := config.Load(c.configFile)
	if errors.Is(err, fs.ErrNotExist) {
		if !required && c.configFile == defaultConfig {
			return config.Default(), nil
		}
		return nil, &hintError{err, "name the configuration with --config FILE; packaging/config.yaml is a commented one to start from"}
	}
	if err != nil {
		return nil, &hintError{err, "correct the configuration; nothing was started"}
	}
	return cfg, nil
}

// client finds the control socket through the configuration.
func (c *cli) client(required bool) (*control.Client, *config.Config, error) {
	cfg, err := c.load(required)
	if err != nil {
		return nil, nil, err
	}
	return control.Dial(socketPath(cfg)), cfg, nil
}

// hinted adds the hint that goes with an agent that does not run.
func hinted(err error) error {
	if errors.Is(err, control.ErrNotRunning) {
		return &hintError{err, "start it with `margolite run`, or name its configuration with --config FILE"}
	}
	return err
}

func socketPath(cfg *config.Config) string { return filepath.Join(cfg.State.Run, "control.sock") }

// printJSON writes a document for programs.
func (c *cli) printJSON(doc any) error {
	enc := json.NewEncoder(c.out)
	enc.SetIndent("", "  ")
	return enc.Encode(doc)
}
