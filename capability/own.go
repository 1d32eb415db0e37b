package capability

import (
	"context"
	"errors"
	"path"
	"strconv"
	"strings"
)

// OwnMemory is how much memory this process may take of the machine whose file
// system starts at root, in bytes: what the machine has, or less where a control
// group that the process is in has a limit (memory.max and memory.high of version
// 2, memory.limit_in_bytes of version 1). It is what the process has to fit in;
// what workloads may use is Facts.Memory.
func OwnMemory(ctx context.Context, root string) (uint64, error) {
	m := machine{root: root}
	memory := m.memory(ctx, limits{memory: m.ownLimit()})
	return memory, errors.Join(m.errs...)
}

// ownLimit is the least limit of the control groups that this process is in; zero
// is none.
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
			// One number has the limits of all groups above. In a container, the
			// path may be that of the machine, and the container's is the root.
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

// number is one that the kernel tells; anything else, such as max, gives 0.
func number(text string) uint64 {
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return 0
	}
	return n
}
