package agent_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/margolite/margolite/agent"
	"github.com/margolite/margolite/agent/control"
	"github.com/margolite/margolite/runtime"
	"github.com/margolite/margolite/runtime/compose"
	"github.com/margolite/margolite/runtime/container"
	"github.com/margolite/margolite/runtime/health"
	"github.com/margolite/margolite/test/expect"
)

// machine is a runtime in memory on which projects run already, and which notes what
// it is asked for.
type machine struct {
	*fakeRuntime
	warnings []string
	asked    []string
	source   runtime.Source
	services []string
	policies map[string]compose.PullPolicy
	command  container.Exec
}

func (m *machine) note(format string, args ...any) {
	m.set(func() { m.asked = append(m.asked, fmt.Sprintf(format, args...)) })
}

func (m *machine) Load(_ context.Context, s runtime.Source) (*runtime.Project, error) {
	m.source = s
	needs := func(services ...string) (d []compose.Dependency) {
		for _, name := range services {
			d = append(d, compose.Dependency{Service: name})
		}
		return d
	}
	return &runtime.Project{Name: s.Project, Compose: &compose.Project{
		Warnings: m.warnings, Networks: map[string]*compose.Network{"lan": {Driver: "bridge"}},
		Services: map[string]*compose.Service{
			"web": {Name: "web", DependsOn: needs("db"), Ports: []compose.Port{{ContainerPort: 80}}, Attached: []compose.Attachment{{Network: "lan"}}}, "db": {Name: "db"}, "job": {Name: "job"}, "other": {Name: "other"},
		},
	}}, nil
}

func (m *machine) Stage(_ context.Context, p *runtime.Project, _ map[string]digest.Digest, progress func(runtime.Progress)) (map[string]digest.Digest, error) {
	m.services = slices.Sorted(maps.Keys(p.Compose.Services))
	m.policies = map[string]compose.PullPolicy{}
	for name, s := range p.Compose.Services {
		m.policies[name] = s.PullPolicy
	}
	m.note("stage %s", p.Name)
	progress(runtime.Progress{Object: "image", Done: 1, Total: 2})
	return nil, nil
}

func (m *machine) Apply(_ context.Context, p *runtime.Project, o runtime.ApplyOptions) error {
	m.note("apply %s", p.Name)
	o.Notify(runtime.Event{Step: "start container web-1", Service: "web"})
	o.Notify(runtime.Event{Step: "start container web-1", Service: "web", Done: true})
	return nil
}

func (m *machine) RemoveWith(_ context.Context, project string, o runtime.RemoveOptions) error {
	m.note("remove %s volumes %v", project, o.Volumes)
	return nil
}

func (m *machine) Exec(_ context.Context, in runtime.ObservedContainer, x container.Exec) (int, error) {
	m.note("exec %s", in.Replica())
	m.command = x
	if x.Resize != nil {
		m.note("size %v", <-x.Resize)
	}
	return 7, nil
}

func (m *machine) LogLines(_ context.Context, r runtime.LogsRequest, each func(runtime.LogLine) error) error {
	m.note("logs %s %v tail %d follow %v", r.Project, r.Services, r.Tail, r.Follow)
	at := time.Date(2026, 1, 31, 12, 0, 0, 5, time.UTC)
	for _, c := range m.projects[r.Project].Containers {
		if len(r.Services) > 0 && !slices.Contains(r.Services, c.Service) {
			continue
		}
		if err := each(runtime.LogLine{Replica: c.Replica(), Time: at, Text: []byte("hello\n")}); err != nil {
			return err
		}
	}
	return nil
}

func (m *machine) RemoveVolume(_ context.Context, project, name string) error {
	if name == "busy" {
		return errors.New("a container mounts it")
	}
	m.note("remove volume %s/%s", project, name)
	return nil
}

func (m *machine) Prune(context.Context, runtime.Keep) ([]string, error) {
	m.note("prune")
	var names []string
	for _, i := range m.images {
		names = append(names, i.Name)
	}
	return names, nil
}

// trial is a machine with a project of two replicas and a job, and one of a deployment.
func trial() *machine {
	web := func(number int, state runtime.State) runtime.ObservedContainer {
		return runtime.ObservedContainer{Container: container.Container{ID: "w", State: state, Labels: container.Labels{Service: "web", Number: number}}}
	}
	m := &machine{fakeRuntime: newFakeRuntime()}
	m.projects = map[string]*runtime.ObservedProject{
		"managed": {Name: "managed", Labels: map[string]string{"io.margo.deployment": first}, Containers: []runtime.ObservedContainer{web(1, runtime.Running)}},
		"trial": {Name: "trial", Containers: []runtime.ObservedContainer{
			web(1, runtime.Stopped), web(2, runtime.Running), web(3, runtime.Running),
			{Container: container.Container{ID: "j", State: runtime.Done, Labels: container.Labels{Service: "job", Number: 1}}},
		}},
	}
	return m
}

func TestComposeUpTakesOnlyTheServicesNamed(t *testing.T) {
	m := trial()
	p := agent.NewProjects(m, 0)
	var events []string
	notify := func(e control.Event) {
		events = append(events, strings.TrimSpace(fmt.Sprintf("%s %s %s", e.Kind, e.Text, e.State)))
	}
	m.warnings = []string{"doubtful"}
	r := control.ComposeRequest{Project: "new", File: "/a.yaml", Files: []string{"/b.yaml"}, Profiles: []string{"debug"}, Scale: map[string]int{"web": 2}, Contents: map[string][]byte{"/a.yaml": {}}}
	check(t, p.ComposeUp(t.Context(), r, notify))
	want := []string{"warning warning: doubtful", `warning note: network "lan" has no enable_ipv6: true: its ports are published on IPv4 addresses only`, "transfer", "service.changed start container web-1 begun", "service.changed start container web-1"}
	expect.Equal(t, events, want, "events")
	expect.Equal(t, m.source, runtime.Source{Project: "new", File: r.File, Files: r.Files, Profiles: r.Profiles, Scale: r.Scale, Contents: r.Contents}, "source of the project")
	expect.Equal(t, m.services, []string{"db", "job", "other", "web"}, "all services")

	// What runs already stays, and what is named comes with what it needs.
	r.Project, r.Services, r.Pull = "trial", []string{"db"}, "always"
	check(t, p.ComposeUp(t.Context(), r, notify))
	expect.Equal(t, m.services, []string{"db", "job", "web"}, "services")
	expect.Equal(t, m.policies["db"], compose.PullAlways, "policy")
	expect.Equal(t, m.source.Profiles, []string{"*"}, "profiles")
	check(t, p.ComposePull(t.Context(), control.ComposeRequest{Project: "trial", File: "/a.yaml", Services: []string{"web"}}, notify))
	expect.Equal(t, m.services, []string{"db", "web"}, "services pulled for")
	expect.Equal(t, m.policies["web"], compose.PullAlways, "policy")
	m.asked = nil
	check(t, p.ComposeUp(t.Context(), control.ComposeRequest{Project: "trial", File: "/a.yaml", Recreate: true}, notify))
	expect.Equal(t, m.asked, []string{"stage trial", "remove trial volumes false", "apply trial"}, "recreating")
}

func TestComposeRefusesWhatCannotBe(t *testing.T) {
	m := trial()
	p := agent.NewProjects(m, 0)
	up := func(change func(*control.ComposeRequest)) error {
		r := control.ComposeRequest{Project: "trial", File: "/a.yaml"}
		change(&r)
		return p.ComposeUp(t.Context(), r, func(control.Event) {})
	}
	logs := func(r control.LogsRequest) error { return p.Logs(t.Context(), r, io.Discard) }
	exec := func(r control.ExecRequest) error {
		_, err := p.Exec(t.Context(), r, control.ExecStreams{})
		return err
	}
	for _, c := range []struct {
		err  error
		kind error
		text string
	}{
		{up(func(r *control.ComposeRequest) { r.Project = "managed" }), control.ErrConflict, "belongs to deployment"},
		{up(func(r *control.ComposeRequest) { r.File = "" }), control.ErrInvalid, "no Compose file"},
		{up(func(r *control.ComposeRequest) { r.Services = []string{"wbe"} }), control.ErrInvalid, "db, job, other, web"},
		{up(func(r *control.ComposeRequest) { r.Scale = map[string]int{"wbe": 2} }), control.ErrInvalid, "db"},
		{up(func(r *control.ComposeRequest) { r.Recreate, r.Services = true, []string{"web"} }), control.ErrInvalid, "all services"},
		{p.ComposeDown(t.Context(), control.DownRequest{Project: "managed"}), control.ErrConflict, "belongs to deployment"},
		{logs(control.LogsRequest{Project: "nope"}), control.ErrNotFound, "known: managed, trial"},
		{logs(control.LogsRequest{Project: "trial", Services: []string{"web", "nope"}}), control.ErrNotFound, `service "nope": not found; known: job, web`},
		{exec(control.ExecRequest{Project: "nope", Service: "web"}), control.ErrNotFound, "known: managed, trial"},
		{exec(control.ExecRequest{Project: "trial", Service: "nope"}), control.ErrNotFound, "known: job, web"},
		{exec(control.ExecRequest{Project: "trial", Service: "job"}), control.ErrConflict, "is not running: job-1 is done"},
		{exec(control.ExecRequest{Project: "trial", Service: "web", Number: 1}), control.ErrConflict, "web-1 is stopped"},
		{exec(control.ExecRequest{Project: "trial", Service: "web", Number: 9}), control.ErrNotFound, "no replica 9"},
	} {
		expect.Error(t, c.err, c.kind, "refusal")
		expect.ErrorWith(t, c.err, c.text, "refusal")
	}
	expect.Equal(t, len(m.asked), 0, "of calls: %q", m.asked)
	clear(m.projects)
	expect.ErrorWith(t, logs(control.LogsRequest{Project: "nope"}), "there are none", "logs where nothing runs")
}

func TestExecGoesToAContainerThatRuns(t *testing.T) {
	m := trial()
	p := agent.NewProjects(m, 0)
	resize := make(chan control.Size, 1)
	resize <- control.Size{Columns: 80, Rows: 24}
	in := strings.NewReader("")
	code, err := p.Exec(t.Context(), control.ExecRequest{
		Project: "trial", Service: "web", Args: []string{"ls"}, Env: []string{"A=b"}, User: "u", WorkingDir: "/w", Privileged: true, TTY: true,
	}, control.ExecStreams{Stdin: in, Resize: resize})
	expect.OK(t, err)
	expect.Equal(t, code, 7, "exit code")
	expect.Equal(t, m.asked, []string{"exec web-2", "size {80 24}"}, "calls")
	x := m.command
	x.Resize = nil
	expect.Equal(t, x, container.Exec{Args: []string{"ls"}, Env: []string{"A=b"}, User: "u", WorkingDir: "/w", Privileged: true, TTY: true, Stdin: in}, "command")
	expect.OK(t, expect.ErrorOf(p.Exec(t.Context(), control.ExecRequest{Project: "trial", Service: "web", Number: 3, Args: []string{"ls"}}, control.ExecStreams{})))
	expect.Equal(t, m.asked[2], "exec web-3", "call")
}

func TestLogsArePrefixedAsWanted(t *testing.T) {
	none, two := 0, 2
	for _, c := range []struct {
		r    control.LogsRequest
		out  string
		tail string
	}{
		{control.LogsRequest{}, "web-1  | hello\nweb-2  | hello\nweb-3  | hello\njob-1  | hello\n", "tail 0"},
		{control.LogsRequest{Services: []string{"job"}}, "hello\n", "tail 0"},
		{control.LogsRequest{Services: []string{"job"}, Prefix: control.PrefixAlways, Tail: &none}, "job-1  | hello\n", "tail -1"},
		{control.LogsRequest{Services: []string{"job"}, Timestamps: true, Tail: &two}, "2026-01-31T12:00:00.000000005Z hello\n", "tail 2"},
		{control.LogsRequest{Prefix: control.PrefixNever}, "hello\nhello\nhello\nhello\n", "tail 0"},
		{control.LogsRequest{Services: []string{"job"}, Prefix: control.PrefixAlways, Color: true}, "\x1b[36mjob-1  |\x1b[0m hello\n", "tail 0"},
	} {
		m := trial()
		c.r.Project = "trial"
		var out bytes.Buffer
		if err := agent.NewProjects(m, 0).Logs(t.Context(), c.r, &out); err != nil || out.String() != c.out || !strings.Contains(m.asked[0], c.tail) {
			t.Errorf("logs %+v are %q, %v, the runtime was asked %q, want %q", c.r, out.String(), err, m.asked, c.out)
		}
	}
}

func TestPsShowsHealthAndTimes(t *testing.T) {
	m := trial()
	at := time.Date(2026, 1, 31, 13, 0, 0, 0, time.FixedZone("", 3600))
	containers := m.projects["trial"].Containers
	c := &containers[1]
	c.Started, c.Restarts, c.Name, c.Waiting = at, 3, "own", "for db"
	c.Health = health.Status{State: health.Unhealthy, Failures: 3, Code: 1, Output: "refused"}
	containers[3].ExitedAt = at
	services := expect.Value(agent.NewProjects(m, 0).ComposePs(t.Context(), "trial"))(t)
	expect.Equal(t, len(services), 4, "services")
	web, job := services[1], services[3]
	if web.Started.IsZero() || web.Started.Format(time.RFC3339) != "2026-01-31T12:00:00Z" || web.Restarts != 3 || web.ContainerName != "own" || web.Waiting != "for db" ||
		!reflect.DeepEqual(web.Health, &control.Health{Status: "unhealthy", Failures: 3, ExitCode: 1, Output: "refused"}) || web.ExitCode != nil {
		t.Errorf("a service that runs is %+v", web)
	}
	if job.Ended.IsZero() || job.ExitCode == nil || *job.ExitCode != 0 || job.ContainerName != "trial-job-1" || job.Health != nil || !job.Started.IsZero() {
		t.Errorf("a job that is done is %+v", job)
	}
}

func TestPruneRemovesWhatWasShownAndIsStillUnneeded(t *testing.T) {
	m := trial()
	m.volumes = []runtime.StoredVolume{{Project: "old", Name: "a", Bytes: 7}, {Project: "old", Name: "b"}, {Project: "trial", Name: "used", Used: true}, {Project: "old", Name: "busy"}}
	m.images = []runtime.UnusedImage{{Name: "app@sha256:1", Bytes: 9}}
	p := agent.NewProjects(m, 0)
	items := expect.Value(p.Unneeded(t.Context()))(t)
	expect.Equal(t, len(items), 4, "items")
	used := control.Unneeded{Kind: control.UnneededVolume, Project: "trial", Name: "used"}
	removed := expect.Value(p.Prune(t.Context(), []control.Unneeded{items[0], used, {Kind: control.UnneededVolume, Project: "gone", Name: "a"}}))(t)
	expect.Equal(t, removed, items[:1], "removed")
	expect.Equal(t, m.asked, []string{"remove volume old/a"}, "calls")
	m.asked = nil
	removed, err := p.Prune(t.Context(), items)
	expect.ErrorWith(t, err, "mounts it", "prune")
	expect.Equal(t, len(removed), 3, "removed")
	expect.Equal(t, m.asked, []string{"remove volume old/a", "remove volume old/b", "prune"}, "calls")
}
