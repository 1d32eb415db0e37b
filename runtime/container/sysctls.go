package container

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/margolite/margolite/runtime/compose"
)

// ipcSysctls belong to an IPC namespace, beside all of fs.mqueue.
var ipcSysctls = []string{
	"kernel.msgmax", "kernel.msgmnb", "kernel.msgmni", "kernel.sem",
	"kernel.shmall", "kernel.shmmax", "kernel.shmmni", "kernel.shm_rmid_forced",
}

// sysctls are the kernel's settings in the namespaces of a container: those that
// Docker makes, and those of the service.
func sysctls(s *compose.Service, h Host) (map[string]string, error) {
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
		if s.UTS.Mode == compose.ModeHost {
			return nil, errors.New("domainname: the container uses the names of the host (uts: host)")
		}
		set["kernel.domainname"] = s.Domainname // runc before 1.2 knows no other way
	}
	for _, written := range slices.Sorted(maps.Keys(s.Sysctls)) {
		key := dotted(written)
		if err := checkSysctl(key, s); err != nil {
			return nil, fmt.Errorf("sysctls: %.80s %w", written, err)
		}
		set[key] = s.Sysctls[written]
	}
	if len(set) == 0 {
		return nil, nil
	}
	return set, nil
}

// checkSysctl refuses what is not of a namespace that the container has for
// itself: it would change the device.
func checkSysctl(key string, s *compose.Service) error {
	switch {
	case strings.Contains(key, ".."), strings.HasPrefix(key, "."), strings.HasSuffix(key, "."):
		return errors.New("is not the name of a setting")
	case strings.HasPrefix(key, "net."):
		if s.Network.Mode == compose.ModeHost {
			return errors.New("would change the device: the service has network_mode host")
		}
	case slices.Contains(ipcSysctls, key), strings.HasPrefix(key, "fs.mqueue."):
		if s.IPC.Mode == compose.ModeHost {
			return errors.New("would change the device: the service has ipc host")
		}
	case key == "kernel.domainname":
		if s.UTS.Mode == compose.ModeHost {
			return errors.New("would change the device: the service has uts host")
		}
	case key == "kernel.hostname":
		return errors.New("is already set by hostname")
	default:
		return errors.New("would change the device: the kernel has only one")
	}
	return nil
}

// dotted is the name of a setting with dots for separators; sysctl(8) takes
// slashes too, and then a dot is part of a name, as in eth0.100.
func dotted(key string) string {
	first := strings.IndexAny(key, "./")
	if first < 0 || key[first] == '.' {
		return key
	}
	return strings.Map(func(r rune) rune {
		switch r {
		case '.':
			return '/'
		case '/':
			return '.'
		}
		return r
	}, key)
}
