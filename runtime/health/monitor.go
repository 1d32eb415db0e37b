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

	firstPause = 250 * time.Millisecond // doubles until the container is healthy
)

// ErrNotTried says that a probe was not run, which tells nothing about the container.
var ErrNotTried = errors.New("the health check was not run")

// Exec runs a command in a container and returns its exit code. It kills the command when ctx
// ends or after timeout; then the error is context.DeadlineExceeded. It may limit how many
// run at once; waiting for a turn does not count towards timeout. Any error means that the
// command could not be run, ErrNotTried that this is not the container's fault.
type Exec func(ctx context.Context, container string, timeout time.Duration, command []string, output io.Writer) (code int, err error)

// Options configures a Monitor.
type Options struct {
	Exec    Exec
	Changed func(group string) // called when the state of a container in a group changed; must not block
}

// Target is a container to probe.
type Target struct {
	Container string
	Process   int       // its main process: another one means it was restarted
	Started   time.Time // start time of that process
	Check     compose.Healthcheck
}

// Monitor probes containers until it is closed. Its methods may be called concurrently.
type Monitor struct {
	o Options

	mu       sync.Mutex
	closed   bool
	patients map[string]*patient // by container
	running  sync.WaitGroup
}

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

// Close ends all probes and waits for their end.
func (m *Monitor) Close() {
	m.mu.Lock()
	m.closed = true
	for id := range m.patients {
		m.dropLocked(id)
	}
	m.mu.Unlock()
	m.running.Wait()
}

// Tend sets the containers to probe in a group. Those with the same process and check go on.
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
		ctx, stop := context.WithCancel(context.Background()) // until Close
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

// Status returns a container's status; Starting if it is not probed.
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

// attend probes at once, unlike Docker, but until Docker would begin failures do not count:
// so nothing waits longer than needed, even after a restart of this program.
func (m *Monitor) attend(ctx context.Context, p *patient, c compose.Healthcheck) {
	taken := time.Now()
	early := p.status.pause(c, p.Started, taken) // not shared yet
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

// note records a result, and returns the container's state and the time until the next probe.
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

// end appends a line of our own, truncating the output if both do not fit.
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
