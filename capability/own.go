package capability

import (
	"context"
	"errors"
	"path"
	"strconv"
	"strings"
)

// OwnMemory returns how many bytes of memory this process may use on the machine whose file system
// starts at root: the machine's, or the lowest limit of the control groups that the process is in
// (memory.max and memory.high of version 2, memory.limit_in_bytes of version 1). For what workloads
// may use see Facts.Memory.
func OwnMemory(ctx context.Context, root string) (uint64, error) {
	m := machine{root: root}
	memory := m.memory(ctx, limits{memory: m.ownLimit()})
	return memory, errors.Join(m.errs...)
}

// ownLimit returns the lowest limit of this process's control groups; zero is none.
func (m *machine) ownLimit() uint64 {
	const root = "sys/fs/cgroup"
	var limit uint64
	for line := range strings.Lines(m.read("proc/self/cgroup")) {
		_, rest, _ := strings.Cut(line, ":")
		controllers, group, _ := strings.Cut(strings.TrimSuffix(rest, "\n"), ":")
		switch {
		case controllers == "": // version 2
			for at := path.Clean("/" + group); ; at = path.Dir(at) {
				for _, name := range []string{"memory.max", "memory.high"} {
					limit = least(limit, number(m.line(root, at, name)))
				}
				if at == "/" {
					break
				}
			}
		case strings.Contains(","+controllers+",", ",memory,"):
			// One number covers the limits of all groups above. In a container the path may be the
			// machine's, and the container's is the root.
			for _, at := range []string{path.Clean("/" + group), "/"} {
				if stat := m.read(root, "memory", at, "memory.stat"); stat != "" {
					limit = least(limit, number(property(stat, "hierarchical_memory_limit", " ")))
					break
				}
			}
		}
	}
	return limit
}

// number parses a number from the kernel; anything else, such as max, gives 0.
func number(text string) uint64 {
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return 0
	}
	return n
}
