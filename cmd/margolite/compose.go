package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"

	"github.com/margolite/margolite/agent"
	"github.com/margolite/margolite/agent/control"
	"github.com/margolite/margolite/runtime/compose"
)

// composeFiles are the names that are looked for when none is given.
var composeFiles = []string{"compose.yaml", "compose.yml", "docker-compose.yaml", "docker-compose.yml"}

// compose runs a Compose file without a WFM: through the agent where one runs,
// else with the same runtime in this process.
func (c *cli) compose(ctx context.Context, args []string) error {
	p := &composeProject{}
	before := c.composeFlags("compose", p) // as in compose -f FILE up
	if err := before.Parse(args); err != nil {
		return c.flagError(err, func(w io.Writer) { c.usage(w, before) })
	}
	if before.NArg() == 0 {
		return usagef("compose needs one of up, down, ps, logs, config")
	}
	verb, args := before.Arg(0), before.Args()[1:]
	f := c.composeFlags("compose "+verb, p)

	switch verb {
	case "up":
		var detach bool
		f.BoolVar(&detach, "d", false, "accepted for habit: up always returns once the services run")
		f.BoolVar(&detach, "detach", false, "the same as -d")
		if err := c.parseNone(f, args); err != nil {
			return err
		}
		if err := p.find(c.env); err != nil {
			return err
		}
		return c.withProjects(ctx, func(projects control.Projects) error { return c.composeUp(ctx, projects, p) })
	case "down":
		if err := c.parseNone(f, args); err != nil {
			return err
		}
		if err := p.findName(c.env); err != nil {
			return err
		}
		return c.withProjects(ctx, func(projects control.Projects) error { return projects.ComposeDown(ctx, p.name) })
	case "ps":
		all := false
		c.jsonFlag(f)
		f.BoolVar(&all, "a", false, "of all projects")
		f.BoolVar(&all, "all", false, "the same as -a")
		if err := c.parseNone(f, args); err != nil {
			return err
		}
		if !all {
			if err := p.findName(c.env); err != nil {
				return err
			}
		}
		return c.withProjects(ctx, func(projects control.Projects) error { return c.composePs(ctx, projects, p.name) })
	case "logs":
		r := control.LogsRequest{}
		f.BoolVar(&r.Follow, "follow", false, "go on as more is printed")
		f.IntVar(&r.Tail, "tail", 0, "only the last `N` lines")
		rest, err := c.parse(f, args)
		if err != nil {
			return err
		}
		if len(rest) > 1 {
			return usagef("compose logs takes one service at most")
		}
		if err := p.findName(c.env); err != nil {
			return err
		}
		r.Project = p.name
		if len(rest) == 1 {
			r.Service = rest[0]
		}
		return c.withProjects(ctx, func(projects control.Projects) error { return projects.ComposeLogs(ctx, r, c.out) })
	case "config":
		if err := c.parseNone(f, args); err != nil {
			return err
		}
		if err := p.find(c.env); err != nil {
			return err
		}
		return c.composeConfig(ctx, p)
	}
	return usagef("compose knows up, down, ps, logs and config, not %q", verb)
}

// composeFlags makes a flag set with what every verb of compose takes.
func (c *cli) composeFlags(name string, p *composeProject) *flag.FlagSet {
	f := c.flags(name)
	f.StringVar(&p.file, "f", p.file, "Compose `FILE`; default: compose.yaml and its other usual names here")
	f.StringVar(&p.file, "file", p.file, "the same as -f")
	f.StringVar(&p.name, "p", p.name, "`PROJECT` name; default: the directory of the file")
	f.StringVar(&p.name, "project-name", p.name, "the same as -p")
	return f
}

// composeProject is the project that the command line means.
type composeProject struct {
	file, name  string
	environment map[string]string
}

// find completes the file and the name.
func (p *composeProject) find(env []string) error {
	p.environment = make(map[string]string, len(env))
	for _, v := range env {
		if key, value, ok := strings.Cut(v, "="); ok && key != "" {
			p.environment[key] = value
		}
	}
	if p.file == "" {
		for _, name := range composeFiles {
			if _, err := os.Stat(name); err == nil {
				p.file = name
				break
			}
		}
	}
	if p.file == "" {
		return &hintError{errors.New("there is no Compose file here"), "name one with -f FILE"}
	}
	var err error
	if p.file, err = filepath.Abs(p.file); err != nil {
		return fmt.Errorf("cannot find Compose file %s: %w", p.file, err)
	}
	if _, err := os.Stat(p.file); err != nil {
		return fmt.Errorf("cannot read Compose file: %w", err)
	}
	if p.name == "" {
		p.name = compose.ProjectName(p.file, p.environment)
	}
	return nil
}

// findName completes the name; the file is not needed if the name is given.
func (p *composeProject) findName(env []string) error {
	if p.name != "" {
		return nil
	}
	return p.find(env)
}

// withProjects calls do with the agent, if one runs, else with a runtime in
// this process that leaves the containers running when it is done.
func (c *cli) withProjects(ctx context.Context, do func(control.Projects) error) error {
	client, cfg, err := c.client(false)
	if err != nil {
		return err
	}
	err = client.Ping(ctx)
	if err == nil {
		return do(client)
	}
	if !errors.Is(err, control.ErrNotRunning) {
		return err
	}
	if os.Geteuid() != 0 {
		return &hintError{errors.New("no agent runs, and only root can run containers without it"), "start the agent, or repeat this as root"}
	}
	w, err := openWorkloads(ctx, cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	return errors.Join(do(agent.NewProjects(w.Engine, cfg.Runtime.Settle)), w.Close())
}

func (c *cli) composeUp(ctx context.Context, projects control.Projects, p *composeProject) error {
	printer := &progressPrinter{out: c.err}
	err := projects.ComposeUp(ctx, control.ComposeRequest{Project: p.name, File: p.file, Environment: p.environment}, printer.event)
	printer.finish()
	if err != nil {
		return err
	}
	return c.composePs(ctx, projects, p.name)
}

func (c *cli) composePs(ctx context.Context, projects control.Projects, project string) error {
	services, err := projects.ComposePs(ctx, project)
	if err != nil {
		return err
	}
	if c.json {
		if services == nil {
			services = []control.Service{}
		}
		return c.printJSON(services)
	}
	w := tabwriter.NewWriter(c.out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "PROJECT\tSERVICE\tSTATE\tCONTAINER\tADDRESS\tPORTS")
	for _, s := range services {
		state := s.State
		if s.ExitCode != nil {
			state = fmt.Sprintf("%s (%d)", state, *s.ExitCode)
		}
		fmt.Fprintf(w, "%s\t%s-%d\t%s\t%.12s\t%s\t%s\n", s.Project, s.Name, s.Number, state, s.Container, s.Address, strings.Join(s.Ports, " "))
	}
	return w.Flush()
}

// composeConfig prints the project as it was understood, or says what is not
// supported. It touches nothing.
func (c *cli) composeConfig(ctx context.Context, p *composeProject) error {
	project, err := compose.Load(ctx, compose.Options{ProjectName: p.name, ComposeFile: p.file, Environment: p.environment})
	if err != nil {
		return err
	}
	for _, w := range project.Warnings {
		fmt.Fprintf(c.err, "warning: %s\n", w)
	}
	text, err := project.Compose.MarshalYAML()
	if err != nil {
		return fmt.Errorf("cannot print the project: %w", err)
	}
	_, err = c.out.Write(text)
	return err
}

// progressPrinter shows what happens while a project comes up.
type progressPrinter struct {
	out  io.Writer
	open bool // the last line is not finished
}

func (p *progressPrinter) event(e control.Event) {
	switch {
	case e.Progress != nil:
		fmt.Fprintf(p.out, "\r\033[K%s: %s", e.Progress.Object, bytesOf(e.Progress))
		p.open = true
	case e.Text != "":
		p.finish()
		fmt.Fprintf(p.out, "%s %s%s\n", e.Text, e.Service, prefixed(": ", e.State))
	}
}

func (p *progressPrinter) finish() {
	if p.open {
		fmt.Fprintln(p.out)
	}
	p.open = false
}
