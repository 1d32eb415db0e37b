package container

import (
	"maps"

	"github.com/margolite/margolite/runtime/compose"
)

// sysctls are the kernel's settings in the namespaces of a container: those that
// Docker makes, and those of the service, which are of its own namespaces.
func sysctls(s *compose.Service, h Host) map[string]string {
	set := make(map[string]string)
	if s.Network.Mode != compose.ModeHost {
		// The namespace is the container's own: whoever it runs as may listen
		// on port 80 and ping, as with Docker since 20.10.
		if h.UnprivilegedPorts {
			set["net.ipv4.ip_unprivileged_port_start"] = "0"
		}
		if h.PingGroups {
			set["net.ipv4.ping_group_range"] = "0 2147483647"
		}
	}
	if s.Domainname != "" {
		set["kernel.domainname"] = s.Domainname // runc before 1.2 knows no other way
	}
	maps.Copy(set, s.Sysctls)
	return set
}
