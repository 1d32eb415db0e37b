package capability

import (
	"cmp"
	"path/filepath"
	"strconv"
	"strings"
)

// limits bound what a container may use of its machine; zero: no limit.
type limits struct {
	memory uint64  // bytes
	cores  float64 // by a quota or a set of processors
}

// limits returns the tighter limits of the root control group, as this process sees it, and that of
// the workloads. The root has no limits on a real machine, and those of the container inside one;
// the workloads' group has the operator's. The agent's own group does not count: its limits do not
// apply to workloads.
func (m *machine) limits(workloads string) limits {
	l := m.groupLimits("")
	if workloads != "" && filepath.IsLocal(workloads) {
		own := m.groupLimits(workloads)
		l.memory, l.cores = least(l.memory, own.memory), least(l.cores, own.cores)
	}
	return l
}

// least returns the smaller of two limits, where zero is none.
func least[T uint64 | float64](a, b T) T {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}

func (m *machine) groupLimits(group string) limits {
	const root = "sys/fs/cgroup"

	// Version 2, else version 1, where unlimited memory is a limit that no machine reaches.
	memory := cmp.Or(number(m.line(root, group, "memory.max")), number(m.line(root, "memory", group, "memory.limit_in_bytes")))
	quota, period, _ := strings.Cut(m.line(root, group, "cpu.max"), " ")
	cores := cmp.Or(ratio(quota, period), ratio(m.line(root, "cpu", group, "cpu.cfs_quota_us"), m.line(root, "cpu", group, "cpu.cfs_period_us")))
	cpus := cmp.Or(countList(m.line(root, group, "cpuset.cpus.effective")), countList(m.line(root, "cpuset", group, "cpuset.cpus")))
	return limits{memory, least(cores, float64(cpus))}
}

// ratio divides a quota by its period; 0 if either is not a valid number.
func ratio(quota, period string) float64 {
	q, err := strconv.ParseInt(quota, 10, 64)
	p, err2 := strconv.ParseInt(period, 10, 64)
	if err != nil || err2 != nil || q <= 0 || p <= 0 {
		return 0
	}
	return float64(q) / float64(p)
}

// countList counts the members of a kernel list such as "0-3,5"; 0 for anything else.
func countList(list string) int {
	count := 0
	for item := range strings.SplitSeq(list, ",") {
		first, last, isRange := strings.Cut(item, "-")
		a, err := strconv.ParseUint(first, 10, 16)
		b := a
		if err == nil && isRange {
			b, err = strconv.ParseUint(last, 10, 16)
		}
		if err != nil || b < a {
			return 0
		}
		count += int(b-a) + 1
	}
	return count
}
