package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"runtime"
	"strings"

	"go.yaml.in/yaml/v4"

	"github.com/margolite/margolite/agent"
	"github.com/margolite/margolite/agent/control"
	"github.com/margolite/margolite/agent/margo"
	"github.com/margolite/margolite/build"
	"github.com/margolite/margolite/capability"
	"github.com/margolite/margolite/cmd/command"
	"github.com/margolite/margolite/cmd/margolite/config"
)

func (c *cli) capabilities(f *command.Flags) command.Action {
	c.jsonFlag(f)
	root := f.String("root", "/", "describe the machine whose root file system is at `DIR`")
	return func(ctx context.Context, _ []string) error {
		client, cfg, err := c.client()
		if err != nil {
			return err
		}
		var doc json.RawMessage
		if *root == "/" {
			doc, err = client.Capabilities(ctx)
		}
		if *root != "/" || errors.Is(err, control.ErrNotRunning) {
			doc, err = describe(ctx, cfg, *root)
		}
		if err != nil {
			return err
		}
		if c.json {
			_, err := fmt.Fprintf(c.out, "%s\n", doc)
			return err
		}
		var tree any
		if err := yaml.Unmarshal(doc, &tree); err != nil { // JSON is YAML
			return fmt.Errorf("cannot read the capabilities: %w", err)
		}
		return c.printYAML(tree)
	}
}

// describe builds the document about a machine without its agent.
func describe(ctx context.Context, cfg *config.Config, root string) (json.RawMessage, error) {
	facts := discover(ctx, cfg, root)
	device, err := deviceAs(cfg, root, facts)
	if err != nil {
		return nil, err
	}
	return agent.Describe(device, facts, slog.New(slog.DiscardHandler))
}

// discover reads what the machine with its files below root offers. For this machine it uses the
// architecture that the program was built for, which may be less than the kernel's: images are
// chosen by it.
func discover(ctx context.Context, cfg *config.Config, root string) func() (capability.Facts, error) {
	o := capability.Options{StateDir: filepath.Join(root, cfg.State.Dir), Workloads: cfg.Runtime.Namespace}
	if root == "/" {
		o.Architecture = runtime.GOARCH
	}
	return func() (capability.Facts, error) { return capability.Discover(ctx, root, o) }
}

func (c *cli) version(f *command.Flags) command.Action {
	c.jsonFlag(f)
	return func(context.Context, []string) error {
		v := struct {
			Version   string   `json:"version"`
			Commit    string   `json:"commit"`
			Revisions []string `json:"revisions"`
		}{Version: build.Version(), Commit: build.Commit()}
		for _, r := range margo.Revisions() {
			v.Revisions = append(v.Revisions, r.String())
		}
		if c.json {
			return c.printJSON(v)
		}
		commit := prefixed(" ", v.Commit)
		if names(v.Version, v.Commit) {
			commit = ""
		}
		fmt.Fprintf(c.out, "margolite %s%s, Margo %s\n", v.Version, commit, strings.Join(v.Revisions, ", "))
		return nil
	}
}

// names reports whether a version in the format of git describe contains the abbreviated commit.
func names(version, commit string) bool {
	return len(commit) >= 7 && strings.Contains(version, commit[:7])
}
