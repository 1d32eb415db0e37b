package container

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"time"
)

// Usage is what a container has used of the machine since it was created, and
// uses now, as its control group counts it. What the kernel does not count is 0.
type Usage struct {
	CPU    time.Duration
	Memory int64 // bytes, with its part of the page cache
}

// UsageOf reads the usage of a container. It starts no process and asks nobody.
func (c *Containers) UsageOf(found Container) Usage {
	return usageOf("/sys/fs/cgroup", c.cgroups.path(found.Labels.Project, found.ID, found.Labels.CgroupParent))
}

// usageOf reads a control group below root: one of version 2, or else those of
// the two controllers of version 1.
func usageOf(root, group string) Usage {
	if stat, err := os.ReadFile(filepath.Join(root, group, "cpu.stat")); err == nil {
		return Usage{
			CPU:    time.Duration(valueOf(stat, "usage_usec")) * time.Microsecond,
			Memory: counter(filepath.Join(root, group, "memory.current")),
		}
	}
	return Usage{
		CPU:    time.Duration(counter(filepath.Join(root, "cpuacct", group, "cpuacct.usage"))),
		Memory: counter(filepath.Join(root, "memory", group, "memory.usage_in_bytes")),
	}
}

// counter is the number that a file holds; 0 if it holds none.
func counter(path string) int64 {
	n, _ := strconv.ParseInt(firstWord(path), 10, 64)
	return n
}

// valueOf is a number in a file of lines with a name and a number each.
func valueOf(stat []byte, name string) int64 {
	for line := range bytes.Lines(stat) {
		if key, value, _ := bytes.Cut(line, []byte(" ")); string(key) == name {
			n, _ := strconv.ParseInt(string(bytes.TrimSpace(value)), 10, 64)
			return n
		}
	}
	return 0
}
