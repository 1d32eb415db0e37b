package container

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/margolite/margolite/runtime/tree"
)

// runc reads files of a container's root file system to create its task or start a command. A
// FIFO or a lease there blocks it indefinitely, without using processor time.
const (
	startLimit    = 15 * time.Second       // without processor time before a runc is killed
	cancelledIdle = time.Second            // ... if no one waits for what it creates
	firstSample   = time.Second            // most are done before
	sampleEvery   = 500 * time.Millisecond // of the processor time
	returnLimit   = 15 * time.Second       // for a call to return after its runc was killed ...
	killAgain     = 200 * time.Millisecond // ... again this often

	maxRuncRecord = 1 << 20 // bytes
)

type runc struct {
	dir string // of its records of containers
}

// unblocked makes a call to containerd that has a runc create or exec the object with this
// name. The call's context outlasts ctx. A blocked runc is killed, and the error is
// ErrBlocked; after ctx has ended, a runc idle for cancelled is killed, and the error is
// ctx's cause. The error is nil if the call succeeds anyway.
func (r *runc) unblocked(
	ctx context.Context, verb, name string, cancelled time.Duration, call func(context.Context) error,
) (killed bool, err error) {
	whole, cancel := unbroken(ctx)
	defer cancel()
	ended := begin(func() (struct{}, error) { return struct{}{}, call(whole) })
	next := time.NewTimer(firstSample)
	defer next.Stop()
	left := ctx.Done()
	var used uint64
	idle := time.Now() // time of the last progress
	for {
		select {
		case o := <-ended:
			if whole.Err() != nil {
				r.kill(verb, name) // it goes on without the call
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
		running := r.running(verb, name)
		now, busy := processorTime(running)
		if busy || now != used || len(running) == 0 {
			used, idle = now, time.Now()
		}
		if time.Since(idle) < limit {
			continue
		}
		if err := r.end(verb, name, ended); err != nil {
			return true, errors.Join(fmt.Errorf("runc is blocked on a file in the container's root file system: %w", why), err)
		}
		return true, nil
	}
}

// end kills a runc until the call that waits for it has ended.
func (r *runc) end(verb, name string, ended <-chan outcome[struct{}]) error {
	limit := time.NewTimer(returnLimit)
	defer limit.Stop()
	again := time.NewTicker(killAgain)
	defer again.Stop()
	for {
		r.kill(verb, name)
		select {
		case o := <-ended:
			return o.err
		case <-again.C: // the shim may be about to start it
		case <-limit.C:
			return fmt.Errorf("cannot stop runc %s", verb)
		}
	}
}

// kill kills a runc with its children, one of which is already in the container.
func (r *runc) kill(verb, name string) {
	for _, pid := range r.running(verb, name) {
		killTree(pid, func(pid int) bool { return r.is(commandLine(pid), verb, name) && isOutside(pid) })
	}
}

// running returns the processes of the OCI runtime that work on the object with this name.
func (r *runc) running(verb, name string) []int {
	return processesWith(func(line []byte) bool { return r.is(line, verb, name) })
}

func (r *runc) is(line []byte, verb, name string) bool {
	return bytes.Contains(line, []byte("\x00"+verb+"\x00")) && bytes.Contains(line, []byte(name)) &&
		argument(line, "--root") == r.dir
}

// recordedPid reads the main process from runc's record, without a shim; 0: none.
func (r *runc) recordedPid(id string) int {
	var record struct {
		Pid     int    `json:"init_process_pid"`
		Started uint64 `json:"init_process_start"` // in ticks since boot
	}
	text, err := tree.ReadFile(filepath.Join(r.dir, id, "state.json"), maxRuncRecord)
	if err != nil || json.Unmarshal(text, &record) != nil || record.Pid <= 0 || startTicks(record.Pid) != record.Started {
		return 0
	}
	return record.Pid
}
