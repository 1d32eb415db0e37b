package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"strings"

	"github.com/margolite/margolite/agent"
	"github.com/margolite/margolite/agent/control"
)

func composeVerbs() []command {
	return []command{
		{"compose up", "[SERVICE...]", "start a project and wait until it runs", (*cli).composeUp},
		{"compose down", "", "remove a project; named volumes stay", (*cli).composeDown},
		{"compose ps", "[SERVICE...]", "list the containers of a project", (*cli).composePs},
		{"compose logs", "[SERVICE...]", "show the output of services", (*cli).composeLogs},
		{"compose exec", "SERVICE COMMAND...", "run a command in a running container", (*cli).composeExec},
		{"compose config", "", "check the Compose file and print the resulting project", (*cli).composeConfig},
		{"compose pull", "[SERVICE...]", "pull the images of a project", (*cli).composePull},
	}
}

// compose runs a Compose file without a WFM: through the agent where one runs,
// else with the same runtime in this process.
func (c *cli) compose(ctx context.Context, args []string) error {
	before := c.composeFlags("compose") // as in compose -f FILE up
	if err := before.Parse(args); err != nil {
		return c.flagError(err, func(w io.Writer) { c.usage(w, before) })
	}
	verbs := composeVerbs()
	names := make([]string, len(verbs))
	for i, v := range verbs {
		names[i] = strings.TrimPrefix(v.name, "compose ")
	}
	if before.NArg() == 0 {
		return usagef("give compose one of %s", strings.Join(names, ", "))
	}
	i := slices.Index(names, before.Arg(0))
	if i < 0 {
		return usagef("unknown compose command %[2]q: use one of %[1]s", strings.Join(names, ", "), before.Arg(0))
	}
	return verbs[i].run(c, ctx, before.Args()[1:])
}

// reached is the way to the containers of this machine.
type reached struct {
	control.Projects
	// supervise looks after what runs until ctx is done, as the agent does; nil
	// where an agent does.
	supervise func(ctx context.Context) error
}

// withProjects calls do with the agent, if one runs, else with a runtime in
// this process that leaves the containers running when it is done.
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
		return &hintError{errors.New("cannot run containers: the agent is not running, and only root can run them without it"), "start the agent, or run this command as root"}
	}
	c.boundMemory(ctx)
	w, err := openWorkloads(ctx, cfg, slog.New(slog.DiscardHandler), nil)
	if err != nil {
		return err
	}
	projects := agent.NewProjects(w.Engine, cfg.Runtime.Settle)
	return errors.Join(do(&reached{Projects: projects, supervise: w.Engine.Run}), w.Close())
}

// request asks for the project, of which services are wanted; none: all.
func (p *composeProject) request(services []string) control.ComposeRequest {
	return control.ComposeRequest{
		Project: p.ProjectName, File: p.Files[0], Files: p.Files[1:], Directory: p.WorkingDir, Contents: p.Contents,
		Environment: p.Environment, Profiles: p.Profiles, Services: services,
	}
}

func (c *cli) composePull(ctx context.Context, args []string) error {
	p, f := &c.project, c.composeFlags("compose pull")
	quiet := false
	f.BoolVar(&quiet, "quiet", false, "hide progress")
	short(f, "q", "quiet")
	policy := f.String("policy", "always", "pull `POLICY`: always, or missing for missing images only")
	services, err := c.parse(f, args)
	if err != nil {
		return err
	}
	if *policy != "always" && *policy != "missing" {
		return usagef("invalid policy %q: use always or missing", *policy)
	}
	if err := c.findProject(ctx); err != nil {
		return err
	}
	r := p.request(services)
	r.Pull = *policy
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

func (c *cli) composeDown(ctx context.Context, args []string) error {
	p, f := &c.project, c.composeFlags("compose down")
	r := control.DownRequest{}
	f.BoolVar(&r.Volumes, "volumes", false, "also remove its named volumes and their content")
	short(f, "v", "volumes")
	timeoutFlag(f, &r.Timeout)
	var habit bool
	f.BoolVar(&habit, "remove-orphans", true, "accepted for compatibility: down always removes the whole project")
	if err := c.parseNone(f, args); err != nil {
		return err
	}
	if err := c.findName(ctx); err != nil {
		return err
	}
	r.Project = p.ProjectName
	return c.withProjects(ctx, func(w *reached) error { return c.takeDown(ctx, w, r) })
}

func (c *cli) takeDown(ctx context.Context, w *reached, r control.DownRequest) error {
	services, err := w.ComposePs(ctx, r.Project)
	if err != nil {
		return err
	}
	shown := c.newProgress(false)
	steps := func(state string) {
		for _, s := range slices.Backward(services) {
			shown.event(control.Event{Kind: control.ServiceChanged, State: state, Text: fmt.Sprintf("remove container %s-%d", s.Name, s.Number)})
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
