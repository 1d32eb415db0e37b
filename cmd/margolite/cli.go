package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"path/filepath"
	"sync/atomic"

	"go.yaml.in/yaml/v4"

	"github.com/margolite/margolite/agent/control"
	"github.com/margolite/margolite/cmd/command"
	"github.com/margolite/margolite/cmd/margolite/config"
)

const defaultConfig = "/etc/margolite/config.yaml"

type cli struct {
	in       io.Reader
	out, err io.Writer
	env      []string

	configFile string
	json       bool
	project    composeProject
	lasting    atomic.Bool // cleans up after an interrupt, and may take time for it
}

func (c *cli) commands() []command.Command {
	return []command.Command{
		{Name: "run", Text: "run the agent", Prepare: func(*command.Flags) command.Action { return c.run }},
		{Name: "status", Args: "[--json]", Text: "show the last poll, the manifest and every deployment", Prepare: c.status},
		{Name: "approve", Args: "DEPLOYMENT [REVISION] | --all", Text: "approve a pending change", Prepare: c.approve},
		{Name: "reject", Args: "DEPLOYMENT [REVISION]", Text: "reject a pending change for good", Prepare: c.reject},
		{Name: "hold", Args: "[--for DURATION] [--deployment DEPLOYMENT]", Text: "take an update lock, which postpones all changes", Prepare: c.hold},
		{Name: "release", Args: "[--as NAME | --all]", Text: "release update locks", Prepare: c.release},
		{Name: "rollback", Args: "DEPLOYMENT [--yes]", Text: "return to the previous revision until the WFM publishes another one", Prepare: c.rollback},
		{Name: "history", Args: "[--json] [--verify]", Text: "show who decided what, and verify the journal", Prepare: c.history},
		{Name: "sync", Text: "poll the WFM now", Prepare: c.sync},
		{Name: "accept-rollback", Args: "[--yes]", Text: "accept the manifest of a restored WFM although its version is not greater", Prepare: c.acceptRollback},
		{Name: "metrics", Text: "print metrics in Prometheus text format", Prepare: c.metrics},
		{Name: "logs", Args: "DEPLOYMENT [SERVICE...]", Text: "show the output of workloads", Prepare: c.logs},
		{Name: "exec", Args: "DEPLOYMENT SERVICE [--] COMMAND...", Text: "run a command in a workload", Prepare: c.exec},
		{Name: "prune", Args: "[--images] [--volumes]", Text: "remove images and volumes that nothing needs", Prepare: c.prune},
		{Name: "clear", Args: "[--yes]", Text: "stop and remove all workloads, to decommission this device", Prepare: c.clear},
		{Name: "backup", Args: "FILE [--identity PASSPHRASE-FILE]", Text: "save what this device knows, for one that replaces it", Prepare: c.backup},
		{Name: "restore", Args: "FILE [--another-device] [--identity PASSPHRASE-FILE]", Text: "make this device what a backup says; the agent must not run", Prepare: c.restore},
		{Name: "capabilities", Args: "[--json] [--root DIR]", Text: "show what the WFM is told about this device", Prepare: c.capabilities},
		{Name: "check", Args: "[--json]", Text: "check whether this device can run workloads and reach its WFM", Prepare: c.check},
		{Name: "csr", Args: "--id SPIFFE-ID|--name NAME [--key FILE] [--out FILE]", Text: "write a certificate request; the private key stays on this device", Prepare: c.csr},
		{Name: "compose", Args: "up|down|ps|logs|exec|config|pull [-f FILE] [-p PROJECT]", Text: "run a Compose file without a WFM", Prepare: c.compose},
		{Name: "compose up", Args: "[SERVICE...]", Text: "start a project and wait until it runs", Prepare: c.composeUp},
		{Name: "compose down", Text: "remove a project; named volumes stay", Prepare: c.composeDown},
		{Name: "compose ps", Args: "[SERVICE...]", Text: "list the containers of a project", Prepare: c.composePs},
		{Name: "compose logs", Args: "[SERVICE...]", Text: "show the output of services", Prepare: c.composeLogs},
		{Name: "compose exec", Args: "SERVICE COMMAND...", Text: "run a command in a running container", Prepare: c.composeExec},
		{Name: "compose config", Text: "check the Compose file and print the resulting project", Prepare: c.composeConfig},
		{Name: "compose pull", Args: "[SERVICE...]", Text: "pull the images of a project", Prepare: c.composePull},
		{Name: "version", Args: "[--json]", Text: "show the version and the supported revisions of the standard", Prepare: c.version},

		{Name: apartName, Prepare: c.workApart},
	}
}

// program is the command line of margolite. Its output may quote a server.
func (c *cli) program() *command.Program {
	return &command.Program{
		Name:  "margolite",
		About: "margolite is the Margo device agent for small machines.\n\nUsage: margolite COMMAND [--config FILE] [ARGUMENTS]",
		Notes: "The default configuration file is " + defaultConfig + ".\nRun margolite COMMAND --help for the arguments of a command.\n",
		Out:   c.out, Err: plainWriter{c.err},
		Commands: c.commands(),
		Common: func(f *command.Flags) {
			f.StringVar(&c.configFile, "config", c.configFile, "read the configuration from `FILE`")
		},
		Enter: c.leaveImage,
		Hint: func(err error) string {
			if errors.Is(err, control.ErrNotRunning) {
				return "start it with `margolite run`, or name its configuration with --config FILE"
			}
			return ""
		},
	}
}

func (c *cli) main(ctx context.Context, args []string) int {
	c.configFile = defaultConfig
	return c.program().Main(ctx, args)
}

// load reads the configuration. If it is not required, a missing default file means the defaults.
func (c *cli) load(required bool) (*config.Config, error) {
	cfg, err := config.Load(c.configFile)
	if errors.Is(err, fs.ErrNotExist) {
		if !required && c.configFile == defaultConfig {
			return config.Default(), nil
		}
		return nil, command.Hint(err, "name the configuration with --config FILE, or start from packaging/config.yaml")
	}
	if err != nil {
		return nil, command.Hint(err, "correct the configuration")
	}
	return cfg, nil
}

func (c *cli) client() (*control.Client, *config.Config, error) {
	cfg, err := c.load(false)
	if err != nil {
		return nil, nil, err
	}
	return control.Dial(socketPath(cfg)), cfg, nil
}

func (c *cli) asks(do func(ctx context.Context, client *control.Client, args []string) error) command.Action {
	return func(ctx context.Context, args []string) error {
		client, _, err := c.client()
		if err != nil {
			return err
		}
		return do(ctx, client, args)
	}
}

func (c *cli) jsonFlag(f *command.Flags) {
	f.BoolVar(&c.json, "json", false, "print JSON for programs")
}

func socketPath(cfg *config.Config) string { return filepath.Join(cfg.State.Run, "control.sock") }

func (c *cli) printJSON(doc any) error {
	enc := json.NewEncoder(c.out)
	enc.SetIndent("", "  ")
	return enc.Encode(doc)
}

func (c *cli) printYAML(doc any) error {
	text, err := yaml.Dump(doc, yaml.WithV3Defaults(), yaml.WithIndent(2))
	if err == nil {
		_, err = c.out.Write(text)
	}
	return err
}
