package agent

import (
	"context"
	"fmt"
	"strings"

	"github.com/margolite/margolite/agent/control"
	"github.com/margolite/margolite/runtime"
	"github.com/margolite/margolite/runtime/container"
)

// Exec runs a command in a container of a deployment or project.
func (a *Agent) Exec(ctx context.Context, r control.ExecRequest, s control.ExecStreams) (int, error) {
	if r.Project != "" {
		return a.Projects.Exec(ctx, r, s)
	}
	return a.exec(ctx, a.projectsOf, r.Deployment, r, s)
}

// Exec runs a command in a container of a project.
func (p *Projects) Exec(ctx context.Context, r control.ExecRequest, s control.ExecStreams) (int, error) {
	return p.exec(ctx, p.named, r.Project, r, s)
}

func (p *Projects) exec(ctx context.Context, find finder, name string, r control.ExecRequest, s control.ExecStreams) (int, error) {
	projects, err := find(ctx, name)
	if err != nil {
		return 0, err
	}
	in, err := replicaFor(projects, r)
	if err != nil {
		return 0, err
	}
	return p.runtime.Exec(ctx, in, container.Exec{
		Args: r.Args, Env: r.Env, User: r.User, WorkingDir: r.WorkingDir, Privileged: r.Privileged, TTY: r.TTY,
		Stdin: s.Stdin, Stdout: s.Stdout, Stderr: s.Stderr, Resize: s.Resize,
	})
}

// replicaFor finds the container with the requested number, else the first that runs.
func replicaFor(projects []runtime.ObservedProject, r control.ExecRequest) (in runtime.ObservedContainer, err error) {
	var states []string
	found := false
	for _, o := range projects {
		for _, c := range o.Containers {
			if c.Service != r.Service {
				continue
			}
			found = true
			if r.Number != 0 && c.Number != r.Number {
				continue
			}
			if c.State == runtime.Running {
				return c, nil
			}
			states = append(states, fmt.Sprintf("%s is %s", c.Replica(), c.State))
		}
	}
	switch {
	case !found:
		return in, noService(r.Service, projects)
	case len(states) == 0:
		return in, fmt.Errorf("%w: service %s has no replica %d", control.ErrNotFound, r.Service, r.Number)
	}
	return in, fmt.Errorf("%w: service %s is not running: %s", control.ErrConflict, r.Service, strings.Join(states, ", "))
}
