package container

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/margolite/margolite/runtime/compose"
)

// namespaces lists what a container has or joins; others are the device's.
func namespaces(c Config, h Host) []specs.LinuxNamespace {
	list := []specs.LinuxNamespace{{Type: specs.MountNamespace}}
	for _, own := range []struct {
		kind specs.LinuxNamespaceType
		mode compose.Namespace
	}{
		{specs.PIDNamespace, c.Service.PID},
		{specs.IPCNamespace, c.Service.IPC},
		{specs.UTSNamespace, c.Service.UTS},
	} {
		if own.mode.Mode != compose.ModeHost {
			list = append(list, specs.LinuxNamespace{Type: own.kind}) // a joined one gets its path at the start
		}
	}
	if c.Service.Network.Mode != compose.ModeHost {
		list = append(list, specs.LinuxNamespace{Type: specs.NetworkNamespace, Path: c.Sandbox.NetNS})
	}
	// As in Docker: the real cgroup on v1, a root of its own on v2, unless the service says.
	mode := c.Service.Cgroup.Mode
	if h.CgroupNamespace && (mode == compose.ModeOwn || h.Cgroups == CgroupsV2 && mode != compose.ModeHost) {
		list = append(list, specs.LinuxNamespace{Type: specs.CgroupNamespace})
	}
	return list
}

// sysctls sets Docker's and the service's values in the container's own namespaces.
func sysctls(s *compose.Service, h Host) map[string]string {
	set := make(map[string]string)
	if s.Network.Mode != compose.ModeHost {
		// Harmless in a network namespace of its own, and as in Docker since 20.10.
		if h.UnprivilegedPorts {
			set["net.ipv4.ip_unprivileged_port_start"] = "0"
		}
		if h.PingGroups {
			set["net.ipv4.ping_group_range"] = "0 2147483647"
		}
	}
	if s.Domainname != "" {
		set["kernel.domainname"] = s.Domainname // the only way for runc before 1.2
	}
	maps.Copy(set, s.Sysctls)
	return set
}

// Join names a replica to join. The process with the namespace is looked up at each start.
type Join struct {
	Kind    specs.LinuxNamespaceType `json:"kind"`              // pid or ipc
	Project string                   `json:"project,omitempty"` // "": the container's own
	Service string                   `json:"service"`
	Number  int                      `json:"number"` // of the replica, from 1
}

// findJoined finds the namespaces that a starting container joins, through the running
// processes of other replicas. ipc is the ID of the one whose IPC namespace it joins.
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

// shareMemory mounts /dev/shm: the container's own for others to join, or the joined one's.
func (p *paths) shareMemory(id string, l Labels, joined string) error {
	if l.SharedMemory == 0 && joined == "" {
		return nil
	}
	dir := p.sharedMemory(id)
	if err := errors.Join(detach(dir), os.MkdirAll(dir, 0o700)); err != nil { // its former process may have left one
		return fmt.Errorf("cannot create shared memory: %w", err)
	}
	if joined == "" {
		flags := uintptr(unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC)
		if err := unix.Mount("shm", dir, "tmpfs", flags, "mode=1777,size="+strconv.FormatInt(l.SharedMemory, 10)); err != nil {
			return fmt.Errorf("cannot create shared memory: %w", err)
		}
		return nil
	}
	switch mounted, err := isMounted(p.sharedMemory(joined)); {
	case err != nil:
		return fmt.Errorf("cannot join shared memory: %w", err)
	case !mounted:
		return errors.New("cannot join shared memory: the service whose ipc namespace is joined needs ipc: shareable")
	}
	if err := unix.Mount(p.sharedMemory(joined), dir, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("cannot join shared memory: %w", err)
	}
	return nil
}
