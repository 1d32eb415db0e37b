package container

import (
	"errors"
	"fmt"
	"io/fs"
	"math/bits"
	"os"
	"path/filepath"
	"strconv"

	"github.com/margolite/margolite/runtime/compose"
)

const (
	realtimeRoot   = "/sys/fs/cgroup/cpu" // there is real time on cgroup v1 alone
	realtimePeriod = 1_000_000            // microseconds, that of the kernel where nobody sets another
)

// realtimeOf is the real time of a service in microseconds per second.
func realtimeOf(s *compose.Service) uint64 {
	r := s.Resources
	if r.CPURealtime <= 0 {
		return 0
	}
	if r.CPURealtimePeriod == 0 {
		return uint64(r.CPURealtime)
	}
	return perSecond(uint64(r.CPURealtime), r.CPURealtimePeriod)
}

// perSecond is the share of runtime in period, rounded up; all of it at most.
func perSecond(runtime, period uint64) uint64 {
	if runtime >= period {
		return realtimePeriod
	}
	high, low := bits.Mul64(runtime, realtimePeriod)
	share, rest := bits.Div64(high, low, period) // less than realtimePeriod: it does not overflow
	if rest > 0 {
		share++
	}
	return share
}

// allowRealtime gives the groups above that of a container the real time that
// the container is about to take: the kernel gives a group no more than the one
// above it has, and that is none until somebody says so.
func allowRealtime(root, group string, share uint64) error {
	type level struct {
		dir  string
		need uint64
	}
	var levels []level
	need, taker := share, filepath.Join(root, group)
	for dir := filepath.Dir(taker); len(dir) > len(root); taker, dir = dir, filepath.Dir(dir) {
		entries, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("cannot allow real time: %w", err)
		}
		for _, entry := range entries {
			if other := filepath.Join(dir, entry.Name()); entry.IsDir() && other != taker {
				need += realtimeIn(other)
			}
		}
		levels = append(levels, level{dir, need})
	}
	for i := len(levels) - 1; i >= 0; i-- {
		if err := os.MkdirAll(levels[i].dir, 0o755); err != nil {
			return fmt.Errorf("cannot allow real time: %w", err)
		}
		if err := raiseRealtime(levels[i].dir, levels[i].need, share); err != nil {
			return fmt.Errorf("cannot allow real time: the device has less than %d microseconds per second left: %w", levels[i].need, err)
		}
	}
	return nil
}

// raiseRealtime lets a group have what it needs, and where possible some more:
// the kernel counts a group that was removed for a moment yet, as that of the
// container's former process.
func raiseRealtime(dir string, need, more uint64) error {
	file := filepath.Join(dir, "cpu.rt_runtime_us")
	has := realtimeIn(dir)
	if has >= need+more || os.WriteFile(file, strconv.AppendUint(nil, need+more, 10), 0o644) == nil || has >= need {
		return nil
	}
	return os.WriteFile(file, strconv.AppendUint(nil, need, 10), 0o644)
}

// realtimeIn is the real time of a group in microseconds per second.
func realtimeIn(dir string) uint64 {
	number := func(file string) uint64 {
		n, _ := strconv.ParseInt(firstWord(filepath.Join(dir, file)), 10, 64) // -1: no bound of its own
		return uint64(max(n, 0))
	}
	runtime, period := number("cpu.rt_runtime_us"), number("cpu.rt_period_us")
	if period == 0 {
		return 0
	}
	return perSecond(runtime, period)
}
