package capability

import (
	"strconv"
	"strings"
)

// limits are what a machine that is a container may use of the real one; zero
// is no limit.
type limits struct {
	memory uint64  // bytes
	cores  float64 // from a quota
	cpus   int     // from a set of processors
}

// limits reads the control group that the machine sees as the root of all. On
// a real machine this has no limits; in a container it has those of the
// container. The group of this program is none of our business: what limits an
// agent does not limit the workloads, which live in groups of their own.
func (m *machine) limits() limits {
	const group = "sys/fs/cgroup"
	var l limits

	// Version 2.
	if limit, err := strconv.ParseUint(m.line(group, "memory.max"), 10, 64); err == nil {
		l.memory = limit
	}
	if quota, period, ok := strings.Cut(m.line(group, "cpu.max"), " "); ok {
		l.cores = ratio(quota, period)
	}
	l.cpus = countList(m.line(group, "cpuset.cpus.effective"))

	// Version 1. Without a limit, memory has one that no machine reaches.
	if limit, err := strconv.ParseUint(m.line(group, "memory/memory.limit_in_bytes"), 10, 64); err == nil && l.memory == 0 {
		l.memory = limit
	}
	if l.cores == 0 {
		l.cores = ratio(m.line(group, "cpu/cpu.cfs_quota_us"), m.line(group, "cpu/cpu.cfs_period_us"))
	}
	if l.cpus == 0 {
		l.cpus = countList(m.line(group, "cpuset/cpuset.cpus"))
	}
	return l
}

// ratio divides a quota by its period; anything that is no quota gives 0.
func ratio(quota, period string) float64 {
	q, err := strconv.ParseInt(quota, 10, 64)
	p, err2 := strconv.ParseInt(period, 10, 64)
	if err != nil || err2 != nil || q <= 0 || p <= 0 {
		return 0
	}
	return float64(q) / float64(p)
}

// countList counts the members of a kernel list such as "0-3,5"; anything else
// gives 0.
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
