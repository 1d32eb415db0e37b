package container

import (
	"fmt"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// Join names the replica whose namespace of one kind a container joins. Which
// process has it is found at each start.
type Join struct {
	Kind    specs.LinuxNamespaceType `json:"kind"`              // pid or ipc
	Project string                   `json:"project,omitempty"` // empty: the container's own
	Service string                   `json:"service"`
	Number  int                      `json:"number"` // of the replica, from 1
}

// joinNamespaces lets the specification join the namespaces at paths, as
// /proc/PID/ns/pid.
func joinNamespaces(spec *specs.Spec, paths map[specs.LinuxNamespaceType]string) {
	for i := range spec.Linux.Namespaces {
		if path := paths[spec.Linux.Namespaces[i].Type]; path != "" {
			spec.Linux.Namespaces[i].Path = path
		}
	}
}

// namespacePath is where the kernel has a namespace of a process.
func namespacePath(pid int, kind specs.LinuxNamespaceType) string {
	return fmt.Sprintf("/proc/%d/ns/%s", pid, kind)
}
