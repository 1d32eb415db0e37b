package container

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/containerd/containerd/v2/pkg/cap"
	"github.com/moby/profiles/seccomp"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/margolite/margolite/runtime/compose"
)

const unconfined = "unconfined"

// Defaults for every container, the same as Docker's.
var (
	defaultCapabilities = []string{
		"CAP_AUDIT_WRITE", "CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_FSETID", "CAP_KILL", "CAP_MKNOD",
		"CAP_NET_BIND_SERVICE", "CAP_NET_RAW", "CAP_SETFCAP", "CAP_SETGID", "CAP_SETPCAP", "CAP_SETUID", "CAP_SYS_CHROOT",
	}

	maskedPaths = []string{
		"/proc/acpi", "/proc/asound", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/scsi",
		"/proc/sched_debug", "/proc/timer_list", "/proc/timer_stats",
		"/sys/devices/virtual/powercap", "/sys/firmware",
	}

	readonlyPaths = []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"}
)

// confine sets capabilities first, because the filter of system calls depends on them.
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

// seccompOf returns the filter of system calls; nil: none.
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

// appArmorOf returns the AppArmor profile of the process: the default one, unless the service
// is privileged or names one. "" is this process's, normally none.
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

// allCapability stands for every capability in cap_add and cap_drop.
const allCapability = "ALL"

// detectCapabilities returns the capabilities that this process may pass on. Those that the
// kernel knows and the library does not have no name, and are left out, as in runc.
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

// capabilitiesOf changes Docker's defaults by what the service adds and drops.
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

// capabilitySets are effective for root; others gain them only through file capabilities.
func capabilitySets(set []string, u specs.User) *specs.LinuxCapabilities {
	c := &specs.LinuxCapabilities{Bounding: set}
	if u.UID == 0 {
		c.Effective, c.Permitted = set, set
	}
	return c
}

// Limits on a profile; Docker's own has 18 KiB and some 60 rules.
const (
	maxProfile  = 512 << 10 // bytes
	maxRules    = 4096
	maxSyscalls = 4096 // names of one rule
	maxArgs     = 6    // of a system call
	maxErrno    = 4095
)

var (
	seccompActions = []specs.LinuxSeccompAction{
		specs.ActKill, specs.ActKillProcess, specs.ActKillThread, specs.ActTrap, specs.ActErrno, specs.ActTrace, specs.ActAllow, specs.ActLog,
	}
	seccompOperators = []specs.LinuxSeccompOperator{
		specs.OpNotEqual, specs.OpLessThan, specs.OpLessEqual, specs.OpEqualTo, specs.OpGreaterEqual, specs.OpGreaterThan, specs.OpMaskedEqual,
	}
)

// seccompProfile reads a profile in Docker's format, and keeps what applies to the process of
// spec on this device.
//
// It checks the profile first: the library takes an empty profile for none, panics on a null
// rule, and leaves other mistakes to the OCI runtime, which finds them only at the start.
func seccompProfile(text []byte, spec *specs.Spec) (*specs.LinuxSeccomp, error) {
	if len(text) > maxProfile {
		return nil, fmt.Errorf("profile has more than %d bytes", maxProfile)
	}
	var p seccomp.Seccomp
	if err := json.Unmarshal(text, &p); err != nil {
		return nil, fmt.Errorf("profile is not valid: %w", err)
	}
	if err := checkProfile(&p); err != nil {
		return nil, fmt.Errorf("profile: %w", err)
	}
	return seccomp.LoadProfile(string(text), spec)
}

func checkProfile(p *seccomp.Seccomp) error {
	switch {
	case len(p.Syscalls) > maxRules:
		return fmt.Errorf("has more than %d rules", maxRules)
	case p.ListenerPath != "" || p.ListenerMetadata != "":
		return errors.New("calls another program (listenerPath), which is not supported")
	}
	if err := checkAction(p.DefaultAction, p.DefaultErrnoRet); err != nil {
		return fmt.Errorf("defaultAction: %w", err)
	}
	for n, rule := range p.Syscalls {
		if err := checkRule(rule); err != nil {
			return fmt.Errorf("rule %d: %w", n+1, err)
		}
	}
	return nil
}

func checkRule(rule *seccomp.Syscall) error {
	if rule == nil {
		return errors.New("is null")
	}
	names := rule.Names
	//lint:ignore SA1019 profiles from before Docker 1.12 have it, and the library reads it
	if one := rule.Name; one != "" {
		names = append(slices.Clip(names), one)
	}
	if len(names) == 0 || len(names) > maxSyscalls || slices.Contains(names, "") {
		return errors.New("names no system calls, or too many")
	}
	if len(rule.Args) > maxArgs {
		return fmt.Errorf("compares more than %d arguments", maxArgs)
	}
	for _, a := range rule.Args {
		if a.Index >= maxArgs || !slices.Contains(seccompOperators, a.Op) {
			return fmt.Errorf("compares argument %d by %.40q", a.Index, a.Op)
		}
	}
	return checkAction(rule.Action, rule.ErrnoRet)
}

func checkAction(action specs.LinuxSeccompAction, errno *uint) error {
	if action == specs.ActNotify {
		return errors.New("SCMP_ACT_NOTIFY calls another program, which is not supported")
	}
	if !slices.Contains(seccompActions, action) {
		return fmt.Errorf("%.40q is not an action", action)
	}
	if errno != nil && *errno > maxErrno {
		return fmt.Errorf("errnoRet %d is not an error number", *errno)
	}
	return nil
}
