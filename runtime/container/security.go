package container

import (
	"errors"
	"fmt"
	"slices"

	"github.com/moby/profiles/seccomp"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/margolite/margolite/runtime/compose"
)

const unconfined = "unconfined"

// confine sets what a container may do, and what it sees of the kernel. The
// filter of system calls follows from the capabilities.
func confine(spec *specs.Spec, s *compose.Service, h Host, u specs.User) error {
	set, err := capabilitiesOf(s, h)
	if err != nil {
		return err
	}
	spec.Process.Capabilities = capabilitySets(set, u)
	spec.Process.NoNewPrivileges = s.NoNewPrivileges
	if !s.Privileged && !s.UnmaskedPaths {
		spec.Linux.MaskedPaths = slices.Clone(maskedPaths)
		spec.Linux.ReadonlyPaths = slices.Clone(readonlyPaths)
	}
	if s.Privileged {
		for i, m := range spec.Mounts {
			if m.Type == "sysfs" || m.Type == "cgroup" {
				spec.Mounts[i].Options = slices.DeleteFunc(slices.Clone(m.Options), func(o string) bool { return o == "ro" })
			}
		}
	}
	if spec.Linux.Seccomp, err = seccompOf(spec, s, h); err != nil {
		return fmt.Errorf("security_opt: seccomp: %w", err)
	}
	if spec.Process.ApparmorProfile, err = appArmorOf(s, h); err != nil {
		return fmt.Errorf("security_opt: apparmor: %w", err)
	}
	return nil
}

// seccompOf is the filter of system calls, nil for none.
func seccompOf(spec *specs.Spec, s *compose.Service, h Host) (*specs.LinuxSeccomp, error) {
	switch {
	case s.Seccomp.Unconfined:
		return nil, nil
	case s.Seccomp.Profile != nil && !h.Seccomp:
		return nil, errors.New("the kernel or the OCI runtime of this device cannot filter system calls")
	case s.Seccomp.Profile != nil:
		return seccompProfile(s.Seccomp.Profile, spec)
	case s.Privileged || !h.Seccomp:
		return nil, nil
	default:
		return seccomp.GetDefaultProfile(spec)
	}
}

// appArmorOf is the AppArmor profile of the process, empty for that of this
// process, which is none unless somebody confined the agent. It is the default one
// unless the service is privileged or says otherwise.
func appArmorOf(s *compose.Service, h Host) (string, error) {
	switch {
	case !h.AppArmor && (s.AppArmor == "" || s.AppArmor == unconfined):
		return "", nil
	case !h.AppArmor:
		return "", fmt.Errorf("cannot use profile %.80q: the kernel of this device has no AppArmor, or it is disabled", s.AppArmor)
	case s.AppArmor == "" && s.Privileged:
		return unconfined, nil
	case s.AppArmor == "":
		return h.Profile, nil
	case s.AppArmor == unconfined:
		return unconfined, nil
	}
	loaded, err := hasProfile(loadedProfiles, s.AppArmor)
	if err != nil {
		return "", err
	}
	if !loaded {
		return "", fmt.Errorf("profile %.80q is not loaded on this device; load it with apparmor_parser", s.AppArmor)
	}
	return s.AppArmor, nil
}
