package container

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"time"

	tasksapi "github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/containerd/api/types/task"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/margolite/margolite/runtime/compose"
	"github.com/margolite/margolite/runtime/limit"
)

const (
	execTimeout = 30 * time.Second // of its start, on a slow and busy device
	stdinPoll   = time.Millisecond

	processType = "types.containerd.io/opencontainers/runtime-spec/1/Process"
)

// Exit codes of commands that could not be run, as in shells.
const (
	codeNotExecutable = 126
	codeNotFound      = 127
)

// Exec is a command that runs in a container beside its main process.
type Exec struct {
	Args       []string
	Env        []string // NAME=value, overriding the container's environment
	User       string   // user[:group]; "": the container's
	WorkingDir string   // "": the container's
	Privileged bool     // with all capabilities of the device

	// Own commands, such as health checks, belong to the container: callers cannot take their places.
	Own bool
	// Timeout limits the run time, and before that the wait for a place; 0: until ctx ends.
	Timeout time.Duration

	TTY    bool
	Stdin  io.Reader // nil: empty. A pending Read is not waited for when the command ends
	Stdout io.Writer // nil: discarded; may be the same as Stderr
	Stderr io.Writer // unused with TTY
	Resize <-chan Size
}

// Size is a terminal's size in characters, as an alias for those who only pass it on.
type Size = struct{ Columns, Rows uint16 }

// ErrNotTried says that a command was not started: no place, or the shim does not respond.
var ErrNotTried = errors.New("the command was not started")

type execs struct {
	*paths
	shims  *shims
	host   *thisHost
	places places
}

// HookExec returns the command of a hook.
func HookExec(h compose.Hook) Exec {
	e := Exec{Own: true, Args: h.Command, User: h.User, WorkingDir: h.WorkingDir, Privileged: h.Privileged}
	for _, name := range slices.Sorted(maps.Keys(h.Environment)) {
		e.Env = append(e.Env, name+"="+h.Environment[name])
	}
	return e
}

// Exec runs a command in a running container, and returns its exit code. When ctx ends, the
// command is killed with its descendants, and the error is ctx's. For a command that could
// not be run the code is 126 or 127, and -1 if it was not tried or the cause is unknown; both
// come with an error. The error wraps ErrNotRunning if the container does not run.
func (c *Containers) Exec(ctx context.Context, id string, e Exec) (int, error) {
	if err := c.sweepOnce(ctx); err != nil {
		return -1, fmt.Errorf("cannot run a command in container %s: %w", id, err)
	}
	code, err := c.execs.run(ctx, id, e)
	if err != nil {
		return code, fmt.Errorf("cannot run a command in container %s: %w", id, err)
	}
	return code, nil
}

func (es *execs) run(ctx context.Context, id string, e Exec) (int, error) {
	if len(e.Args) == 0 || e.Args[0] == "" {
		return -1, errors.New("command is missing")
	}
	record, err := es.shims.client.ContainerService().Get(ctx, id)
	if errdefs.IsNotFound(err) {
		return -1, fmt.Errorf("it does not exist: %w", ErrNotFound)
	}
	if err != nil {
		return -1, err
	}
	waiting := ctx // for a place
	if e.Timeout > 0 {
		var cancel context.CancelFunc
		waiting, cancel = context.WithTimeout(ctx, e.Timeout)
		defer cancel()
	}
	place := placeOf(id, record.Labels[OwnerKey], e.Own)
	running, err := es.places.run.Acquire(waiting, place, nil, nil)
	if err != nil {
		return -1, fmt.Errorf("%w: too many commands are running: %w", ErrNotTried, waiting.Err())
	}
	defer running.Release()
	asking, stop := context.WithTimeout(waiting, callTimeout)
	defer stop()
	state := es.shims.state(asking, id)
	for errors.Is(state.err, errLate) && pause(asking, askAgain) { // it responds, but is busy with other commands
		state = es.shims.state(asking, id)
	}
	switch {
	case errors.Is(state.err, ErrUnresponsive):
		return -1, fmt.Errorf("%w: %w", ErrNotTried, state.err)
	case errdefs.IsNotFound(state.err), state.err == nil && state.value.GetStatus() != task.Status_RUNNING:
		return -1, fmt.Errorf("its process is %w", ErrNotRunning)
	case state.err != nil:
		return -1, state.err
	}
	pid := int(state.value.GetPid())
	process, err := es.process(ctx, record, pid, e)
	if err != nil {
		return -1, err
	}
	run, err := es.open(id, e)
	if err != nil {
		return -1, err
	}
	defer run.close()
	run.first = pid

	starting, err := es.places.start.Acquire(waiting, place, nil, nil)
	if err != nil {
		return -1, fmt.Errorf("%w: too many commands are starting: %w", ErrNotTried, waiting.Err())
	}
	defer starting.Release()
	defer time.AfterFunc(blockedStart, func() { starting.Become(blocked + place.Kind) }).Stop()
	run.started = starting.Release

	if e.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, e.Timeout)
		defer cancel()
	}
	code, err := run.do(ctx, process)
	if err != nil && es.shims.isSilent(ctx, id) {
		err = fmt.Errorf("%w: %w: %w", ErrNotTried, ErrUnresponsive, err)
	}
	return code, err
}

// process gives the container's main process, which has this pid, the command's settings.
func (es *execs) process(ctx context.Context, record containers.Container, pid int, e Exec) (*anypb.Any, error) {
	p, err := processOf(record)
	if err != nil {
		return nil, err
	}
	p.Args, p.Terminal, p.ConsoleSize, p.CommandLine = e.Args, e.TTY, nil, ""
	for _, entry := range e.Env {
		p.Env = setEnv(p.Env, entry)
	}
	if e.TTY && !slices.ContainsFunc(p.Env, func(entry string) bool { return strings.HasPrefix(entry, "TERM=") }) {
		p.Env = append(p.Env, "TERM=xterm")
	}
	if e.WorkingDir != "" {
		p.Cwd = path.Join("/", e.WorkingDir)
	}
	if e.User != "" {
		if p.User, err = LookupUser(fmt.Sprintf("/proc/%d/root", pid), e.User); err != nil {
			return nil, err
		}
	}
	if p.Capabilities == nil {
		p.Capabilities = &specs.LinuxCapabilities{}
	}
	user := p.User
	if e.Privileged {
		p.Capabilities.Bounding, p.ApparmorProfile = slices.Clone(es.host.get(ctx).Capabilities), ""
		user.UID = 0 // makes all of them effective for any user
	}
	p.Capabilities = capabilitySets(p.Capabilities.Bounding, user)
	text, err := json.Marshal(p)
	if err != nil {
		return nil, err
	}
	return &anypb.Any{TypeUrl: processType, Value: text}, nil
}

// processOf decodes only the process: the rest takes longer, and probes ask often.
func processOf(record containers.Container) (*specs.Process, error) {
	var spec struct {
		Process *specs.Process `json:"process"`
	}
	if err := json.Unmarshal(specOf(record), &spec); err != nil || spec.Process == nil {
		return nil, fmt.Errorf("cannot read its specification: %w", cmp.Or(err, errors.New("it has no process")))
	}
	return spec.Process, nil
}

type execution struct {
	*execs
	id      string // of the container
	execID  string
	e       Exec
	dir     string
	outlets []*outlet
	request *tasksapi.ExecProcessRequest
	first   int    // the container's main process
	started func() // called once the command runs
}

// open makes the FIFOs that a command needs.
func (es *execs) open(id string, e Exec) (x *execution, err error) {
	var random [8]byte
	_, _ = rand.Read(random[:]) // never fails
	x = &execution{execs: es, id: id, execID: "margolite-" + hex.EncodeToString(random[:]), e: e}
	x.dir = es.execDir(id, x.execID)
	x.request = &tasksapi.ExecProcessRequest{ContainerID: id, ExecID: x.execID, Terminal: e.TTY}
	defer func() {
		if err != nil {
			x.close()
			err = fmt.Errorf("cannot create its streams: %w", err)
		}
	}()
	if err := os.MkdirAll(x.dir, 0o700); err != nil {
		return x, err
	}
	if e.Stdin != nil {
		x.request.Stdin = filepath.Join(x.dir, "stdin")
		if err := makeFIFO(x.request.Stdin); err != nil {
			return x, err
		}
	}
	if e.Stdout != nil || e.TTY { // a terminal is always read
		x.request.Stdout = filepath.Join(x.dir, "stdout")
		if err := x.listen(x.request.Stdout, e.Stdout); err != nil {
			return x, err
		}
	}
	switch {
	case e.Stderr == nil || e.TTY:
	case x.request.Stdout != "" && reflect.ValueOf(e.Stdout).Comparable() && e.Stdout == e.Stderr:
		x.request.Stderr = x.request.Stdout
	default:
		x.request.Stderr = filepath.Join(x.dir, "stderr")
		if err := x.listen(x.request.Stderr, e.Stderr); err != nil {
			return x, err
		}
	}
	// A shim takes all streams or none; with none it needs no pipes.
	if r := x.request; r.Stdin+r.Stdout+r.Stderr != "" {
		r.Stdout = cmp.Or(r.Stdout, os.DevNull)
		if !e.TTY {
			r.Stderr = cmp.Or(r.Stderr, os.DevNull)
		}
	}
	return x, nil
}

func (x *execution) close() {
	for _, o := range x.outlets {
		_ = o.f.Close() // it was read to its end, or its output is no longer wanted
	}
	if err := os.RemoveAll(x.dir); err != nil {
		x.o.Logger.Warn("cannot remove the streams of a command", "container", x.id, "error", err)
	}
}

// do runs the command. Calls to the shim outlast ctx, to leave the command in a known state.
func (x *execution) do(ctx context.Context, process *anypb.Any) (code int, err error) {
	calls, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	x.request.Spec = process
	if _, err := call(calls, x.shims, callTimeout, x.shims.api().Exec, x.request); err != nil {
		return -1, x.notRunning(err)
	}
	defer func() {
		// Also ends what still runs, and waits until the shim has passed on all output.
		if slices.ContainsFunc(x.outlets, func(o *outlet) bool { return o.held.Load() }) {
			// The shim would wait for pipes that another process still holds.
			limited, cancel := context.WithTimeout(calls, drainIdle)
			_ = x.shims.deleteProcess(limited, x.id, x.execID) // again below
			cancel()
		}
		if failed := x.shims.deleteProcess(calls, x.id, x.execID); failed != nil && !errdefs.IsNotFound(failed) {
			err = errors.Join(err, fmt.Errorf("cannot clean it up: %w", failed))
		}
	}()

	exit := x.shims.wait(calls, x.id, x.execID)
	pid, err := x.start(ctx)
	if err != nil {
		return codeOfStart(err), x.notRunning(err)
	}
	x.started()

	copied := make(chan error, len(x.outlets))
	for _, o := range x.outlets {
		go func() { copied <- o.copy() }() // ends when the outlet does
	}
	if x.e.Stdin != nil {
		go x.copyInput(calls) // ends when calls do, or after a pending Read
	}
	if x.e.TTY && x.e.Resize != nil {
		go x.resize(calls) // ends with calls
	}
	ended := outcome[int]{value: -1}
	select {
	case ended = <-exit:
	case <-ctx.Done():
		if err := x.kill(calls, pid); err != nil {
			return -1, errors.Join(ctx.Err(), err)
		}
		select {
		case <-exit:
		case <-time.After(killTimeout):
			return -1, errors.Join(ctx.Err(), fmt.Errorf("it did not end within %s of SIGKILL", killTimeout))
		}
		ended.err = ctx.Err()
	}
	for _, o := range x.outlets {
		o.end()
	}
	var failed error
	for range x.outlets {
		failed = errors.Join(failed, <-copied)
	}
	if failed != nil && ended.err == nil {
		return ended.value, fmt.Errorf("cannot forward its output: %w", failed)
	}
	return ended.value, ended.err
}

// start starts the command. runc reads files of the container for it: see unblocked.
func (x *execution) start(ctx context.Context) (pid int, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, execTimeout, fmt.Errorf("runc did not start it within %s", execTimeout))
	defer cancel()
	started := make(chan uint32, 1)
	_, err = x.shims.runc.unblocked(ctx, "exec", x.execID, 0, func(ctx context.Context) error {
		got, err := call(ctx, x.shims, createTimeout, x.shims.api().Start, &tasksapi.StartRequest{ContainerID: x.id, ExecID: x.execID})
		started <- got.GetPid()
		return err
	})
	if err != nil {
		return 0, err
	}
	return int(<-started), nil
}

func (x *execution) copyInput(ctx context.Context) {
	f, err := os.OpenFile(x.request.Stdin, os.O_WRONLY|unix.O_NONBLOCK, 0)
	for errors.Is(err, unix.ENXIO) && pause(ctx, stdinPoll) { // the shim is about to open it
		f, err = os.OpenFile(x.request.Stdin, os.O_WRONLY|unix.O_NONBLOCK, 0)
	}
	if err != nil {
		return // it has ended
	}
	stop := context.AfterFunc(ctx, func() { _ = f.SetWriteDeadline(time.Now()) })
	defer stop()
	_, _ = io.CopyBuffer(struct{ io.Writer }{f}, struct{ io.Reader }{x.e.Stdin}, make([]byte, copyBlock)) // a command need not read all
	_ = f.Close()
	// The shim holds its own end open.
	_, err = call(ctx, x.shims, callTimeout, x.shims.api().CloseIO,
		&tasksapi.CloseIORequest{ContainerID: x.id, ExecID: x.execID, Stdin: true})
	if err != nil && ctx.Err() == nil {
		x.o.Logger.Debug("input of a command stays open", "container", x.id, "error", err)
	}
}

func (x *execution) resize(ctx context.Context) {
	for {
		select {
		case size, ok := <-x.e.Resize:
			if !ok {
				return
			}
			_, err := call(ctx, x.shims, callTimeout, x.shims.api().ResizePty, &tasksapi.ResizePtyRequest{
				ContainerID: x.id, ExecID: x.execID, Width: uint32(size.Columns), Height: uint32(size.Rows),
			})
			if err != nil && ctx.Err() == nil {
				x.o.Logger.Debug("terminal keeps its size", "container", x.id, "error", err)
			}
		case <-ctx.Done():
			return
		}
	}
}

// kill also ends descendants, which would otherwise become the main process's children.
func (x *execution) kill(ctx context.Context, pid int) error {
	shim := parentOf(x.first)
	killTree(pid, func(pid int) bool { return parentOf(pid) == shim })
	err := x.shims.kill(ctx, &tasksapi.KillRequest{ContainerID: x.id, ExecID: x.execID, Signal: uint32(unix.SIGKILL)})
	if err != nil && !errdefs.IsNotFound(err) {
		return fmt.Errorf("cannot kill it: %w", err)
	}
	return nil
}

func (x *execution) notRunning(err error) error {
	if errdefs.IsNotFound(err) {
		return fmt.Errorf("its process is %w: %w", ErrNotRunning, err)
	}
	return err
}

// codeOfStart is the exit code if runc could not run a command, by the error text alone.
func codeOfStart(err error) int {
	text := err.Error()
	switch {
	case !strings.Contains(text, "exec: ") && !strings.Contains(text, "executable file"): // runc, crun
	case strings.Contains(text, "not found"), strings.Contains(text, "no such file or directory"):
		return codeNotFound
	case strings.Contains(text, "permission denied"), strings.Contains(text, "exec format error"), strings.Contains(text, "is a directory"):
		return codeNotExecutable
	}
	return -1
}

const (
	// Commands that may run at once in a container, in those of a project, and for all
	// callers; more wait. There is no limit for all: with one, the health checks of two
	// projects could keep a third's waiting.
	maxContainerExecs, maxProjectExecs, maxCallerExecs = 32, 64, 96
	// Those of them that may be starting: runc takes much of a small processor.
	maxContainerStarts, maxProjectStarts, maxCallerStarts, maxStarts = 2, 3, 3, 4

	// blockedStart is when a starting command gives up its place among all, but not those of
	// its container and project: it waits for something in its container, without using the
	// processor.
	blockedStart = 2 * time.Second

	// No project or container has such a name.
	callers = "callers/"
	blocked = "blocked/"
)

// places limits commands; those of callers and of containers do not count against each other.
type places struct{ run, start *limit.Limiter } // the keys are from placeOf

func placeOf(id, project string, own bool) limit.Key {
	if own {
		return limit.Key{Party: project, Kind: id}
	}
	return limit.Key{Party: callers + project, Kind: callers + id}
}

func newPlaces() places {
	inContainer := func(held, wanted limit.Key) bool { return strings.TrimPrefix(held.Kind, blocked) == wanted.Kind }
	inProject := func(held, wanted limit.Key) bool { return held.Party == wanted.Party }
	ofCallers := func(held, wanted limit.Key) bool {
		return strings.HasPrefix(held.Party, callers) && strings.HasPrefix(wanted.Party, callers)
	}
	busy := func(held limit.Key) bool { return !strings.HasPrefix(held.Kind, blocked) }
	return places{
		run: limit.New(0, limit.Bound{Most: maxContainerExecs, Counts: inContainer},
			limit.Bound{Most: maxProjectExecs, Counts: inProject}, limit.Bound{Most: maxCallerExecs, Counts: ofCallers}),
		start: limit.New(0, limit.Bound{Most: maxContainerStarts, Counts: inContainer}, limit.Bound{Most: maxProjectStarts, Counts: inProject},
			limit.Bound{Most: maxCallerStarts, Counts: func(held, wanted limit.Key) bool { return busy(held) && ofCallers(held, wanted) }},
			limit.Bound{Most: maxStarts, Counts: func(held, _ limit.Key) bool { return busy(held) }}),
	}
}
