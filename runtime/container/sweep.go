package container

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/margolite/margolite/runtime/log"
	"github.com/margolite/margolite/runtime/tree"
)

// leftovers is what an agent that was killed may have left, as New found it.
type leftovers struct {
	execs   []string            // directories of commands
	volumes []string            // that were being filled or removed
	ids     map[string]struct{} // of containers that had files
}

func (c *Containers) findLeftovers() (leftovers, error) {
	l := leftovers{ids: make(map[string]struct{})}
	var err error
	if l.execs, err = filepath.Glob(c.execDir("*", "*")); err != nil {
		return l, err
	}
	for _, pattern := range []string{removingPath(c.VolumeDir("*", "*")), fillingPath(c.VolumeDir("*", "*"))} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			return l, err
		}
		l.volumes = append(l.volumes, found...)
	}
	for _, pattern := range []string{c.keptFiles("*", "*"), c.placedFiles("*"), c.stdin("*"), c.sharedMemory("*"), c.nerdctlDir("*")} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			return l, err
		}
		for _, path := range found {
			l.ids[filepath.Base(path)] = struct{}{}
		}
	}
	for _, path := range c.Logs() {
		id := strings.TrimSuffix(filepath.Base(log.PlainPath(path)), filepath.Ext(path))
		if isID(id) { // the directory may be others', too
			l.ids[id] = struct{}{}
		}
	}
	return l, nil
}

// sweepOnce removes what a killed agent left and no record tells of. It is
// called before anything of the kind is made.
func (c *Containers) sweepOnce(ctx context.Context) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.swept {
		return
	}
	if err := c.endLeases(ctx); err != nil {
		return // whoever calls learns the same, and comes again
	}
	if len(c.left.execs)+len(c.left.volumes)+len(c.left.ids) == 0 {
		c.swept = true
		return
	}
	records, err := c.o.Client.ContainerService().List(ctx)
	if err != nil {
		return // whoever calls learns the same, and comes again
	}
	for _, r := range records {
		delete(c.left.ids, r.ID)
	}
	if err := c.sweep(ctx, c.left); err != nil {
		if ctx.Err() != nil {
			return
		}
		c.o.Logger.Warn("something is left of a former agent", "error", err)
	}
	c.swept, c.left = true, leftovers{}
}

// endLeases ends the leases of containers that a killed agent was creating: nobody goes on with them.
func (c *Containers) endLeases(ctx context.Context) error {
	service := c.o.Client.LeasesService()
	left, err := service.List(ctx, fmt.Sprintf("labels.%q==%q", leaseLabel, c.o.StateDir))
	if err != nil {
		return err
	}
	for _, lease := range left {
		if err := service.Delete(ctx, lease.ID, false); err != nil && !errdefs.IsNotFound(err) {
			return err
		}
	}
	return nil
}

func (c *Containers) sweep(ctx context.Context, left leftovers) error {
	var errs []error
	for _, dir := range left.execs {
		errs = append(errs, c.endExec(ctx, dir))
	}
	for id := range left.ids {
		errs = append(errs, c.forget(id))
	}
	for _, dir := range left.volumes {
		errs = append(errs, tree.Remove(ctx, dir))
		_ = os.Remove(filepath.Dir(dir)) // of the project, where it was the last
	}
	return errors.Join(errs...)
}

// endExec ends a command whose agent is gone, and removes its streams.
func (c *Containers) endExec(ctx context.Context, dir string) error {
	ctx, cancel := context.WithTimeout(ctx, killTimeout) // others wait
	defer cancel()
	streams, err := openFIFOs(dir)
	if err != nil {
		return err
	}
	defer streams.close()
	id, execID, _ := strings.Cut(filepath.Base(dir), ".")
	if err := c.shims.state(ctx, id).err; errors.Is(err, ErrUnresponsive) {
		return fmt.Errorf("cannot end a command in container %s: %w", id, err)
	}
	tasks := c.tasks()
	err = tasks.Kill(ctx, id, execID, uint32(unix.SIGKILL), false)
	if err == nil {
		_, _ = tasks.Wait(ctx, id, execID) // the next error tells more
	}
	_, err = tasks.DeleteProcess(ctx, id, execID)
	if err != nil && !errdefs.IsNotFound(err) {
		return err
	}
	return os.RemoveAll(dir)
}

// openFIFOs opens both ends of those in a directory: a shim that was told to start a
// command waits for the other end, and answers nothing meanwhile.
func openFIFOs(dir string) (opened closers, err error) {
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
			opened.close()
			return nil, err
		}
		opened = append(opened, f)
	}
	return opened, err
}

type closers []*os.File

func (all closers) close() {
	for _, f := range all {
		_ = f.Close()
	}
}

// forget removes all that lies outside containerd of a container that has no
// record any more.
func (c *Containers) forget(id string) error {
	return errors.Join(c.removeFiles(id), c.disconnect(id), detach(c.sharedMemory(id)), os.RemoveAll(c.nerdctlDir(id)),
		log.Remove(c.LogPath(id)))
}
