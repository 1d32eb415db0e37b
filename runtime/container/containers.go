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

const shim = "io.containerd.runc.v2"

// defaultGrace is how long a container may take to stop, as in Compose.
const defaultGrace = 10 * time.Second

// Errors that a caller may act on.
var (
	ErrNotFound   = errors.New("not found on this device") // a volume, path or container
	ErrMoved      = errors.New("a link replaced it")       // on the way to a path that may be mounted
	ErrNotRunning = errors.New("not running")              // the container for a command

	// For a volume that a container mounts.
	ErrInUse = &fault.Error{Code: fault.Conflict, Err: errors.New("in use")}
	// A start that waits for something in the root file system, such as the writer of a FIFO.
	ErrBlocked = errors.New("its start is blocked")
)

// Options configures Containers.
type Options struct {
	Client      containerd.Client
	Namespace   string
	Snapshotter func(context.Context) (string, error) // name of the snapshotter that the images use
	StateDir    string                                // survives a reboot: volumes/<project>/<volume>
	RunDir      string                                // does not: hosts/, logs/, mounts/
	LogKeeper   string                                // program that keeps containers' output; "": the shim is ours and does it
	Init        string                                // program margolite-init, for services with init; "": none
	LogDir      string                                // for containers' output; "": RunDir/logs
	LogKeep     log.Keep                              // limits for output, even if a service asks for more
	// Environment holds the device's NAME=value entries; those of image and service win.
	Environment []string
	// Certificate is the file with the certificate for the connection between containers and the
	// collector (OBS-08), read whenever a container is made; "": none.
	Certificate string
	// ShimGrace is how long a shim may not respond before it and its containers end; 0: 30 s.
	ShimGrace time.Duration
	Logger    *slog.Logger
}

// Containers manages containers. Concurrent calls must be for different containers.
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
	swept bool // a former agent's leftovers are gone
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
	// Only root may get there: containers may write programs that give root rights.
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

func makePrivate(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	return os.Chmod(dir, 0o700)
}

// ID derives the ID of a container: the same for the same configuration of the same replica.
func ID(project, service string, number int, hash string) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s\x00%s\x00%d\x00%s", project, service, number, hash))
	return hex.EncodeToString(sum[:])[:32]
}

// ID is the ID of the container with these labels.
func (l Labels) ID() string { return ID(l.Project, l.Service, l.Number, l.Hash) }

// State is what a container is doing.
type State string

const (
	Created State = "created" // no task, or one never started
	Running State = "running"
	Paused  State = "paused"
	Stopped State = "stopped"
	// Unresponsive: the shim does not tell what the task does, but may respond again.
	Unresponsive State = "unresponsive"
)

// Container is one container as found in containerd.
type Container struct {
	ID string
	Labels
	Image    string // its name in containerd's image store
	Created  time.Time
	State    State
	Pid      int // if Running or Paused; if Unresponsive the last recorded one, 0: none
	ExitCode int // when Stopped
	ExitedAt time.Time
}

// List returns the containers of this runtime, unordered. A shim that does not respond fails
// nothing and delays it at most by a short deadline: its containers are Unresponsive.
func (c *Containers) List(ctx context.Context) ([]Container, error) {
	return c.listed(ctx, func() ([]Container, error) { return c.Recorded(ctx) })
}

// ListProject is List for one project. It reads no records and asks for no tasks of others.
func (c *Containers) ListProject(ctx context.Context, project string) ([]Container, error) {
	return c.listed(ctx, func() ([]Container, error) { return c.RecordedOf(ctx, project) })
}

// ListIDs is List for these IDs, as far as they exist. It reads no other records.
func (c *Containers) ListIDs(ctx context.Context, ids []string) ([]Container, error) {
	return c.listed(ctx, func() ([]Container, error) { return c.RecordedIDs(ctx, ids) })
}

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

// WithStates returns copies of the containers with their present state.
func (c *Containers) WithStates(ctx context.Context, recorded []Container) ([]Container, error) {
	list := slices.Clone(recorded)
	ids := make([]string, len(list))
	for i, found := range list {
		ids[i] = found.ID
	}
	answers := c.shims.states(ctx, ids)
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("cannot list containers: %w", err) // the states of an aborted call mean nothing
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

// Delete removes all of a container except its volumes. A missing container is no error.
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

// RemoveProject removes an empty project's volume mounts and control group.
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
