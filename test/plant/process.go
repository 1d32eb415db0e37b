package plant

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// Shims are the process ids of the shims that run for this plant.
func (p *Plant) Shims() []int {
	return Processes("containerd-shim", p.options.Dir+"/")
}

// Processes are those whose command line holds all words.
func Processes(words ...string) []int {
	var found []int
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		line, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
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
	for _, child := range Processes() {
		parent, _ := strconv.Atoi(Stat(child).Parent) // it may have ended
		children[parent] = append(children[parent], child)
	}
	all := children[pid]
	for i := 0; i < len(all); i++ { // it grows on the way
		all = append(all, children[all[i]]...)
	}
	return all
}

// Environment are the variables that a process was started with; none: it has ended.
func Environment(pid int) map[string]string {
	text, _ := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "environ"))
	variables := map[string]string{}
	for variable := range strings.SplitSeq(string(text), "\x00") {
		name, value, _ := strings.Cut(variable, "=")
		variables[name] = value
	}
	return variables
}

// KillTree ends a process and all below it, as kill -9 does.
func KillTree(pid int) {
	for _, victim := range append(Descendants(pid), pid) {
		_ = unix.Kill(victim, unix.SIGKILL) // it may have ended
	}
}

// Status is what the kernel says of a process in /proc/PID/stat; all empty: it has ended.
type Status struct {
	State, Parent string
	Started       string // in ticks since the kernel did
}

// Stat asks for the status of a process.
func Stat(pid int) (s Status) {
	stat, _ := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	// The name before it may hold anything, also brackets.
	rest := string(stat)[strings.LastIndex(string(stat), ")")+1:]
	if fields := strings.Fields(rest); len(fields) >= 20 {
		s = Status{State: fields[0], Parent: fields[1], Started: fields[19]}
	}
	return s
}

// ProcessorTime is what a process has used. Its clock counts nanoseconds, where
// /proc/PID/stat counts hundredths of a second.
func ProcessorTime(pid int) (time.Duration, error) {
	const scheduled = 2 // CPUCLOCK_SCHED: the process's own clock, see clock_getcpuclockid(3)
	var t unix.Timespec
	if err := unix.ClockGettime(int32(^pid<<3|scheduled), &t); err != nil {
		return 0, fmt.Errorf("cannot read the clock of process %d: %w", pid, err)
	}
	return time.Duration(t.Nano()), nil
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
		var n int64
		name, rest, _ := strings.Cut(line, ":")
		if _, err := fmt.Sscan(rest, &n); err != nil {
			continue
		}
		if strings.HasSuffix(rest, " kB\n") {
			n <<= 10
		}
		all[name] = n
	}
	return all, nil
}

// UnmountBelow unmounts everything below dir, the innermost first.
func UnmountBelow(dir string) {
	mounts, _ := mountinfo.GetMounts(func(m *mountinfo.Info) (skip, stop bool) {
		return !strings.HasPrefix(m.Mountpoint, dir+"/"), false
	})
	for _, m := range slices.Backward(mounts) {
		_ = unix.Unmount(m.Mountpoint, unix.MNT_DETACH)
	}
}
