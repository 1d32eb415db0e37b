package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/margolite/margolite/agent/control"
	"github.com/margolite/margolite/cmd/command"
)

func timeoutFlag(f *command.Flags, to **int) {
	f.Func("timeout,t", "give a container `SECONDS` to stop; default: from the file", func(s string) error {
		n, err := strconv.Atoi(s)
		if err != nil || n < 0 || n > 3600 {
			return fmt.Errorf("invalid time %q: use 0 to 3600 seconds", s)
		}
		*to = &n
		return nil
	})
}

func (c *cli) composeUp(f *command.Flags) command.Action {
	c.composeFlags(f)
	var detach, attach, quiet, habit bool
	var options control.ComposeRequest
	f.BoolVar(&detach, "detach,d", false, "accepted for compatibility: up always returns once the services run and are healthy")
	f.BoolVar(&attach, "attach", false, "show the output until interrupted, then remove the project")
	f.Func("scale", "run N replicas of a service: `SERVICE=N`; may be repeated", func(s string) error {
		service, text, ok := strings.Cut(s, "=")
		n, err := strconv.Atoi(text)
		if !ok || service == "" || err != nil || n < 0 {
			return fmt.Errorf("invalid scale %q: use SERVICE=NUMBER", s)
		}
		if options.Scale == nil {
			options.Scale = map[string]int{}
		}
		options.Scale[service] = n
		return nil
	})
	f.Func("pull", "pull images `WHEN`: always, missing or never; default: from the file", func(s string) error {
		switch s {
		case "always", "missing", "never":
			options.Pull = s
			return nil
		}
		return fmt.Errorf("invalid pull policy %q: use always, missing or never", s)
	})
	f.BoolVar(&options.Recreate, "force-recreate", false, "recreate unchanged containers as well")
	timeoutFlag(f, &options.Timeout)
	f.BoolVar(&quiet, "quiet,q", false, "hide progress and the list of containers")
	f.BoolVar(&habit, "remove-orphans", true, "accepted for compatibility: containers of removed services are always removed")
	f.BoolVar(&habit, "wait", true, "accepted for compatibility: up always waits")
	f.Takes(0, command.Many, "services")
	return func(ctx context.Context, services []string) error {
		switch {
		case attach && detach:
			return command.Usagef("give compose up --attach or --detach, not both")
		case options.Recreate && len(services) > 0:
			return command.Usagef("--force-recreate cannot be limited to some services")
		}
		options.Services = services
		return c.bringUp(ctx, options, attach, quiet)
	}
}

func (c *cli) bringUp(ctx context.Context, options control.ComposeRequest, attach, quiet bool) error {
	p := &c.project
	if err := c.findProject(ctx); err != nil {
		return err
	}
	r := p.request(options)
	return c.withProjects(ctx, func(w *reached) error {
		begun := time.Now()
		shown := c.newProgress(quiet)
		err := w.ComposeUp(ctx, r, shown.event)
		shown.finish(err)
		if err != nil {
			return err
		}
		if attach {
			return c.attach(ctx, w, r, begun)
		}
		if w.supervise != nil {
			fmt.Fprintln(c.err, "note: without the agent nothing restarts these services when they end, or after a reboot;"+
				" `margolite run`, as a system service, does")
		}
		if quiet {
			return nil
		}
		services, err := w.ComposePs(ctx, p.ProjectName)
		if err != nil {
			return err
		}
		return c.printContainers(services)
	})
}

// attach shows the output of a project's services until ctx is done, and then removes the project.
// Without an agent this process supervises it meanwhile.
func (c *cli) attach(ctx context.Context, w *reached, r control.ComposeRequest, since time.Time) error {
	c.lasting.Store(true)
	g, watching := errgroup.WithContext(ctx)
	watching, end := context.WithCancel(watching)
	defer end()
	if w.supervise != nil {
		g.Go(func() error { return w.supervise(watching) })
	}
	g.Go(func() error {
		defer end() // all containers are gone
		return w.Logs(watching, control.LogsRequest{
			Project: r.Project, Services: r.Services, Follow: true, Since: since, Prefix: control.PrefixAlways, Color: c.colored(),
		}, c.out)
	})
	err := g.Wait()
	if ctx.Err() == nil {
		return err
	}
	fmt.Fprintf(c.err, "\nremoving project %s; press Ctrl-C again to leave it running\n", r.Project)
	down := control.DownRequest{Project: r.Project, Timeout: r.Timeout}
	if err := c.takeDown(context.WithoutCancel(ctx), w, down); err != nil {
		return err
	}
	if errors.Is(err, context.Canceled) {
		err = nil
	}
	return err
}
