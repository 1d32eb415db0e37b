package agent

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/margolite/margolite/agent/control"
	"github.com/margolite/margolite/runtime"
	"github.com/margolite/margolite/runtime/compose"
	"github.com/margolite/margolite/runtime/limit"
)

// Projects runs Compose files without a WFM. It never touches deployments.
type Projects struct {
	runtime Runtime
	settle  atomic.Int64   // a time.Duration
	staging *limit.Limiter // for bringing images not used yet; shut for dropping images

	// Used only within an agent:
	tidied     func()                // called after images were brought or dropped
	later      func()                // drops images when other work on images ends
	remembered func() (needs, error) // needs of the agent's records
}

// brings protects arriving images and the project's volumes from being dropped until done.
func (p *Projects) brings(ctx context.Context, project string) (done func(), err error) {
	slot, err := p.staging.Acquire(ctx, limit.Key{Party: project, Kind: others}, nil, nil)
	if err != nil {
		return nil, err
	}
	return func() {
		slot.Release()
		p.tidied()
	}, nil
}

// whileAlone calls do while nobody else brings or drops images; false: others did for all of
// pruneWait. Deployments waiting for a slow registry are interrupted and resume afterwards. A
// prune that this one held off is made afterwards.
func (p *Projects) whileAlone(ctx context.Context, do func() error) (bool, error) {
	ctx, stop := context.WithTimeout(ctx, pruneWait)
	defer stop()
	open, ok := p.staging.Shut(ctx)
	for !ok {
		select {
		case <-time.After(pruneLook):
		case <-ctx.Done():
			return false, nil
		}
		open, ok = p.staging.Shut(ctx)
	}
	err := func() error {
		defer open()
		return do()
	}()
	p.tidied()
	return true, err
}

// longestSettle is enough for a command that cannot start to fail. Users see later failures
// themselves.
const longestSettle = 300 * time.Millisecond

// NewProjects makes Projects of a runtime. settle is how long the services of a deployment must
// run; those of a Compose file must for no longer than longestSettle.
func NewProjects(r Runtime, settle time.Duration) *Projects {
	p := &Projects{
		runtime: r, staging: newStaging(),
		tidied: func() {}, later: func() {}, remembered: func() (needs, error) { return needs{}, nil },
	}
	p.configure(settle)
	return p
}

func (p *Projects) configure(settle time.Duration) { p.settle.Store(int64(min(settle, longestSettle))) }

// ComposeUp makes Compose files run. If services are named, existing others stay as well.
func (p *Projects) ComposeUp(ctx context.Context, r control.ComposeRequest, notify func(control.Event)) error {
	before, err := p.free(ctx, r.Project)
	if err != nil {
		return err
	}
	if r.Recreate && len(r.Services) > 0 {
		return fmt.Errorf("%w: give all services of a project to recreate, or none", control.ErrInvalid)
	}
	done, err := p.brings(ctx, r.Project)
	if err != nil {
		return err
	}
	defer done()
	send := sender(r.Project, notify)
	project, err := p.load(ctx, r, before, send)
	if err != nil {
		return err
	}
	if err := p.stage(ctx, project, send); err != nil {
		return err
	}
	if r.Recreate {
		if err := p.runtime.RemoveWith(ctx, r.Project, runtime.RemoveOptions{StopTimeout: control.Duration(r.Timeout)}); err != nil {
			return err
		}
	}
	return p.runtime.Apply(ctx, project, runtime.ApplyOptions{Settle: time.Duration(p.settle.Load()), Notify: func(e runtime.Event) {
		event := control.Event{Kind: control.ServiceChanged, Service: e.Service, Text: e.Step}
		if !e.Done {
			event.State = control.Begun
		}
		send(event)
	}})
}

// ComposePull updates the images of Compose files.
func (p *Projects) ComposePull(ctx context.Context, r control.ComposeRequest, notify func(control.Event)) error {
	done, err := p.brings(ctx, r.Project)
	if err != nil {
		return err
	}
	defer done()
	if r.Pull == "" {
		r.Pull = string(compose.PullAlways)
	}
	send := sender(r.Project, notify)
	project, err := p.load(ctx, r, nil, send)
	if err != nil {
		return err
	}
	return p.stage(ctx, project, send)
}

// load reads the requested project. Naming services drops none of before, the existing ones.
func (p *Projects) load(ctx context.Context, r control.ComposeRequest, before []runtime.ObservedContainer, send func(control.Event)) (*runtime.Project, error) {
	files := r.AllFiles()
	if len(files) == 0 {
		return nil, fmt.Errorf("%w: no Compose file given", control.ErrInvalid)
	}
	profiles := r.Profiles
	if len(r.Services) > 0 {
		profiles = []string{"*"} // naming a service enables its profiles
	}
	project, err := p.runtime.Load(ctx, runtime.Source{
		Project: r.Project, File: files[0], Files: files[1:], Directory: r.Directory, Contents: r.Contents,
		Environment: r.Environment, Profiles: profiles, Scale: r.Scale,
	})
	if err != nil {
		return nil, err
	}
	for service := range r.Scale {
		if project.Compose.Services[service] == nil {
			return nil, fmt.Errorf("%w: unknown service %.80q to scale; known: %s", control.ErrInvalid, service, strings.Join(project.Services(), ", "))
		}
	}
	if len(r.Services) > 0 {
		names := slices.Clone(r.Services)
		for _, c := range before {
			if project.Compose.Services[c.Service] != nil {
				names = append(names, c.Service)
			}
		}
		if err := project.Compose.Select(names...); err != nil {
			return nil, fmt.Errorf("%w: %w", control.ErrInvalid, err)
		}
	}
	if r.Pull != "" {
		for _, s := range project.Compose.Services {
			s.PullPolicy = compose.PullPolicy(r.Pull)
		}
	}
	for _, w := range project.Warnings() {
		send(control.Event{Kind: control.Warning, Text: "warning: " + w})
	}
	for _, note := range project.Compose.Notes() {
		send(control.Event{Kind: control.Warning, Text: "note: " + note})
	}
	return project, nil
}

func (p *Projects) stage(ctx context.Context, project *runtime.Project, send func(control.Event)) error {
	_, err := p.runtime.Stage(ctx, project, nil, func(t runtime.Progress) {
		send(control.Event{Kind: control.Transfer, Progress: &control.Progress{Object: t.Object, Done: t.Done, Total: t.Total}})
	})
	return err
}

func sender(project string, notify func(control.Event)) func(control.Event) {
	var mu sync.Mutex
	return func(e control.Event) {
		mu.Lock()
		defer mu.Unlock()
		e.Component = project
		notify(e)
	}
}

// ComposeDown removes a project, and its named volumes only if requested.
func (p *Projects) ComposeDown(ctx context.Context, r control.DownRequest) error {
	if _, err := p.free(ctx, r.Project); err != nil {
		return err
	}
	return p.runtime.RemoveWith(ctx, r.Project, runtime.RemoveOptions{Volumes: r.Volumes, StopTimeout: control.Duration(r.Timeout)})
}

// ComposePs lists the services of a project, or of all if it is empty.
func (p *Projects) ComposePs(ctx context.Context, project string) ([]control.Service, error) {
	if project != "" {
		o, err := p.runtime.ObserveProject(ctx, project)
		return services(o), err
	}
	observed, err := p.runtime.Observe(ctx)
	if err != nil {
		return nil, err
	}
	var all []control.Service
	for _, o := range observed {
		all = append(all, services(o)...)
	}
	return all, nil
}

// free returns a project's containers, but refuses one of a deployment: the WFM owns that.
func (p *Projects) free(ctx context.Context, project string) ([]runtime.ObservedContainer, error) {
	observed, err := p.runtime.ObserveProject(ctx, project)
	if err != nil {
		return nil, err
	}
	if d := observed.Labels[labelDeployment]; d != "" {
		return nil, fmt.Errorf("%w: project %s belongs to deployment %s of the WFM", control.ErrConflict, project, d)
	}
	return observed.Containers, nil
}

// finder finds what runs under a name; the error lists the alternatives.
type finder func(ctx context.Context, name string) ([]runtime.ObservedProject, error)

func (p *Projects) named(ctx context.Context, project string) ([]runtime.ObservedProject, error) {
	observed, err := p.runtime.Observe(ctx)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, o := range observed {
		if o.Name == project {
			return []runtime.ObservedProject{o}, nil
		}
		names = append(names, o.Name)
	}
	if len(names) == 0 {
		return nil, fmt.Errorf("project %q: %w; there are none", project, control.ErrNotFound)
	}
	return nil, fmt.Errorf("project %q: %w; known: %s", project, control.ErrNotFound, strings.Join(names, ", "))
}

func noService(service string, projects []runtime.ObservedProject) error {
	var names []string
	for _, o := range projects {
		for _, c := range o.Containers {
			if !slices.Contains(names, c.Service) {
				names = append(names, c.Service)
			}
		}
	}
	slices.Sort(names)
	return fmt.Errorf("service %q: %w; known: %s", service, control.ErrNotFound, strings.Join(names, ", "))
}

func services(o runtime.ObservedProject) []control.Service {
	all := make([]control.Service, 0, len(o.Containers))
	for _, c := range o.Containers {
		s := control.Service{
			Project: o.Name, Name: c.Service, Number: c.Number, State: string(c.State), Container: c.ID,
			Image: c.Image, Address: c.Address, Ports: c.Ports, Pid: c.Pid,
			ContainerName: c.Name, Restarts: c.Restarts, Waiting: c.Waiting,
		}
		if s.ContainerName == "" {
			s.ContainerName = fmt.Sprintf("%s-%s-%d", o.Name, c.Service, c.Number)
		}
		if c.State == runtime.Stopped || c.State == runtime.Done {
			s.ExitCode = &c.ExitCode
			s.Ended = c.ExitedAt.UTC()
		} else {
			s.Started = c.Started.UTC()
		}
		if h := c.Health; h.State != "" {
			s.Health = &control.Health{Status: string(h.State), Failures: h.Failures, ExitCode: h.Code, Output: h.Output, Skipped: h.Skipped}
		}
		all = append(all, s)
	}
	return all
}
