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
	"sync/atomic"

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

type cli struct {
	in       io.Reader
	out, err io.Writer
	env      []string

	configFile string
	json       bool
	command    string // the one that is running, for hints
	project    composeProject
	lasting    atomic.Bool // it cleans up after an interrupt, and may take its time
}

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
		{"approve", "DEPLOYMENT [REVISION] | --all", "approve a pending change", (*cli).approve},
		{"reject", "DEPLOYMENT [REVISION]", "reject a pending change for good", (*cli).reject},
		{"hold", "[--for DURATION] [--deployment DEPLOYMENT]", "take an update lock, which postpones all changes", (*cli).hold},
		{"release", "[--as NAME | --all]", "release update locks", (*cli).release},
		{"rollback", "DEPLOYMENT [--yes]", "return to the previous revision until the WFM publishes another one", (*cli).rollback},
		{"history", "[--json] [--verify]", "show who decided what, and verify the journal", (*cli).history},
		{"sync", "", "poll the WFM now", (*cli).sync},
		{"accept-rollback", "[--yes]", "accept the manifest of a restored WFM although its version is not greater", (*cli).acceptRollback},
		{"metrics", "", "print metrics in Prometheus text format", (*cli).metrics},
		{"logs", "DEPLOYMENT [SERVICE...]", "show the output of workloads", (*cli).logs},
		{"exec", "DEPLOYMENT SERVICE [--] COMMAND...", "run a command in a workload", (*cli).exec},
		{"prune", "[--images] [--volumes]", "remove images and volumes that nothing needs", (*cli).prune},
		{"clear", "[--yes]", "stop and remove all workloads, to decommission this device", (*cli).clear},
		{"backup", "FILE [--identity PASSPHRASE-FILE]", "save what this device knows, for one that replaces it", (*cli).backup},
		{"restore", "FILE [--another-device] [--identity PASSPHRASE-FILE]", "make this device what a backup says; the agent must not run", (*cli).restore},
		{"capabilities", "[--json] [--root DIR]", "show what the WFM is told about this device", (*cli).capabilities},
		{"check", "[--json]", "check whether this device can run workloads and reach its WFM", (*cli).check},
		{"csr", "--id SPIFFE-ID|--name NAME [--key FILE] [--out FILE]", "write a certificate request; the private key stays on this device", (*cli).csr},
		{"compose", "up|down|ps|logs|exec|config|pull [-f FILE] [-p PROJECT]", "run a Compose file without a WFM", (*cli).compose},
		{"version", "[--json]", "show the version and the supported revisions of the standard", (*cli).version},
	}
}

type usageError struct{ text string }

func (e *usageError) Error() string { return e.text }

func usagef(format string, args ...any) error {
	return &usageError{fmt.Sprintf(format, args...)}
}

type hintError struct {
	err  error
	hint string
}

func (e *hintError) Error() string { return e.err.Error() }
func (e *hintError) Unwrap() error { return e.err }

// exitError is the exit code of a command that ran somewhere else, and has said
// for itself what there is to say.
type exitError struct{ code int }

func (e *exitError) Error() string { return fmt.Sprintf("exit code %d", e.code) }

func (c *cli) main(ctx context.Context, args []string) int {
	c.configFile = defaultConfig
	err := c.dispatch(ctx, args)
	var usage *usageError
	var exit *exitError
	switch {
	case errors.As(err, &exit):
		return exit.code
	case err == nil:
		return exitDone
	case errors.Is(err, flag.ErrHelp):
		return exitDone
	case errors.As(err, &usage):
		fmt.Fprintf(plainWriter{c.err}, "margolite: %v\nfix: see `%s --help`\n", err, strings.TrimSpace("margolite "+c.command))
		return exitUsage
	case ctx.Err() != nil && errors.Is(err, context.Canceled):
		return exitFailed // interrupted; nobody needs to be told
	}
	fmt.Fprintf(plainWriter{c.err}, "margolite: %v\n", err) // which may quote a server
	var hint *hintError
	switch {
	case errors.As(err, &hint):
		fmt.Fprintf(c.err, "fix: %s\n", hint.hint)
	case errors.Is(err, control.ErrNotRunning):
		fmt.Fprintln(c.err, "fix: start it with `margolite run`, or name its configuration with --config FILE")
	}
	return exitFailed
}

func (c *cli) dispatch(ctx context.Context, args []string) error {
	flags := c.flags("")
	flags.Usage = func() {}
	if err := flags.Parse(args); err != nil {
		return c.flagError(err, c.overview)
	}
	if flags.NArg() == 0 {
		c.overview(c.err)
		return usagef("no command given")
	}
	name, rest := flags.Arg(0), flags.Args()[1:]
	if name == "help" {
		c.overview(c.out)
		return nil
	}
	if name == apartName {
		return c.workApart(rest)
	}
	all := commands()
	i := slices.IndexFunc(all, func(cmd command) bool { return cmd.name == name })
	if i < 0 {
		return usagef("unknown command %q", name)
	}
	if err := c.leaveImage(args); err != nil {
		return err
	}
	return all[i].run(c, ctx, rest)
}

func (c *cli) overview(w io.Writer) {
	fmt.Fprint(w, "margolite is the Margo device agent for small machines.\n\nUsage: margolite COMMAND [--config FILE] [ARGUMENTS]\n\nCommands:\n")
	for _, cmd := range commands() {
		fmt.Fprintf(w, "  %-16s %s\n", cmd.name, cmd.short)
	}
	fmt.Fprintf(w, "\nThe default configuration file is %s.\nRun margolite COMMAND --help for the arguments of a command.\n", defaultConfig)
}

// load reads the configuration. Where the default file is missing, the
// defaults stand, if required is false.
func (c *cli) load(required bool) (*config.Config, error) {
	cfg, err := config.Load(c.configFile)
	if errors.Is(err, fs.ErrNotExist) {
		if !required && c.configFile == defaultConfig {
			return config.Default(), nil
		}
		return nil, &hintError{err, "name the configuration with --config FILE, or start from packaging/config.yaml"}
	}
	if err != nil {
		return nil, &hintError{err, "correct the configuration"}
	}
	return cfg, nil
}

// client finds the control socket through the configuration.
func (c *cli) client() (*control.Client, *config.Config, error) {
	cfg, err := c.load(false)
	if err != nil {
		return nil, nil, err
	}
	return control.Dial(socketPath(cfg)), cfg, nil
}

// onlyClient is client for a command without arguments.
func (c *cli) onlyClient(f *flag.FlagSet, args []string) (*control.Client, error) {
	if err := c.parseNone(f, args); err != nil {
		return nil, err
	}
	client, _, err := c.client()
	return client, err
}

func socketPath(cfg *config.Config) string { return filepath.Join(cfg.State.Run, "control.sock") }

// printJSON writes a document for programs.
func (c *cli) printJSON(doc any) error {
	enc := json.NewEncoder(c.out)
	enc.SetIndent("", "  ")
	return enc.Encode(doc)
}
