package plant

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Shims are the process ids of the shims that run for this plant.
func (p *Plant) Shims() []int {
	return Processes("containerd-shim", p.options.Dir+"/")
}

// Processes are those whose command line holds all words.
func Processes(words ...string) []int {
	var found []int
	for _, pid := range processes() {
		line, _ := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "cmdline"))
		lacks := func(word string) bool { return !strings.Contains(string(line), word) }
		if !slices.ContainsFunc(words, lacks) {
			found = append(found, pid)
		}
	}
	return found
}

// Descendants are the children of a process, and theirs.
func Descendants(pid int) []int {
	children := map[int][]int{}
	for _, child := range processes() {
		stat, _ := os.ReadFile(filepath.Join("/proc", strconv.Itoa(child), "stat"))
		// The name before it may hold anything, also brackets.
		rest := string(stat)[strings.LastIndex(string(stat), ")")+1:]
		if fields := strings.Fields(rest); len(fields) > 1 {
			parent, _ := strconv.Atoi(fields[1])
			children[parent] = append(children[parent], child)
		}
	}
	var all []int
	for next := children[pid]; len(next) > 0; {
		all = append(all, next...)
		var below []int
		for _, child := range next {
			below = append(below, children[child]...)
		}
		next = below
	}
	return all
}

func processes() []int {
	entries, _ := os.ReadDir("/proc")
	var pids []int
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

// Counts are the numbers of a file of /proc/PID that names them line by line, as status,
// io and smaps_rollup do. Sizes are in bytes.
func Counts(pid int, file string) (map[string]int64, error) {
	text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), file))
	if err != nil {
		return nil, fmt.Errorf("cannot measure process %d: %w", pid, err)
	}
	all := map[string]int64{}
	for line := range strings.Lines(string(text)) {
		name, rest, _ := strings.Cut(line, ":")
		words := strings.Fields(rest)
		if len(words) == 0 {
			continue
		}
		n, err := strconv.ParseInt(words[0], 10, 64)
		if err != nil {
			continue
		}
		if len(words) > 1 && words[1] == "kB" {
			n <<= 10
		}
		all[name] = n
	}
	return all, nil
}

// ProcessorTime is what a process has used of the processors. Its clock counts
// nanoseconds, where /proc/PID/stat counts hundredths of a second.
func ProcessorTime(pid int) (time.Duration, error) {
	const scheduled = 2 // CPUCLOCK_SCHED: the process's own clock, see clock_getcpuclockid(3)
	var t unix.Timespec
	if err := unix.ClockGettime(int32(^pid<<3|scheduled), &t); err != nil {
		return 0, fmt.Errorf("cannot read the clock of process %d: %w", pid, err)
	}
	return time.Duration(t.Nano()), nil
}

// UnmountBelow unmounts everything below dir, the innermost first.
func UnmountBelow(dir string) {
	mounts, _ := os.ReadFile("/proc/self/mountinfo")
	var points []string
	for line := range strings.Lines(string(mounts)) {
		if f := strings.Fields(line); len(f) > 4 && strings.HasPrefix(f[4], dir+"/") {
			points = append(points, f[4])
		}
	}
	for _, point := range slices.Backward(points) {
		_ = unix.Unmount(point, unix.MNT_DETACH)
	}
}
