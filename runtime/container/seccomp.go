package container

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/moby/profiles/seccomp"
	"github.com/opencontainers/runtime-spec/specs-go"
)

// Bounds of a profile; Docker's own is 18 KiB with some 60 rules.
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

// seccompProfile reads a profile in Docker's format, and keeps what holds for the
// process of spec on this device.
//
// It checks the profile before the library sees it: the library takes an empty
// profile for none, panics on a rule that is null, and leaves the rest to the OCI
// runtime, which would find a mistake only when the container starts.
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
