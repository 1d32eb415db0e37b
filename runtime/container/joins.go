package container

import (
	"cmp"
	"context"
	"fmt"
	"slices"

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

// findJoined finds where the namespaces are that a container joins which is about to
// start: those of other replicas, whose processes run now. Of the one whose ipc
// namespace it joins it returns the id.
func (c *Containers) findJoined(ctx context.Context, l Labels) (paths map[specs.LinuxNamespaceType]string, ipc string, err error) {
	if len(l.Joins) == 0 {
		return nil, "", nil
	}
	all, err := c.List(ctx)
	if err != nil {
		return nil, "", err
	}
	paths = make(map[specs.LinuxNamespaceType]string)
	for _, j := range l.Joins {
		project := cmp.Or(j.Project, l.Project)
		i := slices.IndexFunc(all, func(o Container) bool {
			return o.Labels.Project == project && o.Labels.Service == j.Service && o.Labels.Number == j.Number && o.State == Running && o.Pid > 0
		})
		if i < 0 {
			return nil, "", fmt.Errorf("cannot join the %s namespace of %s-%s-%d: %w", j.Kind, project, j.Service, j.Number, ErrNotRunning)
		}
		paths[j.Kind] = fmt.Sprintf("/proc/%d/ns/%s", all[i].Pid, j.Kind)
		if j.Kind == specs.IPCNamespace {
			ipc = all[i].ID
		}
	}
	return paths, ipc, nil
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
