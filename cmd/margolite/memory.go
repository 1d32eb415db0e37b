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
	// gcPercent is half of Go's default: an idle agent has little to collect.
	gcPercent = 50
	// ownShare is the fraction of the machine's memory that heap and stacks may have before garbage
	// collection works harder, and leastOwn a minimum: with 16 MiB, a thousand deployments at once
	// would take several times as long. It is no hard limit: live memory stays.
	ownShare = 4
	leastOwn = 24 << 20
	// restAfter is how long the agent must be idle before memory is returned.
	restAfter = 10 * time.Second
)

// boundMemory adapts a process with containerd to the machine. GOGC and GOMEMLIMIT take precedence.
func (c *cli) boundMemory(ctx context.Context) {
	if own, _ := lookup(c.env, "GOGC"); own == "" {
		debug.SetGCPercent(gcPercent)
	}
	if own, _ := lookup(c.env, "GOMEMLIMIT"); own == "" {
		// A machine of unknown size has no limit.
		if memory, _ := capability.OwnMemory(ctx, "/"); memory > 0 {
			debug.SetMemoryLimit(memoryLimit(memory))
		}
	}
}

func memoryLimit(memory uint64) int64 {
	return int64(min(max(memory/ownShare, leastOwn), math.MaxInt64))
}

// thrift returns memory whenever the agent becomes idle, after its start and after each change.
// This costs a garbage collection and, later, some page faults served from the page cache.
type thrift struct {
	stirred <-chan struct{} // signals activity of the agent
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

// giveBack returns garbage to the kernel, and drops the program's own pages: most code that ran at
// start and during changes is not needed for polling. Needed pages come back from the page cache or
// the medium; they are read-only, so nothing is lost. See build/README.md.
func (t *thrift) giveBack() {
	debug.FreeOSMemory()
	for _, s := range t.program {
		// Old kernels lack COLD (Linux 5.4), and locked pages stay; neither matters.
		for _, advice := range []uintptr{unix.MADV_COLD, unix.MADV_DONTNEED} {
			_, _, _ = unix.Syscall(unix.SYS_MADVISE, s.start, s.end-s.start, advice)
		}
	}
}

type span struct{ start, end uintptr }

// programSpans are the read-only mappings of the program's file, which stay until the process ends.
// Other mappings must not be touched: a database may unmap its own at any moment, and other memory
// may take its place.
func programSpans() ([]span, error) {
	file, err := os.Readlink("/proc/self/exe") // in the kernel's form, even if the file was replaced
	maps, readErr := os.ReadFile("/proc/self/maps")
	if err := errors.Join(err, readErr); err != nil {
		return nil, fmt.Errorf("cannot find the program in memory: %w", err)
	}
	return spansOf(string(maps), file), nil
}

// spansOf finds the private, non-writable mappings of a file in a process's maps.
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
