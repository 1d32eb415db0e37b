package container

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// runc reads files of a container's root file system when it creates its task or starts a command in it, and a FIFO or a
// lease there blocks it for as long as the container likes. Such a runc takes no processor time.
const (
	startLimit    = 15 * time.Second       // without processor time until a runc is killed
	cancelledIdle = time.Second            // ... that creates what nobody waits for any more
	firstSample   = time.Second            // most are done before
	sampleEvery   = 500 * time.Millisecond // of the processor time
	returnLimit   = 15 * time.Second       // for a call to return whose runc is killed ...
	killAgain     = 200 * time.Millisecond // ... so often
)

// unblocked makes a call to containerd that has a runc do something (create, exec) with what has this name. The call has
// a context that outlasts ctx. A runc that blocks is killed, and the error is ErrBlocked; once ctx has ended so is one that
// is idle for the time cancelled, and the error is the cause of that. It is nil when the call succeeded in spite of it.
func (c *Containers) unblocked(
	ctx context.Context, verb, name string, cancelled time.Duration, call func(context.Context) error,
) (killed bool, err error) {
	whole, cancel := unbroken(ctx)
	defer cancel()
	ended := begin(func() (struct{}, error) { return struct{}{}, call(whole) })
	next := time.NewTimer(firstSample)
	defer next.Stop()
	left := ctx.Done()
	var used uint64
	idle := time.Now() // since then
	for {
		select {
		case o := <-ended:
			if whole.Err() != nil {
				c.killRunc(verb, name) // it goes on without the call
			}
			return false, o.err
		case <-left: // sampled at once
			left = nil
		case <-next.C:
		}
		next.Reset(sampleEvery)
		why, limit := ErrBlocked, startLimit
		if ctx.Err() != nil {
			why, limit = context.Cause(ctx), cancelled
		}
		running := c.runcs(verb, name)
		now, busy := processorTime(running)
		if busy || now != used || len(running) == 0 {
			used, idle = now, time.Now()
		}
		if time.Since(idle) < limit {
			continue
		}
		if err := c.endRunc(verb, name, ended); err != nil {
			return true, errors.Join(fmt.Errorf("runc is blocked on a file in the container's root file system: %w", why), err)
		}
		return true, nil
	}
}

// endRunc kills a runc until the call that waits for it has ended.
func (c *Containers) endRunc(verb, name string, ended <-chan outcome[struct{}]) error {
	limit := time.NewTimer(returnLimit)
	defer limit.Stop()
	again := time.NewTicker(killAgain)
	defer again.Stop()
	for {
		c.killRunc(verb, name)
		select {
		case o := <-ended:
			return o.err
		case <-again.C: // the shim may be just about to run it
		case <-limit.C:
			return fmt.Errorf("cannot stop runc %s", verb)
		}
	}
}

// killRunc kills a runc with its children: one of them is in the container already.
func (c *Containers) killRunc(verb, name string) {
	for _, pid := range c.runcs(verb, name) {
		killTree(pid, func(pid int) bool { return c.isRunc(commandLine(pid), verb, name) && isOutside(pid) })
	}
}

// runcs are the processes of the OCI runtime that do something with what has this name.
func (c *Containers) runcs(verb, name string) []int {
	return processesWith(func(line []byte) bool { return c.isRunc(line, verb, name) })
}

func (c *Containers) isRunc(line []byte, verb, name string) bool {
	return bytes.Contains(line, []byte("\x00"+verb+"\x00")) && bytes.Contains(line, []byte(name)) &&
		argument(line, "--root") == filepath.Join(c.runcRoot(), c.o.Namespace)
}

// clearCreation removes what a killed runc leaves of a container that never ran. With it runc would refuse to create the
// container again. parent is where its control group is, if that is not below its project's.
func (c *Containers) clearCreation(id, parent string) error {
	for _, dir := range cgroupDirs(c.cgroup("*", id, escapePattern(parent))) {
		for _, pid := range processesIn(dir) {
			_ = unix.Kill(pid, unix.SIGKILL) // it is a child of that runc, and has ended otherwise
		}
		_ = os.Remove(dir) // below a parent of ours; or it goes with the container
	}
	return os.RemoveAll(filepath.Join(c.runcRoot(), c.o.Namespace, id))
}
