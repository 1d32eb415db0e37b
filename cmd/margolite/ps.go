package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/docker/go-units"

	"github.com/margolite/margolite/agent/control"
	"github.com/margolite/margolite/cmd/command"
)

func (c *cli) composePs(f *command.Flags) command.Action {
	c.composeFlags(f)
	c.jsonFlag(f)
	var all, quiet, names bool
	f.BoolVar(&all, "all,a", false, "list the containers of all projects, including deployments")
	f.BoolVar(&quiet, "quiet,q", false, "print ids only")
	f.BoolVar(&names, "services", false, "print the names of services only")
	f.Takes(0, command.Many, "services")
	return func(ctx context.Context, wanted []string) error {
		return c.listContainers(ctx, wanted, all, quiet, names)
	}
}

func (c *cli) listContainers(ctx context.Context, wanted []string, all, quiet, names bool) error {
	p := &c.project
	if all {
		p.ProjectName = ""
	} else if err := c.findName(ctx); err != nil {
		return err
	}
	return c.withProjects(ctx, func(w *reached) error {
		services, err := w.ComposePs(ctx, p.ProjectName)
		if err != nil {
			return err
		}
		if w.supervise != nil {
			for i := range services {
				services[i].Health = nil // without an agent there are no probes
			}
		}
		for _, name := range wanted {
			if !slices.ContainsFunc(services, func(s control.Service) bool { return s.Name == name }) {
				return fmt.Errorf("unknown service %q of project %s%s", name, p.ProjectName, prefixed("; known: ", strings.Join(serviceNames(services), ", ")))
			}
		}
		if len(wanted) > 0 {
			services = slices.DeleteFunc(services, func(s control.Service) bool { return !slices.Contains(wanted, s.Name) })
		}
		switch {
		case quiet:
			for _, s := range services {
				fmt.Fprintln(c.out, s.Container)
			}
			return nil
		case names:
			return c.list(serviceNames(services))
		case c.json:
			return c.printJSON(append([]control.Service{}, services...))
		}
		return c.printContainers(services)
	})
}

func serviceNames(services []control.Service) []string {
	var names []string
	for _, s := range services {
		names = append(names, s.Name)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

func (c *cli) printContainers(services []control.Service) error {
	now := time.Now()
	w := table(c.out)
	fmt.Fprintln(w, "NAME\tIMAGE\tSERVICE\tSTATUS\tPORTS")
	for _, s := range services {
		name := s.ContainerName
		if name == "" {
			name = fmt.Sprintf("%s-%s-%d", s.Project, s.Name, s.Number)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", name, imageOf(s.Image), s.Name, statusOf(s, now), strings.Join(s.Ports, ", "))
	}
	return w.Flush()
}

func imageOf(image string) string {
	name, digest, found := strings.Cut(image, "@")
	if !found {
		return image
	}
	return name + "@" + shortDigest(digest)
}

func statusOf(s control.Service, now time.Time) string {
	var status string
	code := 0
	if s.ExitCode != nil {
		code = *s.ExitCode
	}
	switch s.State {
	case "running", "paused", "unresponsive":
		status = "Up"
		if !s.Started.IsZero() {
			status += " " + units.HumanDuration(now.Sub(s.Started))
		}
		status += map[string]string{"paused": " (paused)", "unresponsive": " (not responding)"}[s.State]
	case "stopped", "done":
		status = fmt.Sprintf("Exited (%d)", code)
		if !s.Ended.IsZero() {
			status += " " + units.HumanDuration(now.Sub(s.Ended)) + " ago"
		}
	default:
		status = "Created"
	}
	if s.Health != nil {
		health := s.Health.Status
		if health == "starting" {
			health = "health: starting"
		}
		status += " (" + health + ")"
	}
	switch {
	case s.Waiting != "":
		status += ", waits: " + strings.ReplaceAll(indented(s.Waiting), "\n", " ")
	case s.Restarts > 0:
		status += ", " + plural(s.Restarts, "restart")
	}
	return status
}
