package container

import (
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
