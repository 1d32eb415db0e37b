package container

import (
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

const strayPoll = 20 * time.Millisecond

type cgroups struct {
	*records

	// For reading while runc makes control groups, parents first; for writing to remove empty ones.
	creating sync.RWMutex
}

// path is a container's control group, below its project's, below this runtime's; or below
// parent, from cgroup_parent, which is the owner's and never removed.
func (g *cgroups) path(project, id, parent string) string {
	if parent != "" {
		return path.Join("/", parent, id)
	}
	return path.Join("/", g.namespace, project, id)
}

// of returns the directories of a container's control group; it may have no record any more.
func (g *cgroups) of(ctx context.Context, id string) []string {
	if _, labels, err := g.read(ctx, id); err == nil {
		return cgroupDirs(g.path(labels.Project, id, escapePattern(labels.CgroupParent)))
	}
	return cgroupDirs(g.path("*", id, "")) // of any project
}

func escapePattern(path string) string {
	return strings.NewReplacer(`\`, `\\`, "*", `\*`, "?", `\?`, "[", `\[`).Replace(path)
}

// cgroupDirs: one on cgroup v2, one per controller on v1. The path may have wildcards.
func cgroupDirs(group string) []string {
	var dirs []string
	for _, root := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/*"} {
		found, _ := filepath.Glob(filepath.Join(root, group)) // the pattern is valid
		dirs = append(dirs, found...)
	}
	return dirs
}

// endStrays kills what still runs in the control group of a container without a task, and
// removes the group: if its shim died, or the directory of shims was wiped, no one else
// knows these processes, and they would run beside new ones.
func (g *cgroups) endStrays(ctx context.Context, id string) error {
	ctx, cancel := context.WithTimeout(ctx, killTimeout)
	defer cancel()
	dirs := g.of(ctx, id)
	for {
		left := false
		for _, dir := range dirs {
			for _, pid := range processesIn(dir) {
				left = true
				_ = syscall.Kill(pid, syscall.SIGKILL) // it has ended, or the next look shows it
			}
		}
		if !left {
			for _, dir := range dirs {
				_ = os.Remove(dir) // if not empty it goes with the container
			}
			return nil
		}
		if !pause(ctx, strayPoll) {
			return fmt.Errorf("cannot kill the processes that container %s left: %w", id, ctx.Err())
		}
	}
}

// processesIn includes processes in child groups, which a container may make.
func processesIn(dir string) []int {
	var found []int
	_ = filepath.WalkDir(dir, func(at string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.IsDir() {
			return nil // gone in the meantime
		}
		pids, err := os.ReadFile(filepath.Join(at, "cgroup.procs"))
		if err != nil {
			return nil // gone in the meantime
		}
		for field := range strings.FieldsSeq(string(pids)) {
			// 0 is a process outside this process's PID namespace.
			if pid, err := strconv.Atoi(field); err == nil && pid > 0 {
				found = append(found, pid)
			}
		}
		return nil
	})
	return found
}

// remove removes the control group of a project if it is empty, and with the last of them the
// runtime's. runc removes containers' groups, but not their parents.
func (g *cgroups) remove(project string) {
	for _, dir := range append(cgroupDirs(g.path(project, "*", "")), cgroupDirs(g.path(project, "", ""))...) {
		_ = os.Remove(dir) // fails if not empty
	}
	if !g.creating.TryLock() {
		return // about to be needed
	}
	defer g.creating.Unlock()
	for _, dir := range cgroupDirs(g.path("", "", "")) {
		_ = os.Remove(dir)
	}
}

// Usage is a container's resource usage by its control group; 0: not counted by the kernel.
type Usage struct {
	CPU    time.Duration
	Memory int64 // bytes, including page cache
}

// UsageOf reads the usage of a container from files, without a process or a shim.
func (c *Containers) UsageOf(found Container) Usage {
	return usageOf("/sys/fs/cgroup", c.cgroups.path(found.Labels.Project, found.ID, found.Labels.CgroupParent))
}

// usageOf reads a control group below root: one of v2, else those of two v1 controllers.
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

// counter returns the number in a file; 0 if there is none.
func counter(path string) int64 {
	n, _ := strconv.ParseInt(firstWord(path), 10, 64)
	return n
}

// valueOf returns a number from a file of lines with a name and a number each.
func valueOf(stat []byte, name string) int64 {
	for line := range bytes.Lines(stat) {
		if key, value, _ := bytes.Cut(line, []byte(" ")); string(key) == name {
			n, _ := strconv.ParseInt(string(bytes.TrimSpace(value)), 10, 64)
			return n
		}
	}
	return 0
}
