package container

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/margolite/margolite/runtime/containerd"
)

// shimProcess is the name of every shim's process, as long as the kernel has room
// for it.
const shimProcess = "containerd-shim"

// WatchShims asks shims that stopped responding again until ctx ends, and kills
// those that have not responded within the grace time: containerd then reports
// that their containers have ended. changed is called with the container of a shim
// that stops or starts responding; it must not block.
func (c *Containers) WatchShims(ctx context.Context, changed func(id string)) error {
	told := make(map[string]bool) // containers that were logged
	var again <-chan time.Time    // nil: all shims respond
	for {
		switch silent := len(c.shims.listSilent()) > 0; {
		case !silent:
			again = nil
		case again == nil:
			again = time.After(c.shims.recheck())
		}
		select {
		case <-ctx.Done():
			return nil
		case <-c.shims.found:
			for _, id := range c.shims.listSilent() {
				changed(id)
			}
		case <-again:
			again = nil
			c.recheckShims(ctx, told, changed)
		}
	}
}

// recheckShims asks each shim that does not respond once.
func (c *Containers) recheckShims(ctx context.Context, told map[string]bool, changed func(id string)) {
	silent := c.shims.listSilent()
	for id := range told {
		if !slices.Contains(silent, id) { // somebody else has found that it responds, or its container is gone
			delete(told, id)
			changed(id)
		}
	}
	answers := c.shims.each(silent, func(id string) taskState { return c.shims.check(ctx, id) })
	for i, id := range silent {
		switch {
		case ctx.Err() != nil:
			return
		case !errors.Is(answers[i].err, ErrUnresponsive):
			if told[id] {
				c.o.Logger.Info("shim responds again", "container", id)
			}
			delete(told, id)
			changed(id)
		case c.shims.expired(id):
			if err := c.endShim(ctx, id); err != nil && ctx.Err() == nil {
				c.o.Logger.Warn("cannot kill shim that does not respond", "container", id, "error", err)
			}
			delete(told, id)
			changed(id)
		case !told[id]:
			told[id] = true
			c.o.Logger.Warn("shim does not respond", "container", id, "kill_after", c.shims.grace)
		}
	}
}

// withShim does something with a container. If its shim does not respond, it waits
// until it does, kills it when its grace time is over, and does it again.
func (c *Containers) withShim(ctx context.Context, id string, do func() error) error {
	err := do()
	for errors.Is(err, ErrUnresponsive) && ctx.Err() == nil {
		for !c.shims.expired(id) && errors.Is(c.shims.check(ctx, id).err, ErrUnresponsive) {
			if !pause(ctx, c.shims.recheck()) {
				return ctx.Err()
			}
		}
		if c.shims.expired(id) {
			if err := c.endShim(ctx, id); err != nil {
				return err
			}
		}
		err = do()
	}
	return err
}

// awaitGroup waits until the shim that a task of a project would join responds, or
// kills it. A task whose creation such a shim keeps waiting is worse to get rid of:
// containerd 1.6 leaves its directory, and refuses to create it again.
func (c *Containers) awaitGroup(ctx context.Context, project string) error {
	for _, id := range c.shims.listSuspects() {
		record, err := c.o.Client.ContainerService().Get(ctx, id)
		switch {
		case errdefs.IsNotFound(err):
			c.shims.forget(id)
			continue
		case err != nil:
			return err
		case record.Labels[OwnerKey] != project:
			continue
		}
		err = c.withShim(ctx, id, func() error { return c.shims.check(ctx, id).err })
		if err != nil && !errdefs.IsNotFound(err) {
			return err
		}
	}
	return nil
}

// endShim kills the shim of a container, with all that it runs, unless it
// responds by now, and waits until containerd has noticed.
func (c *Containers) endShim(ctx context.Context, id string) error {
	select {
	case c.shims.ending <- struct{}{}:
		defer func() { <-c.shims.ending }()
	case <-ctx.Done():
		return ctx.Err()
	}
	if !errors.Is(c.shims.check(ctx, id).err, ErrUnresponsive) {
		return nil
	}
	// Both calls go through containerd, which may itself be what does not respond.
	limited, done := context.WithTimeout(ctx, stateTimeout)
	_, err := await(limited, func(ctx context.Context) (containers.Container, error) {
		return c.o.Client.ContainerService().Get(ctx, id)
	})
	done()
	if err != nil && !errdefs.IsNotFound(err) {
		return fmt.Errorf("cannot determine whether the shim of container %s or containerd does not respond: %w", id, err)
	}
	shims, err := c.shimsOf(ctx, id)
	if err != nil {
		return fmt.Errorf("cannot find the shim of container %s: %w", id, err)
	}
	for _, pid := range shims {
		c.o.Logger.Warn("killing shim that does not respond", "container", id, "shim", pid)
		socket := socketOf(pid)
		killTree(pid)
		if socket != "" {
			_ = os.Remove(socket) // or containerd has
		}
	}
	ctx, cancel := context.WithTimeout(ctx, killTimeout)
	defer cancel()
	for {
		answer := c.shims.ask(ctx, id)
		if !errors.Is(answer.err, ErrUnresponsive) && ctx.Err() == nil {
			c.shims.forget(id)
			if !errdefs.IsNotFound(answer.err) {
				return answer.err
			}
			return c.endStrays(ctx, id)
		}
		if !pause(ctx, strayPoll) {
			return fmt.Errorf("cannot kill the shim of container %s within %s (%d processes found)", id, killTimeout, len(shims))
		}
	}
}

// socketOf is where a shim listens, on its first file behind the standard ones; "" if
// that cannot be told. containerd looks for the socket of a shim that was killed under
// the name of one container, and a shim serves several.
func socketOf(pid int) string {
	link, _ := os.Readlink(fmt.Sprintf("/proc/%d/fd/3", pid))
	inode, ok := strings.CutPrefix(strings.TrimSuffix(link, "]"), "socket:[")
	table, err := os.ReadFile("/proc/net/unix")
	if !ok || err != nil {
		return ""
	}
	for line := range strings.Lines(string(table)) {
		if fields := strings.Fields(line); len(fields) == 8 && fields[6] == inode && filepath.IsAbs(fields[7]) {
			return fields[7]
		}
	}
	return ""
}

// killTree kills a process and those that it started.
func killTree(pid int) {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return // it has ended
	}
	defer unix.Close(fd)
	if !isShim(pid) { // the number went to another process
		return
	}
	family := descendants(pid)
	defer family.close()
	_ = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0) // it has ended otherwise
	family.kill()
}

// shimsOf finds the shim of a container without asking it: the parent of the
// container's process, or one that was started for it. Where there is neither, the
// task is to be created in the shim of its project, which is that of another of
// its containers that does not respond, or one that containerd has given up.
func (c *Containers) shimsOf(ctx context.Context, id string) ([]int, error) {
	running, err := c.shimsByContainer()
	if err != nil {
		return nil, err
	}
	own := func(id string) int {
		if pid := c.recordedPid(id); pid > 0 && isShim(parentOf(pid)) {
			return parentOf(pid)
		}
		return running[id]
	}
	if pid := own(id); pid > 0 {
		return []int{pid}, nil
	}
	record, err := c.o.Client.ContainerService().Get(ctx, id)
	if err != nil {
		return nil, err
	}
	siblings, err := c.o.Client.ContainerService().List(ctx, fmt.Sprintf("labels.%q==%q", OwnerKey, record.Labels[OwnerKey]))
	if err != nil {
		return nil, err
	}
	var found []int
	for _, sibling := range siblings {
		pid := own(sibling.ID)
		if pid == 0 || slices.Contains(found, pid) {
			continue
		}
		if err := c.shims.ask(ctx, sibling.ID).err; errors.Is(err, ErrUnresponsive) || errdefs.IsNotFound(err) {
			found = append(found, pid)
		}
	}
	return found, nil
}

// shimsByContainer are the shims that containerd has started, by the container
// that each was started for. Those of another containerd may serve containers of
// the same names.
func (c *Containers) shimsByContainer() (map[string]int, error) {
	socket, err := os.Stat(containerd.Address(c.o.Client))
	if err != nil {
		return nil, err
	}
	names, err := filepath.Glob("/proc/[0-9]*/comm")
	if err != nil {
		return nil, err
	}
	found := make(map[string]int)
	for _, name := range names {
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(name)))
		if err != nil || !isShim(pid) {
			continue
		}
		line, err := commandLine(pid)
		if err != nil {
			continue // it has ended
		}
		args := bytes.Split(line, []byte{0})
		if argument(args, "-namespace") != c.o.Namespace {
			continue
		}
		if of, err := os.Stat(argument(args, "-address")); err == nil && os.SameFile(of, socket) {
			found[argument(args, "-id")] = pid
		}
	}
	return found, nil
}

// argument is what follows a flag; "" if nothing does.
func argument(args [][]byte, flag string) string {
	i := slices.IndexFunc(args, func(a []byte) bool { return string(a) == flag })
	if i < 0 || i+1 >= len(args) {
		return ""
	}
	return string(args[i+1])
}

func isShim(pid int) bool {
	name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	return err == nil && pid > 1 && string(bytes.TrimSpace(name)) == shimProcess && isOutside(pid)
}

// isOutside tells whether a process is in the agent's PID namespace, as shims and
// runc are. Those of a container choose their names and command lines; one without
// a PID namespace of its own is trusted with all processes anyway.
func isOutside(pid int) bool {
	own, err := os.Stat("/proc/self/ns/pid")
	if err != nil {
		return false
	}
	theirs, err := os.Stat(fmt.Sprintf("/proc/%d/ns/pid", pid))
	return err == nil && os.SameFile(own, theirs)
}
