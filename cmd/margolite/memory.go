package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"runtime/debug"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/margolite/margolite/capability"
)

const (
	// gcPercent is how much garbage there may be, in percent of what is in use: half
	// of Go's own choice. An agent at rest has little to collect.
	gcPercent = 50
	// ownShare is the part of the machine that heap and stacks may have
	// before more processor time goes to collecting garbage, and leastOwn what they
	// may have in any case: with 16 MiB, a thousand deployments at once would take
	// several times as long. It is no hard limit: what is in use stays.
	ownShare = 4
	leastOwn = 24 << 20
	// restAfter is how long nothing has to happen until memory is given back.
	restAfter = 10 * time.Second
)

// boundMemory makes a process that runs containerd fit for the machine. What the user
// says in Go's own variables counts, GOGC and GOMEMLIMIT.
func (c *cli) boundMemory(ctx context.Context) {
	if own, _ := lookup(c.env, "GOGC"); own == "" {
		debug.SetGCPercent(gcPercent)
	}
	if own, _ := lookup(c.env, "GOMEMLIMIT"); own == "" {
		// A machine that does not tell its size has no limit.
		if memory, _ := capability.OwnMemory(ctx, "/"); memory > 0 {
			debug.SetMemoryLimit(memoryLimit(memory))
		}
	}
}

func memoryLimit(memory uint64) int64 {
	return int64(min(max(memory/ownShare, leastOwn), math.MaxInt64))
}

// thrift gives memory back whenever the agent has come to rest, after its start
// and after each change. It costs a collection of garbage and, later, some page
// faults that find their pages in the page cache.
type thrift struct {
	stirred <-chan struct{} // the agent is not at rest
	program []span          // read-only parts of the program in memory
}

func (t *thrift) run(ctx context.Context) error {
	timer := time.NewTimer(restAfter)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-t.stirred:
			timer.Reset(restAfter)
		case <-timer.C:
			t.giveBack()
		}
	}
}

// giveBack returns to the kernel what garbage took, and lets go of the program's
// own pages: most of what start and changes ran is not needed to poll. A page that
// is needed comes back by itself, from the page cache or else from the medium; it
// is only read, so that nothing can get lost. See build/README.md.
func (t *thrift) giveBack() {
	debug.FreeOSMemory()
	for _, s := range t.program {
		// Not every kernel can (COLD is of Linux 5.4), and where a page is locked it
		// stays: nothing is wrong then.
		for _, advice := range []uintptr{unix.MADV_COLD, unix.MADV_DONTNEED} {
			_, _, _ = unix.Syscall(unix.SYS_MADVISE, s.start, s.end-s.start, advice)
		}
	}
}

type span struct{ start, end uintptr }

// programSpans are where the kernel has mapped the program's file to be read alone,
// which stays so until the process ends. Other mappings are not for us: a database
// may unmap its own at any moment, and memory of others take its place.
func programSpans() ([]span, error) {
	file, err := os.Readlink("/proc/self/exe") // as the kernel writes it there, also of one that was replaced
	maps, readErr := os.ReadFile("/proc/self/maps")
	if err := errors.Join(err, readErr); err != nil {
		return nil, fmt.Errorf("cannot find the program in memory: %w", err)
	}
	return spansOf(string(maps), file), nil
}

// spansOf finds, in what the kernel tells of a process, the private mappings of a file
// that cannot be written to.
func spansOf(maps, file string) []span {
	var spans []span
	for line := range strings.Lines(maps) {
		var s span
		var access string
		if n, _ := fmt.Sscanf(line, "%x-%x %s", &s.start, &s.end, &access); n == 3 &&
			(access == "r-xp" || access == "r--p") && strings.HasSuffix(line, " "+file+"\n") {
			spans = append(spans, s)
		}
	}
	return spans
}
