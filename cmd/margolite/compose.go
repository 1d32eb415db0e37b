package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"

	"github.com/margolite/margolite/agent"
	"github.com/margolite/margolite/agent/control"
	"github.com/margolite/margolite/cmd/command"
)

// compose runs a Compose file without a WFM: through a running agent, else in this process.
func (c *cli) compose(f *command.Flags) command.Action {
	c.composeFlags(f) // as in compose -f FILE up
	var names []string
	for _, verb := range c.commands() {
		if name, is := strings.CutPrefix(verb.Name, "compose "); is {
			names = append(names, name)
		}
	}
	f.Takes(1, command.Many, "one of "+strings.Join(names, ", "))
	f.Own = 0
	return func(ctx context.Context, args []string) error {
		if !slices.Contains(names, args[0]) {
			return command.Usagef("unknown compose command %[2]q: use one of %[1]s", strings.Join(names, ", "), args[0])
		}
		return c.program().Run(ctx, "compose "+args[0], args[1:])
	}
}

type reached struct {
	control.Projects
	// supervise maintains what runs until ctx is done, as an agent does; nil if an agent runs.
	supervise func(ctx context.Context) error
}

// withProjects uses a running agent, else a runtime in this process that leaves containers running.
func (c *cli) withProjects(ctx context.Context, do func(*reached) error) error {
	client, cfg, err := c.client()
	if err != nil {
		return err
	}
	err = client.Ping(ctx)
	if err == nil {
		return do(&reached{Projects: client})
	}
	if !errors.Is(err, control.ErrNotRunning) {
		return err
	}
	if os.Geteuid() != 0 {
		return command.Hint(errors.New("cannot run containers: the agent is not running, and only root can run them without it"), "start the agent, or run this command as root")
	}
	c.boundMemory(ctx)
	w, err := openWorkloads(ctx, cfg, slog.New(slog.DiscardHandler), nil)
	if err != nil {
		return err
	}
	projects := agent.NewProjects(w.Engine, cfg.Runtime.Settle)
	return errors.Join(do(&reached{Projects: projects, supervise: w.Engine.Run}), w.Close())
}

func (p *composeProject) request(r control.ComposeRequest) control.ComposeRequest {
	r.Project, r.File, r.Files, r.Directory = p.ProjectName, p.Files[0], p.Files[1:], p.WorkingDir
	r.Contents, r.Environment, r.Profiles = p.Contents, p.Environment, p.Profiles
	return r
}

func (c *cli) composePull(f *command.Flags) command.Action {
	c.composeFlags(f)
	quiet := false
	f.BoolVar(&quiet, "quiet,q", false, "hide progress")
	policy := f.String("policy", "always", "pull `POLICY`: always, or missing for missing images only")
	f.Takes(0, command.Many, "services")
	return func(ctx context.Context, services []string) error {
		if *policy != "always" && *policy != "missing" {
			return command.Usagef("invalid policy %q: use always or missing", *policy)
		}
		if err := c.findProject(ctx); err != nil {
			return err
		}
		r := c.project.request(control.ComposeRequest{Services: services, Pull: *policy})
		return c.withProjects(ctx, func(w *reached) error {
			shown, moved := c.newProgress(quiet), false
			err := w.ComposePull(ctx, r, func(e control.Event) {
				moved = moved || e.Progress != nil
				shown.event(e)
			})
			shown.finish(err)
			if err == nil && !moved && !quiet {
				fmt.Fprintln(c.err, "The images are up to date.")
			}
			return err
		})
	}
}

func (c *cli) composeDown(f *command.Flags) command.Action {
	c.composeFlags(f)
	r := control.DownRequest{}
	f.BoolVar(&r.Volumes, "volumes,v", false, "also remove its named volumes and their content")
	timeoutFlag(f, &r.Timeout)
	var habit bool
	f.BoolVar(&habit, "remove-orphans", true, "accepted for compatibility: down always removes the whole project")
	return func(ctx context.Context, _ []string) error {
		if err := c.findName(ctx); err != nil {
			return err
		}
		r.Project = c.project.ProjectName
		return c.withProjects(ctx, func(w *reached) error { return c.takeDown(ctx, w, r) })
	}
}

func (c *cli) takeDown(ctx context.Context, w *reached, r control.DownRequest) error {
	services, err := w.ComposePs(ctx, r.Project)
	if err != nil {
		return err
	}
	shown := c.newProgress(false)
	steps := func(state string) {
		for _, s := range slices.Backward(services) {
			shown.event(control.Event{Kind: control.ServiceChanged, State: state, Text: fmt.Sprintf("%s %s-%d", downStep, s.Name, s.Number)})
		}
	}
	steps(control.Begun)
	err = w.ComposeDown(ctx, r)
	if err == nil {
		steps("")
	}
	shown.finish(err)
	if err == nil && len(services) == 0 {
		fmt.Fprintf(c.err, "Project %s has no containers.\n", r.Project)
	}
	return err
}
