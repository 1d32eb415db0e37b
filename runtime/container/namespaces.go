package container

import (
	"slices"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/margolite/margolite/runtime/compose"
)

// namespaces are those that a container has for itself or joins; it is in those
// of the device of every other kind.
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
			list = append(list, specs.LinuxNamespace{Type: own.kind}) // one that is joined gets its path at the start
		}
	}
	if c.Service.Network.Mode != compose.ModeHost {
		list = append(list, specs.LinuxNamespace{Type: specs.NetworkNamespace, Path: c.Sandbox.NetNS})
	}
	// As Docker: on v1 the container sees its real place, on v2 a root of its own,
	// unless it says otherwise.
	mode := c.Service.Cgroup.Mode
	if h.CgroupNamespace && (mode == compose.ModeOwn || h.Cgroups == CgroupsV2 && mode != compose.ModeHost) {
		list = append(list, specs.LinuxNamespace{Type: specs.CgroupNamespace})
	}
	return list
}

// sharedMounts changes the mounts that follow from whose namespaces a container
// lives in.
func sharedMounts(mounts []specs.Mount, s *compose.Service, at placing) []specs.Mount {
	own := slices.IndexFunc(mounts, func(m specs.Mount) bool { return m.Destination == "/dev/shm" && m.Source == "shm" })
	if own < 0 {
		return mounts // the service has something else there
	}
	shared := specs.Mount{Destination: "/dev/shm", Type: "bind", Options: []string{"rbind", "rprivate", "nosuid", "noexec", "nodev"}}
	switch s.IPC.Mode {
	case compose.ModeHost:
		shared.Source = "/dev/shm"
		mounts[own] = shared
	case compose.ModeShareable, compose.ModeService, compose.ModeContainer:
		// Shared memory is a file system, not a part of the namespace: who
		// shares one shares the other. Whose it is, Start knows.
		shared.Source = at.sharedMemory
		mounts[own] = shared
	case compose.ModeNone:
		mounts = append(mounts[:own], mounts[own+1:]...)
	}
	return mounts
}
