package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime/debug"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/margolite/margolite/cmd/command"
	"github.com/margolite/margolite/runtime/embedded"
	"github.com/margolite/margolite/store"
)

// Limits of the process that reads a damaged database. A sound one of 512 MiB needs a tenth of the
// memory.
const (
	apartDeadline = 2 * time.Minute
	apartMemory   = 256 << 20
	apartStack    = 32 << 20
	// apartText bounds the kept error output of a dying process.
	apartText = 512
	// goDied is the exit status of a Go program that panics or is ended by the runtime.
	goDied = 2
)

// apartName is the verb of that process. It is for internal use, so help does not mention it.
const apartName = "apart"

func (c *cli) workApart(f *command.Flags) command.Action {
	f.Takes(0, command.Many, "a job")
	f.Own = 0
	return func(_ context.Context, job []string) error {
		debug.SetMaxStack(apartStack)
		// If memory runs out, this process should be killed rather than the agent or a workload. A
		// failure to set this does not matter.
		_ = os.WriteFile("/proc/self/oom_score_adj", []byte("1000"), 0)
		if err := unix.Setrlimit(unix.RLIMIT_DATA, &unix.Rlimit{Cur: apartMemory, Max: apartMemory}); err != nil {
			return fmt.Errorf("cannot bound memory: %w", err)
		}
		return store.Work(c.out, job...)
	}
}

// doApart runs jobs on databases in another process of this program, until ctx is done.
func doApart(ctx context.Context) store.Apart {
	return func(job ...string) (io.ReadCloser, error) {
		limited, cancel := context.WithTimeout(ctx, apartDeadline)
		p := &apartProcess{
			cmd: exec.CommandContext(limited, "/proc/self/exe", append([]string{apartName}, job...)...),
			job: job[0] + " " + job[1], ctx: ctx, limited: limited, cancel: cancel,
		}
		p.cmd.Stderr = &p.said
		p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} // or it would lock the database at the next start
		out, err := p.cmd.StdoutPipe()
		if err == nil {
			err = p.cmd.Start()
		}
		if err != nil {
			cancel()
			return nil, fmt.Errorf("cannot start process for %q: %w", p.job, err)
		}
		p.ReadCloser = out
		return p, nil
	}
}

type apartProcess struct {
	io.ReadCloser
	cmd          *exec.Cmd
	job          string
	said         firstBytes
	ctx, limited context.Context
	cancel       context.CancelFunc
}

// Close waits for the process. A kill from outside, as when the system lacks memory, says nothing
// about the database; nor does a system that refuses memory (vm.overcommit_memory=2), although Go
// then ends as at its own bound.
func (p *apartProcess) Close() error {
	defer p.cancel()
	_ = p.ReadCloser.Close() // ends a process that still writes
	err := p.cmd.Wait()
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		return err
	}
	line, _, _ := strings.Cut(string(p.said), "\n")
	status := exit.Sys().(syscall.WaitStatus)
	switch {
	case p.ctx.Err() != nil:
		return p.ctx.Err()
	case p.limited.Err() != nil:
		return fmt.Errorf("%w: bbolt comes to no end within %v", store.ErrCorrupt, apartDeadline)
	case status.Exited() && status.ExitStatus() == goDied && !(strings.Contains(line, "memory") && isShort(apartMemory)):
		return fmt.Errorf("%w: bbolt ended with %v: %s", store.ErrCorrupt, err, line)
	}
	return fmt.Errorf("process for %q failed: %w: %s", p.job, err, line)
}

// isShort reports that the system would refuse a process that many bytes of memory. It requests
// them as Go does, a few at a time, and uses none.
func isShort(bytes int) bool {
	const step = 4 << 20
	for ; bytes > 0; bytes -= step {
		some, err := unix.Mmap(-1, 0, step, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
		if err != nil {
			return true
		}
		defer func() { _ = unix.Munmap(some) }()
	}
	return false
}

type firstBytes []byte

func (f *firstBytes) Write(data []byte) (int, error) {
	*f = append(*f, data[:min(len(data), apartText-len(*f))]...)
	return len(data), nil
}

// checkDatabase checks a database of containerd as the store checks its own.
func checkDatabase(ctx context.Context) func(path string) error {
	return func(path string) error {
		err := store.Check(doApart(ctx), path)
		if errors.Is(err, store.ErrCorrupt) {
			return fmt.Errorf("%w: %w", embedded.ErrDamaged, err)
		}
		return err
	}
}
