package container

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/errdefs"

	"github.com/margolite/margolite/runtime/containerd"
	"github.com/margolite/margolite/runtime/fault"
	"github.com/margolite/margolite/runtime/log"
)

// shim is the runtime that every containerd knows.
const shim = "io.containerd.runc.v2"

// defaultGrace is how long a container may take to stop, as in Compose.
const defaultGrace = 10 * time.Second

// What a caller may act on.
var (
	ErrNotFound   = errors.New("not found on this device") // a volume, path or container that a service names
	ErrMoved      = errors.New("a link replaced it")       // in the way to what was allowed to be mounted
	ErrNotRunning = errors.New("not running")              // a container that a command is to run in

	// A volume that a container mounts.
	ErrInUse = &fault.Error{Code: fault.Conflict, Err: errors.New("in use")}
	// A start that waits for something in the root file system, such as the writer of a FIFO.
	ErrBlocked = errors.New("its start is blocked")
)

// Options is what Containers needs.
type Options struct {
	Client      containerd.Client
	Namespace   string
	Snapshotter func(context.Context) (string, error) // its name; that of the images
	StateDir    string                                // survives a reboot: volumes/<project>/<volume>
	RunDir      string                                // does not: hosts/, logs/, mounts/
	LogKeeper   string                                // program that keeps what containers print; "": the shim is ours, and does
	Init        string                                // program margolite-init, for services with init; "": there is none
	LogDir      string                                // of what containers print; "" is RunDir/logs
	LogKeep     log.Keep                              // how much of it at most, also where a service asks for more
	// Environment is what the device gives to all containers, as NAME=value, unless their image or
	// service says otherwise.
	Environment []string
	// Certificate is the file with the certificate by which containers know the collector, or it
	// them (OBS-08), read whenever a container is made; "": none.
	Certificate string
	// ShimGrace is for how long a shim need not respond before it is killed, with
	// the containers that it runs; 0: 30 s.
	ShimGrace time.Duration
	Logger    *slog.Logger
}

// Containers makes and removes containers, by parts that have a state of their own. Its
// methods may be called from several goroutines, for one container from one at a time.
type Containers struct {
	paths
	records
	volumes
	*shims
	tasks   tasks
	runc    runc
	cgroups cgroups
	host    thisHost
	execs   execs

	mu    sync.Mutex
	left  leftovers
	swept bool // nothing is left of a former agent
}

// New prepares the directories, and undoes what a killed process left mounted.
func New(o Options) (*Containers, error) {
	c := &Containers{
		paths:   paths{o},
		records: records{client: o.Client, namespace: o.Namespace, logger: o.Logger},
		host:    thisHost{logger: o.Logger},
	}
	c.volumes.paths, c.volumes.records = &c.paths, &c.records
	c.runc.dir, c.cgroups.records = filepath.Join(c.runcRoot(), o.Namespace), &c.records
	c.shims = newShims(&c.records, &c.runc, &c.cgroups, o.ShimGrace)
	c.tasks, c.execs = tasks{c.shims}, execs{paths: &c.paths, shims: c.shims, host: &c.host, places: newPlaces()}
	// What containers write may be programs that make whoever starts them root:
	// nobody else on the device gets there.
	err := errors.Join(makePrivate(c.volumesDir()), makePrivate(filepath.Join(o.RunDir, "mounts")), os.MkdirAll(c.logDir(), 0o711), c.sweepMounts())
	if err == nil {
		c.owner, err = filepath.EvalSymlinks(o.StateDir)
	}
	if err == nil {
		c.left, err = c.findLeftovers()
	}
	if err != nil {
		return nil, fmt.Errorf("cannot prepare containers: %w", err)
	}
	return c, nil
}

// makePrivate makes a directory for root alone, also of one that is there.
func makePrivate(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	return os.Chmod(dir, 0o700)
}

// ID is the id of a container: the same configuration of the same replica
// always has the same.
func ID(project, service string, number int, hash string) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s\x00%s\x00%d\x00%s", project, service, number, hash))
	return hex.EncodeToString(sum[:])[:32]
}

// ID is the id of the container that has these labels.
func (l Labels) ID() string { return ID(l.Project, l.Service, l.Number, l.Hash) }

// State is what a container does.
type State string

// The states of a container.
const (
	Created State = "created" // no task, or one that was never started
	Running State = "running"
	Paused  State = "paused"
	Stopped State = "stopped"
	// Unresponsive says that the shim does not tell what the task does. It may
	// respond again.
	Unresponsive State = "unresponsive"
)

// Container is one container as found in containerd.
type Container struct {
	ID string
	Labels
	Image    string // record in containerd's image store
	Created  time.Time
	State    State
	Pid      int // when Running or Paused; when Unresponsive by the last record of it, 0: none
	ExitCode int // when Stopped
	ExitedAt time.Time
}

// List returns the containers of this runtime, in no order. One shim that does
// not respond neither fails it nor delays it by more than a short deadline: its
// containers are Unresponsive.
func (c *Containers) List(ctx context.Context) ([]Container, error) {
	return c.listed(ctx, func() ([]Container, error) { return c.Recorded(ctx) })
}

// ListProject is List for the containers of one project. It reads no record and
// asks for no task of any other.
func (c *Containers) ListProject(ctx context.Context, project string) ([]Container, error) {
	return c.listed(ctx, func() ([]Container, error) { return c.RecordedOf(ctx, project) })
}

// ListIDs is List for the containers with these ids, as far as they exist. Unlike
// a list that is filtered by containerd, it reads no record of any other.
func (c *Containers) ListIDs(ctx context.Context, ids []string) ([]Container, error) {
	return c.listed(ctx, func() ([]Container, error) { return c.RecordedIDs(ctx, ids) })
}

// listed says what the containers do that were read.
func (c *Containers) listed(ctx context.Context, read func() ([]Container, error)) ([]Container, error) {
	if err := c.sweepOnce(ctx); err != nil {
		return nil, err
	}
	recorded, err := read()
	if err != nil {
		return nil, err
	}
	return c.WithStates(ctx, recorded)
}

// WithStates returns copies of containers that say what each of them does now.
func (c *Containers) WithStates(ctx context.Context, recorded []Container) ([]Container, error) {
	list := slices.Clone(recorded)
	ids := make([]string, len(list))
	for i, found := range list {
		ids[i] = found.ID
	}
	answers := c.shims.states(ctx, ids)
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("cannot list containers: %w", err) // a call that was cut short tells nonsense
	}
	for i, answer := range answers {
		found := &list[i]
		switch {
		case answer.err == nil:
			found.setTask(answer.value)
		case errdefs.IsNotFound(answer.err):
		case errors.Is(answer.err, ErrUnresponsive):
			found.State, found.Pid = Unresponsive, c.runc.recordedPid(found.ID)
			if found.Pid > 0 && errors.Is(answer.err, errLate) {
				found.State = Running // as far as is known
			}
		default:
			return nil, fmt.Errorf("cannot read the state of container %s: %w", found.ID, answer.err)
		}
	}
	return list, nil
}

// Delete removes a container with its task, root file system, log, files and
// control group. Deleting what is not there is no error.
func (c *Containers) Delete(ctx context.Context, id string) error {
	if err := c.Stop(ctx, id, nil); err != nil {
		return err
	}
	if err := c.delete(ctx, id); err != nil {
		return fmt.Errorf("cannot delete container %s: %w", id, err)
	}
	return nil
}

func (c *Containers) delete(ctx context.Context, id string) error {
	snapshotter, _, err := c.o.snapshotter(ctx)
	if err != nil {
		return err
	}
	if err := removeSnapshot(ctx, snapshotter, id); err != nil {
		return err
	}
	if err := c.o.Client.ContainerService().Delete(ctx, id); err != nil && !errdefs.IsNotFound(err) {
		return err
	}
	if err := c.forget(id); err != nil {
		return err
	}
	return c.volumes.release(ctx)
}

// RemoveProject removes what is left of a project once its last container is
// deleted: mounts of its volumes, and the control group.
func (c *Containers) RemoveProject(ctx context.Context, project string) error {
	if err := c.volumes.release(ctx); err != nil {
		return fmt.Errorf("cannot unmount volumes of project %s: %w", project, err)
	}
	c.cgroups.remove(project)
	return nil
}

func (o *Options) snapshotter(ctx context.Context) (snapshots.Snapshotter, string, error) {
	name, err := o.Snapshotter(ctx)
	if err != nil {
		return nil, "", err
	}
	return o.Client.SnapshotService(name), name, nil
}
