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
	"time"

	"golang.org/x/sys/unix"
)

// runc reads files of a container's root file system when it creates its task, and a FIFO or a lease there blocks it for as
// long as the container likes. Such a runc takes no processor time.
const (
	cancelledIdle = time.Second            // without processor time until a creation that was cancelled is killed
	sampleEvery   = 250 * time.Millisecond // of the processor time of a creation
	firstSample   = time.Second            // most creations are over before
)

// createUnblocked creates the task of a container by a call to containerd. That call has the context whole, which outlasts ctx. A runc that has not used
// the processor for startLimit is killed, and the error is ErrBlocked. Once ctx has ended, cancelledIdle is enough, and the
// error is that of ctx.
func (c *Containers) createUnblocked(ctx, whole context.Context, id string, create func(context.Context) error) error {
	ended := make(chan error, 1)
	go func() { ended <- create(whole) }() // ends with whole
	next := time.NewTimer(firstSample)
	defer next.Stop()
	cancelled := ctx.Done()
	var last sample
	var creators family
	defer func() { creators.close() }()
	for {
		select {
		case err := <-ended:
			return err
		case <-cancelled: // sampled at once, and often from now on
			cancelled = nil
		case <-next.C:
		}
		next.Reset(sampleEvery)
		why, limit := ErrBlocked, startLimit
		if ctx.Err() != nil {
			why, limit = context.Cause(ctx), cancelledIdle
		}
		if len(creators) == 0 || slices.ContainsFunc(creators, func(r relative) bool { return !c.isCreator(r.pid, id) }) {
			creators.close()
			creators = c.creators(id)
		}
		last = last.next(creators)
		if !last.idleFor(limit) {
			continue
		}
		err := c.endCreation(id, ended)
		// A shim of containerd 1.6 tells nothing while runc creates a task: it responds again.
		c.shims.check(context.WithoutCancel(ctx), id)
		if err != nil {
			err = errors.Join(fmt.Errorf("runc is blocked on a file in the container's root file system: %w", why), err)
		}
		return err
	}
}

// endCreation kills the runc that creates a task until the creation has ended, and removes what it leaves. It returns nil
// when the task was created in spite of that.
func (c *Containers) endCreation(id string, ended <-chan error) error {
	limit := time.NewTimer(returnLimit)
	defer limit.Stop()
	again := time.NewTicker(killAgain)
	defer again.Stop()
	for {
		creators := c.creators(id)
		for _, creator := range creators {
			creator.killWhole()
		}
		creators.close()
		select {
		case err := <-ended:
			if err != nil {
				err = errors.Join(err, c.clearCreation(id))
			}
			return err
		case <-again.C:
		case <-limit.C:
			return errors.New("cannot stop the creation")
		}
	}
}

// clearCreation removes what a killed runc leaves of a container that never ran. With it runc would refuse to create the
// container again.
func (c *Containers) clearCreation(id string) error {
	for _, dir := range cgroupDirs(c.cgroup("*", id)) {
		for _, pid := range processesIn(dir) {
			_ = unix.Kill(pid, unix.SIGKILL) // it is a child of that runc, and has ended otherwise
		}
		_ = os.Remove(dir) // below a parent of ours; or it goes with the container
	}
	return os.RemoveAll(filepath.Join(c.runcRoot(), c.o.Namespace, id))
}

// creators are the processes of the OCI runtime that create the task of a container.
func (c *Containers) creators(id string) (found family) {
	lines, _ := filepath.Glob("/proc/[0-9]*/cmdline") // the pattern is valid
	for _, line := range lines {
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(line)))
		if err != nil || !c.isCreator(pid, id) {
			continue
		}
		fd, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			continue
		}
		if !c.isCreator(pid, id) { // the number went to another process
			_ = unix.Close(fd)
			continue
		}
		found = append(found, relative{pid: pid, fd: fd})
	}
	return found
}

func (c *Containers) isCreator(pid int, id string) bool {
	line, err := commandLine(pid)
	if err != nil || !bytes.HasSuffix(line, []byte("\x00"+id+"\x00")) || !isOutside(pid) {
		return false
	}
	args := bytes.Split(line, []byte{0})
	return argument(args, "--root") == filepath.Join(c.runcRoot(), c.o.Namespace) && bytes.Contains(line, []byte("\x00create\x00"))
}

// sample is what processes and those that they started had used of the processor when they were looked at.
type sample struct {
	ticks int64
	since time.Time // nothing was used, and nobody wanted to; zero: there was nobody
}

// next is the sample after s.
func (s sample) next(f family) sample {
	if len(f) == 0 {
		return sample{}
	}
	now := sample{since: s.since}
	waiting := true
	add := func(pid int) {
		state, ticks := processorTime(pid)
		now.ticks += ticks
		waiting = waiting && state != "R" && state != "D"
	}
	for _, r := range f {
		add(r.pid)
		children := descendants(r.pid)
		for _, child := range children {
			add(child.pid)
		}
		children.close()
	}
	if !waiting || now.ticks != s.ticks || s.since.IsZero() {
		now.since = time.Now()
	}
	return now
}

func (s sample) idleFor(d time.Duration) bool {
	return !s.since.IsZero() && time.Since(s.since) >= d
}

// processorTime is the state of a process as a letter of the kernel's, and what it has used of the processor, in ticks.
func processorTime(pid int) (state string, ticks int64) {
	fields := statFields(pid)
	const user, system = 14, 15
	for _, number := range []int{user, system} {
		n, _ := strconv.ParseInt(statField(fields, number), 10, 64)
		ticks += n
	}
	return statField(fields, 3), ticks
}
