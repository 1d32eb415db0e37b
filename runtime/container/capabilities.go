package container

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/margolite/margolite/runtime/compose"
)

// allCapability stands for every capability in cap_add and cap_drop.
const allCapability = "ALL"

// capabilityNames are those of linux/capability.h; the number of one is its place.
var capabilityNames = []string{
	"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_DAC_READ_SEARCH", "CAP_FOWNER", "CAP_FSETID", "CAP_KILL", "CAP_SETGID", "CAP_SETUID",
	"CAP_SETPCAP", "CAP_LINUX_IMMUTABLE", "CAP_NET_BIND_SERVICE", "CAP_NET_BROADCAST", "CAP_NET_ADMIN", "CAP_NET_RAW",
	"CAP_IPC_LOCK", "CAP_IPC_OWNER", "CAP_SYS_MODULE", "CAP_SYS_RAWIO", "CAP_SYS_CHROOT", "CAP_SYS_PTRACE", "CAP_SYS_PACCT",
	"CAP_SYS_ADMIN", "CAP_SYS_BOOT", "CAP_SYS_NICE", "CAP_SYS_RESOURCE", "CAP_SYS_TIME", "CAP_SYS_TTY_CONFIG", "CAP_MKNOD",
	"CAP_LEASE", "CAP_AUDIT_WRITE", "CAP_AUDIT_CONTROL", "CAP_SETFCAP", "CAP_MAC_OVERRIDE", "CAP_MAC_ADMIN", "CAP_SYSLOG",
	"CAP_WAKE_ALARM", "CAP_BLOCK_SUSPEND", "CAP_AUDIT_READ", "CAP_PERFMON", "CAP_BPF", "CAP_CHECKPOINT_RESTORE",
}

// detectCapabilities are those that this process may pass on: the kernel knows
// them, and nobody took them from it. What the kernel knows and we do not has
// no name, and is left out, as by runc.
func detectCapabilities() []string {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return nil
	}
	_, rest, _ := strings.Cut(string(status), "\nCapBnd:")
	text, _, _ := strings.Cut(rest, "\n")
	set, err := strconv.ParseUint(strings.TrimSpace(text), 16, 64)
	if err != nil {
		return nil
	}
	var names []string
	for n, name := range capabilityNames {
		if set&(1<<n) != 0 {
			names = append(names, name)
		}
	}
	return names
}

// capabilitiesOf are those of the processes of a service, as Docker puts
// together what it gives, what is added and what is dropped.
func capabilitiesOf(s *compose.Service, h Host) ([]string, error) {
	known := h.Capabilities
	if known == nil {
		known = capabilityNames
	}
	without := func(list []string) []string {
		return slices.DeleteFunc(slices.Clone(list), func(c string) bool { return slices.Contains(s.CapDrop, c) })
	}
	var set []string
	switch {
	case s.Privileged:
		return slices.Sorted(slices.Values(known)), nil
	case slices.Contains(s.CapAdd, allCapability):
		set = without(known)
	case slices.Contains(s.CapDrop, allCapability):
		set = nil
	default:
		set = slices.DeleteFunc(without(defaultCapabilities), func(c string) bool { return !slices.Contains(known, c) })
	}
	for _, added := range s.CapAdd {
		switch {
		case added == allCapability || slices.Contains(set, added):
		case slices.Contains(known, added):
			set = append(set, added)
		case slices.Contains(capabilityNames, added):
			return nil, fmt.Errorf("cap_add: the device does not let containers have %s", added)
		default:
			return nil, fmt.Errorf("cap_add: %.40q is no capability", added)
		}
	}
	slices.Sort(set)
	return set, nil
}

// capabilitySets are those of a process: only root has them in effect, whoever
// else runs can gain them by file capabilities at most.
func capabilitySets(set []string, u User) *specs.LinuxCapabilities {
	c := &specs.LinuxCapabilities{Bounding: set}
	if u.UID == 0 {
		c.Effective, c.Permitted = set, set
	}
	return c
}
