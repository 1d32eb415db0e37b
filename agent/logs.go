package agent

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/margolite/margolite/agent/control"
	"github.com/margolite/margolite/runtime"
	"github.com/margolite/margolite/runtime/contain"
)

// Logs writes the output of the services of a deployment or project.
func (a *Agent) Logs(ctx context.Context, r control.LogsRequest, w io.Writer) error {
	if r.Project != "" {
		return a.Projects.Logs(ctx, r, w)
	}
	return a.logs(ctx, a.projectsOf, r.Deployment, r, w)
}

// Logs writes the output of the services of a project.
func (p *Projects) Logs(ctx context.Context, r control.LogsRequest, w io.Writer) error {
	return p.logs(ctx, p.named, r.Project, r, w)
}

// logs writes the output of projects one after the other, or mixed when following.
func (p *Projects) logs(ctx context.Context, find finder, name string, r control.LogsRequest, w io.Writer) error {
	projects, err := find(ctx, name)
	if err != nil {
		return err
	}
	for _, service := range r.Services {
		if !slices.ContainsFunc(projects, func(o runtime.ObservedProject) bool { return hasService(o, service) }) {
			return noService(service, projects)
		}
	}
	projects = slices.DeleteFunc(slices.Clone(projects), func(o runtime.ObservedProject) bool {
		return len(r.Services) > 0 && !slices.ContainsFunc(r.Services, func(s string) bool { return hasService(o, s) })
	})
	out := newLogPrinter(w, r, projects)
	g, ctx := errgroup.WithContext(ctx)
	if !r.Follow {
		g.SetLimit(1)
	}
	for _, o := range projects {
		g.Go(func() error {
			return contain.Call(func() error {
				return p.runtime.LogLines(ctx, runtime.LogsRequest{
					Project: o.Name, Services: r.Services, Tail: tailOf(r.Tail), Since: r.Since, Until: r.Until, Follow: r.Follow,
				}, func(l runtime.LogLine) error { return out.print(o.Name, l) })
			})
		})
	}
	return g.Wait()
}

func tailOf(lines *int) int {
	switch {
	case lines == nil:
		return 0
	case *lines == 0:
		return -1
	}
	return *lines
}

func hasService(o runtime.ObservedProject, name string) bool {
	return slices.ContainsFunc(o.Containers, func(c runtime.ObservedContainer) bool { return c.Service == name })
}

var colors = [...]string{"36", "33", "32", "35", "34", "96", "93", "92", "95", "94"}

// logPrinter writes lines of container, time and text without mixing those of containers.
type logPrinter struct {
	prefix, timestamps, color bool

	mu       sync.Mutex
	w        io.Writer
	width    int
	several  bool           // several projects: their names tell replicas apart
	prefixes map[string]int // number of each source, which selects its color
	line     bytes.Buffer
}

func newLogPrinter(w io.Writer, r control.LogsRequest, projects []runtime.ObservedProject) *logPrinter {
	p := &logPrinter{
		w: w, timestamps: r.Timestamps, color: r.Color, prefixes: map[string]int{},
		several: len(projects) > 1,
	}
	for _, o := range projects {
		for _, c := range o.Containers {
			if len(r.Services) == 0 || slices.Contains(r.Services, c.Service) {
				p.number(p.name(o.Name, c.Replica()))
			}
		}
	}
	p.prefix = r.Prefix == control.PrefixAlways || r.Prefix == control.PrefixAuto && len(p.prefixes) > 1
	return p
}

func (p *logPrinter) name(project string, r runtime.Replica) string {
	if p.several {
		return project + "/" + r.String()
	}
	return r.String()
}

// number returns the number of a source and widens the column for its name.
func (p *logPrinter) number(name string) int {
	n, known := p.prefixes[name]
	if !known {
		n = len(p.prefixes)
		p.prefixes[name] = n
		p.width = max(p.width, len(name))
	}
	return n
}

func (p *logPrinter) print(project string, l runtime.LogLine) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.line.Reset()
	if p.prefix {
		name := p.name(project, l.Replica)
		n := p.number(name)
		if p.color {
			fmt.Fprintf(&p.line, "\x1b[%sm%-*s  |\x1b[0m ", colors[n%len(colors)], p.width, name)
		} else {
			fmt.Fprintf(&p.line, "%-*s  | ", p.width, name)
		}
	}
	if p.timestamps && !l.Time.IsZero() {
		fmt.Fprintf(&p.line, "%s ", l.Time.UTC().Format(time.RFC3339Nano))
	}
	p.line.Write(bytes.TrimSuffix(l.Text, []byte("\n")))
	p.line.WriteByte('\n')
	_, err := p.w.Write(p.line.Bytes())
	return err
}
