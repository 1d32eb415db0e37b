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

// cgroups are the control groups of containers.
type cgroups struct {
	*records

	// creating is held for reading while runc makes control groups, the parents
	// before the children; for writing while those that are empty are removed.
	creating sync.RWMutex
}

// path is the control group of a container, below one of its project, below
// one of this runtime: or below parent, which cgroup_parent names. Such a parent is
// the owner's, with his limits: it is never removed.
func (g *cgroups) path(project, id, parent string) string {
	if parent != "" {
		return path.Join("/", parent, id)
	}
	return path.Join("/", g.namespace, project, id)
}

// of are the directories of the control group of a container, which may
// have no record any more.
func (g *cgroups) of(ctx context.Context, id string) []string {
	if _, labels, err := g.read(ctx, id); err == nil {
		return cgroupDirs(g.path(labels.Project, id, escapePattern(labels.CgroupParent)))
	}
	return cgroupDirs(g.path("*", id, "")) // of any project
}

// escapePattern lets a path stand for itself alone.
func escapePattern(path string) string {
	return strings.NewReplacer(`\`, `\\`, "*", `\*`, "?", `\?`, "[", `\[`).Replace(path)
}

// cgroupDirs are the directories of a control group, on cgroup v2 one, on v1
// one per controller. Its path may have wildcards.
func cgroupDirs(group string) []string {
	var dirs []string
	for _, root := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/*"} {
		found, _ := filepath.Glob(filepath.Join(root, group)) // the pattern is valid
		dirs = append(dirs, found...)
	}
	return dirs
}

// endStrays kills what still runs in the control group of a container that has
// no task, and removes the group: its shim died, or the directory of shims was wiped, so
// that nobody else knows of these processes. Without this they would run beside new ones.
func (g *cgroups) endStrays(ctx context.Context, id string) error {
	ctx, cancel := context.WithTimeout(ctx, killTimeout)
	defer cancel()
	dirs := g.of(ctx, id)
	for {
		left := false
		for _, dir := range dirs {
			for _, pid := range processesIn(dir) {
				left = true
				_ = syscall.Kill(pid, syscall.SIGKILL) // has ended by itself, else the next look tells
			}
		}
		if !left {
			for _, dir := range dirs {
				_ = os.Remove(dir) // one that is not empty goes with the container
			}
			return nil
		}
		if !pause(ctx, strayPoll) {
			return fmt.Errorf("cannot kill the processes that container %s left: %w", id, ctx.Err())
		}
	}
}

// processesIn are the processes of a control group, and of those that the
// container made below it, where systemd for one puts itself.
func processesIn(dir string) []int {
	var found []int
	_ = filepath.WalkDir(dir, func(at string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.IsDir() {
			return nil // gone meanwhile
		}
		pids, err := os.ReadFile(filepath.Join(at, "cgroup.procs"))
		if err != nil {
			return nil // gone meanwhile
		}
		for field := range strings.FieldsSeq(string(pids)) {
			// 0 is a process outside the namespace of this one.
			if pid, err := strconv.Atoi(field); err == nil && pid > 0 {
				found = append(found, pid)
			}
		}
		return nil
	})
	return found
}

// remove removes the control group of a project where it is empty, and the
// runtime's own with the last of them. runc removes those of containers, but not
// their parents.
func (g *cgroups) remove(project string) {
	for _, dir := range append(cgroupDirs(g.path(project, "*", "")), cgroupDirs(g.path(project, "", ""))...) {
		_ = os.Remove(dir) // one that is not empty stays
	}
	if !g.creating.TryLock() {
		return // it is about to be needed
	}
	defer g.creating.Unlock()
	for _, dir := range cgroupDirs(g.path("", "", "")) {
		_ = os.Remove(dir)
	}
}

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
