package agent

import (
	"context"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/margolite/margolite/agent/control"
	"github.com/margolite/margolite/runtime"
)

// Projects runs Compose files without a WFM, beside the deployments and never
// touching them.
type Projects struct {
	runtime Runtime
	settle  time.Duration
	staging sync.RWMutex // shared by who brings images that nothing uses yet; held alone to drop such
}

// NewProjects makes Projects of a runtime. settle is for how long a service
// must run to count as started.
func NewProjects(r Runtime, settle time.Duration) *Projects {
	return &Projects{runtime: r, settle: settle}
}

// ComposeUp makes a Compose file run and returns once it does.
func (p *Projects) ComposeUp(ctx context.Context, r control.ComposeRequest, notify func(control.Event)) error {
	if err := p.free(ctx, r.Project); err != nil {
		return err
	}
	p.staging.RLock()
	defer p.staging.RUnlock()
	project, err := p.runtime.Load(ctx, runtime.Source{Project: r.Project, File: r.File, Environment: r.Environment})
	if err != nil {
		return err
	}
	var mu sync.Mutex
	send := func(e control.Event) {
		mu.Lock()
		defer mu.Unlock()
		e.Component = r.Project
		notify(e)
	}
	for _, w := range project.Warnings() {
		send(control.Event{Kind: control.Warning, Text: "warning: " + w})
	}
	_, err = p.runtime.Stage(ctx, project, nil, func(t runtime.Progress) {
		send(control.Event{Kind: control.Transfer, Progress: &control.Progress{Object: t.Object, Done: t.Done, Total: t.Total}})
	})
	if err != nil {
		return err
	}
	return p.runtime.Apply(ctx, project, runtime.ApplyOptions{Settle: p.settle, Notify: func(e runtime.Event) {
		if e.Done {
			send(control.Event{Kind: control.ServiceChanged, Service: e.Service, Text: e.Step})
		}
	}})
}

// ComposeDown removes a project; its named volumes stay.
func (p *Projects) ComposeDown(ctx context.Context, project string) error {
	if err := p.free(ctx, project); err != nil {
		return err
	}
	return p.runtime.Remove(ctx, project)
}

// ComposePs lists the services of a project, or of all when it is empty.
func (p *Projects) ComposePs(ctx context.Context, project string) ([]control.Service, error) {
	observed, err := p.runtime.Observe(ctx)
	if err != nil {
		return nil, err
	}
	var all []control.Service
	for _, o := range observed {
		if project == "" || o.Name == project {
			all = append(all, services(o)...)
		}
	}
	return all, nil
}

// ComposeLogs writes what the services of a project printed.
func (p *Projects) ComposeLogs(ctx context.Context, r control.LogsRequest, w io.Writer) error {
	return p.projectLogs(ctx, []string{r.Project}, r, w)
}

// free refuses a project that belongs to a deployment: only the WFM changes it.
func (p *Projects) free(ctx context.Context, project string) error {
	observed, err := p.runtime.Observe(ctx)
	if err != nil {
		return err
	}
	i := slices.IndexFunc(observed, func(o runtime.ObservedProject) bool { return o.Name == project })
	if i >= 0 && observed[i].Labels[labelDeployment] != "" {
		return fmt.Errorf("%w: project %s belongs to deployment %s of the WFM", control.ErrConflict, project, observed[i].Labels[labelDeployment])
	}
	return nil
}

// projectLogs writes the logs of projects one after the other, or together
// when it follows.
func (p *Projects) projectLogs(ctx context.Context, projects []string, r control.LogsRequest, w io.Writer) error {
	o := runtime.LogOptions{Tail: r.Tail, Follow: r.Follow}
	if !r.Follow || len(projects) == 1 {
		for _, name := range projects {
			if err := p.runtime.Logs(ctx, name, r.Service, o, w); err != nil {
				return err
			}
		}
		return nil
	}
	shared := &lockedWriter{w: w}
	g, ctx := errgroup.WithContext(ctx)
	for _, name := range projects {
		g.Go(func() error { return p.runtime.Logs(ctx, name, r.Service, o, shared) })
	}
	return g.Wait()
}

// lockedWriter lets several writers take turns.
type lockedWriter struct {
	mu sync.Mutex
	w  io.Writer
}

func (l *lockedWriter) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(p)
}

// services describes the containers of a project.
func services(o runtime.ObservedProject) []control.Service {
	all := make([]control.Service, 0, len(o.Containers))
	for _, c := range o.Containers {
		s := control.Service{
			Project: o.Name, Name: c.Service, Number: c.Number, State: string(c.State), Container: c.ID,
			Image: c.Image, Address: c.Address, Ports: c.Ports, Pid: c.Pid,
		}
		if c.State == runtime.Stopped || c.State == runtime.Done {
			s.ExitCode = &c.ExitCode
		}
		all = append(all, s)
	}
	return all
}

func hasService(o runtime.ObservedProject, name string) bool {
	return slices.ContainsFunc(o.Containers, func(c runtime.ObservedContainer) bool { return c.Service == name })
}
