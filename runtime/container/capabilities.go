package container

import (
	"fmt"
	"os"
	"slices"

	"github.com/containerd/containerd/v2/pkg/cap"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/margolite/margolite/runtime/compose"
)

// allCapability stands for every capability in cap_add and cap_drop.
const allCapability = "ALL"

// detectCapabilities are those that this process may pass on: the kernel knows
// them, and nobody took them from it. What the kernel knows and the library does not
// has no name, and is left out, as by runc.
func detectCapabilities() []string {
	status, err := os.Open("/proc/self/status")
	if err != nil {
		return nil
	}
	defer status.Close()
	sets, err := cap.ParseProcPIDStatus(status)
	if err != nil {
		return nil
	}
	names, _ := cap.FromBitmap(sets[cap.Bounding])
	return names
}

// capabilitiesOf are those of the processes of a service, as Docker puts
// together what it gives, what is added and what is dropped.
func capabilitiesOf(s *compose.Service, h Host) ([]string, error) {
	known := h.Capabilities
	if known == nil {
		known = cap.Known()
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
		default:
			return nil, fmt.Errorf("cap_add: the device does not allow containers %s", added)
		}
	}
	slices.Sort(set)
	return set, nil
}

// capabilitySets are those of a process: only root has them in effect, whoever
// else runs can gain them by file capabilities at most.
func capabilitySets(set []string, u specs.User) *specs.LinuxCapabilities {
	c := &specs.LinuxCapabilities{Bounding: set}
	if u.UID == 0 {
		c.Effective, c.Permitted = set, set
	}
	return c
}
