package container

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"

	tasksapi "github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/margolite/margolite/runtime/log"
	"github.com/margolite/margolite/runtime/tree"
)

// leftovers is what a killed agent may have left, as New found it.
type leftovers struct {
	execs   []string            // directories of commands
	volumes []string            // being removed or filled
	ids     map[string]struct{} // of containers that had files
}

func (c *Containers) findLeftovers() (leftovers, error) {
	l := leftovers{ids: make(map[string]struct{})}
	var err error
	find := func(pattern string) []string {
		found, failed := filepath.Glob(pattern)
		err = errors.Join(err, failed)
		return found
	}
	l.execs, l.volumes = find(c.execDir("*", "*")), find(c.VolumeDir("*", ".*"))
	for _, pattern := range []string{c.keptFiles("*", "*"), c.placedFiles("*"), c.stdin("*"), c.sharedMemory("*"), c.nerdctlDir("*")} {
		for _, path := range find(pattern) {
			l.ids[filepath.Base(path)] = struct{}{}
		}
	}
	for _, path := range c.logs() {
		id := strings.TrimSuffix(filepath.Base(path), filepath.Base(c.LogPath("")))
		if _, err := hex.DecodeString(id); err == nil && len(id) == 32 { // others may use the directory too
			l.ids[id] = struct{}{}
		}
	}
	return l, err
}

// sweepOnce removes what a killed agent left without a record, and ends its commands, which
// a shim may wait for. It also removes containers with damaged records, to be recreated. It
// runs before anything of the kind is made, and after an error nothing may be made: a later
// sweep would take it for a leftover. RemoveLeftovers does what takes long.
func (c *Containers) sweepOnce(ctx context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.swept {
		return nil
	}
	if err := c.endLeases(ctx); err != nil {
		return fmt.Errorf("cannot end leases of an earlier agent: %w", err)
	}
	records, err := c.o.Client.ContainerService().List(ctx)
	if err != nil {
		return fmt.Errorf("cannot look for leftovers of an earlier agent: %w", err)
	}
	for _, r := range records {
		delete(c.left.ids, r.ID)
		if _, damage := labelsOf(r); damage != nil && c.isOwner(r.Labels[keyOwner]) {
			c.o.Logger.Warn("removing a container whose record is damaged", "container", r.ID, "error", damage)
			err = errors.Join(err, c.tasks.delete(ctx, r.ID), c.delete(ctx, r.ID))
		}
	}
	left, failed := c.execs.end(ctx, c.left.execs)
	c.left.execs, err = left, errors.Join(err, failed)
	for id := range c.left.ids {
		err = errors.Join(err, c.forget(id))
	}
	if ctx.Err() != nil {
		return fmt.Errorf("cannot remove leftovers of an earlier agent: %w", ctx.Err())
	}
	if err != nil {
		c.o.Logger.Warn("cannot remove leftovers of an earlier agent", "error", err)
	}
	c.swept, c.left.ids = true, nil
	return nil
}

// RemoveLeftovers removes the volumes that a former agent was filling or removing when it was
// killed, and ends those of its commands that could not be ended before. It may take long.
// Call it again after an error, but not concurrently.
func (c *Containers) RemoveLeftovers(ctx context.Context) (err error) {
	if err := c.sweepOnce(ctx); err != nil {
		return err
	}
	c.left.execs, err = c.execs.end(ctx, c.left.execs)
	for _, dir := range c.left.volumes {
		if failed := tree.Remove(ctx, dir); failed != nil {
			err = errors.Join(err, failed)
			continue
		}
		_ = os.Remove(filepath.Dir(dir)) // fails unless it was the project's last
	}
	return err
}

// endLeases ends a killed agent's leases, so that containerd collects their snapshots.
func (c *Containers) endLeases(ctx context.Context) error {
	service := c.o.Client.LeasesService()
	left, err := service.List(ctx, fmt.Sprintf("labels.%q==%q", leaseLabel, c.o.StateDir))
	if err != nil {
		return err
	}
	for _, lease := range left {
		if err := service.Delete(ctx, lease, leases.SynchronousDelete); err != nil && !errdefs.IsNotFound(err) {
			return err
		}
	}
	return nil
}

// end ends commands at the same time, and returns those that could not be ended.
func (es *execs) end(ctx context.Context, dirs []string) (left []string, err error) {
	errs := make([]error, len(dirs))
	var ending sync.WaitGroup
	for i, dir := range dirs {
		ending.Go(func() { errs[i] = es.endOne(ctx, dir) })
	}
	ending.Wait()
	for i, dir := range dirs {
		if errs[i] != nil {
			left = append(left, dir)
		}
	}
	return left, errors.Join(errs...)
}

// endOne ends a command whose agent is gone, and removes its streams.
func (es *execs) endOne(ctx context.Context, dir string) error {
	ctx, cancel := context.WithTimeout(ctx, killTimeout) // others wait
	defer cancel()
	streams, err := openFIFOs(dir)
	defer func() {
		for _, f := range streams {
			_ = f.Close()
		}
	}()
	if err != nil {
		return err
	}
	id, execID, _ := strings.Cut(filepath.Base(dir), ".")
	ended := begin(func() (struct{}, error) {
		err := es.shims.kill(ctx, &tasksapi.KillRequest{ContainerID: id, ExecID: execID, Signal: uint32(unix.SIGKILL)})
		if err == nil {
			sleep(ctx, es.shims.wait(ctx, id, execID), killTimeout) // the next error tells more
		}
		return struct{}{}, es.shims.deleteProcess(ctx, id, execID)
	})
	err = es.shims.runc.end("exec", execID, ended) // it may wait for a file of the container, and the shim for it
	if err != nil && !errdefs.IsNotFound(err) {
		return fmt.Errorf("cannot kill a command in container %s: %w", id, err)
	}
	return os.RemoveAll(dir)
}

// openFIFOs opens both ends: a shim that starts a command waits for the other end.
func openFIFOs(dir string) (opened []*os.File, err error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	for _, entry := range entries {
		if entry.Type() != os.ModeNamedPipe {
			continue
		}
		f, err := os.OpenFile(filepath.Join(dir, entry.Name()), os.O_RDWR|unix.O_NONBLOCK, 0)
		if err != nil {
			return opened, err
		}
		opened = append(opened, f)
	}
	return opened, err
}

// forget removes everything outside containerd of a container without a record.
func (c *Containers) forget(id string) error {
	return errors.Join(c.removeFiles(id), os.RemoveAll(c.stdin(id)), detach(c.sharedMemory(id)), os.RemoveAll(c.nerdctlDir(id)),
		log.Remove(c.LogPath(id)))
}
