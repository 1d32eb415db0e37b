package health

import (
	"bytes"
	"context"
	"errors"
	"io"
	"reflect"
	"strings"
	"sync"
	"time"

	"github.com/margolite/margolite/runtime/compose"
	"github.com/margolite/margolite/runtime/contain"
)

const (
	maxOutput = 4 << 10 // of one probe, as in Docker

	firstPause = 250 * time.Millisecond // doubles while a container has not been found healthy
)

// ErrNotTried says that a probe was not run for reasons that are not the
// container's: it tells nothing about its health.
var ErrNotTried = errors.New("the health check was not run")

// Exec runs a command in a container and returns its exit code. It ends the
// command with ctx, and when it has run for the timeout: the error is
// context.DeadlineExceeded then. How many run at the same time is up to Exec; the
// time that a command waits for its turn does not count. An error says that the
// command could not be run, ErrNotTried that it is not the container's fault.
type Exec func(ctx context.Context, container string, timeout time.Duration, command []string, output io.Writer) (code int, err error)

// Options is what a Monitor needs.
type Options struct {
	Exec    Exec
	Changed func(group string) // called when the state of a container of a group changed; must not block
}

// Target is a container that is to be probed.
type Target struct {
	Container string
	Process   int       // its first one: another one is another life of the container
	Started   time.Time // that process
	Check     compose.Healthcheck
}

// Monitor probes containers until it is closed. Its methods may be called from
// several goroutines.
type Monitor struct {
	o Options

	mu       sync.Mutex
	closed   bool
	patients map[string]*patient // by container
	running  sync.WaitGroup
}

// patient is one container with the goroutine that probes it.
type patient struct {
	Target
	group  string
	stop   context.CancelFunc
	status Status // guarded by Monitor.mu
}

// New makes a Monitor that probes nothing yet.
func New(o Options) *Monitor {
	if o.Changed == nil {
		o.Changed = func(string) {}
	}
	return &Monitor{o: o, patients: make(map[string]*patient)}
}

// Close ends all probes and waits for that.
func (m *Monitor) Close() {
	m.mu.Lock()
	m.closed = true
	for id := range m.patients {
		m.dropLocked(id)
	}
	m.mu.Unlock()
	m.running.Wait()
}

// Tend makes the containers of a group those that are probed. Which is probed
// already, in the same life and by the same check, goes on.
func (m *Monitor) Tend(group string, targets []Target) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return
	}
	wanted := make(map[string]bool, len(targets))
	for _, t := range targets {
		if isOff(t.Check) {
			continue
		}
		wanted[t.Container] = true
		if p := m.patients[t.Container]; p != nil && p.Process == t.Process && reflect.DeepEqual(p.Check, t.Check) {
			continue
		}
		m.dropLocked(t.Container)
		ctx, stop := context.WithCancel(context.Background()) // ends with Close
		p := &patient{Target: t, group: group, stop: stop, status: Status{State: Starting}}
		m.patients[t.Container] = p
		m.running.Go(func() { m.attend(ctx, p, filled(t.Check, docker())) })
	}
	for id, p := range m.patients {
		if p.group == group && !wanted[id] {
			m.dropLocked(id)
		}
	}
}

// Status is what is known of a container; one that is not probed is starting.
func (m *Monitor) Status(container string) Status {
	m.mu.Lock()
	defer m.mu.Unlock()
	if p := m.patients[container]; p != nil {
		return p.status
	}
	return Status{State: Starting}
}

func (m *Monitor) dropLocked(container string) {
	if p := m.patients[container]; p != nil {
		p.stop()
		delete(m.patients, container)
	}
}

// attend probes one container. Docker waits before it probes for the first
// time. Here that time is used: probes in it may find the container healthy, but
// do not count against it. So whoever waits for it, also after a restart of this
// program, waits for no longer than it needs.
func (m *Monitor) attend(ctx context.Context, p *patient, c compose.Healthcheck) {
	taken := time.Now()
	early := p.status.pause(c, p.Started, taken) // not yet shared
	next := time.Duration(0)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		begun := time.Now()
		result := m.probe(ctx, p.Container, c)
		if ctx.Err() != nil {
			return
		}
		counts := begun.Sub(taken) >= early && begun.Sub(p.Started) >= c.StartPeriod
		state, pause := m.note(p, c, counts, result)
		if left := early - time.Since(taken); state == Starting && left > 0 {
			next = max(2*next, firstPause)
			pause = min(next, left)
		}
		timer.Reset(pause)
	}
}

// note takes a result over and returns what the container is now, and when to
// probe again.
func (m *Monitor) note(p *patient, c compose.Healthcheck, counts bool, result Status) (State, time.Duration) {
	m.mu.Lock()
	before := p.status.State
	p.status = p.status.after(c, counts, result)
	status := p.status
	m.mu.Unlock()
	if status.State != before {
		m.o.Changed(p.group)
	}
	return status.State, status.pause(c, p.Started, result.Probed)
}

// probe probes a container once: the status has only what that found.
func (m *Monitor) probe(ctx context.Context, container string, c compose.Healthcheck) Status {
	var out output
	command := commandOf(c)
	if len(command) == 0 {
		return Status{Probed: time.Now(), Code: -1, Output: "the test of a health check must be CMD or CMD-SHELL followed by a command"}
	}
	var code int
	err := contain.Call(func() (err error) {
		code, err = m.o.Exec(ctx, container, c.Timeout, command, &out)
		return err
	})
	s := Status{Probed: time.Now(), Code: code}
	switch {
	case errors.Is(err, ErrNotTried):
		s.Skipped = err.Error()
	case errors.Is(err, context.DeadlineExceeded):
		s.Code = -1
		out.end("the health check did not end within " + c.Timeout.String())
	case err != nil:
		s.Code = -1
		out.end(err.Error())
	}
	s.Output = out.text()
	return s
}

// output keeps the beginning of what is written to it.
type output struct {
	mu   sync.Mutex
	kept []byte
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.kept = append(o.kept, p[:min(len(p), maxOutput-len(o.kept))]...)
	return len(p), nil
}

// end appends a line of our own, and truncates the output before it if both do not fit.
func (o *output) end(line string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	line = line[:min(len(line), maxOutput)]
	o.kept = o.kept[:min(len(o.kept), max(0, maxOutput-len(line)-1))]
	if len(bytes.TrimSpace(o.kept)) > 0 {
		o.kept = append(o.kept, '\n')
	}
	o.kept = append(o.kept, line...)
}

func (o *output) text() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return strings.TrimSpace(strings.ToValidUTF8(string(o.kept), "?"))
}
