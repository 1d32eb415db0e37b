package container

import (
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// Bounds of a profile; Docker's own is 15 KiB with some 30 rules.
const (
	maxProfile  = 512 << 10 // bytes
	maxRules    = 4096
	maxSyscalls = 4096 // names of one rule
	maxArgs     = 6    // of a system call
	maxErrno    = 4095
)

// defaultProfile is what containerd gives containers that ask for no other. It is
// not called, as its package comes with how containerd makes specifications.
//
//go:embed seccomp.json
var defaultProfile string

// profile is a filter of system calls in the form of Docker: rules that depend
// on capabilities, architecture and kernel, instead of their outcome.
type profile struct {
	DefaultAction    specs.LinuxSeccompAction `json:"defaultAction"`
	DefaultErrno     *uint                    `json:"defaultErrnoRet"`
	Architectures    []specs.Arch             `json:"architectures"`
	ArchMap          []profileArch            `json:"archMap"`
	Flags            []specs.LinuxSeccompFlag `json:"flags"`
	ListenerPath     string                   `json:"listenerPath"`
	ListenerMetadata string                   `json:"listenerMetadata"`
	Syscalls         []profileRule            `json:"syscalls"`
}

type profileArch struct {
	Arch specs.Arch   `json:"architecture"`
	Subs []specs.Arch `json:"subArchitectures"`
}

type profileRule struct {
	Name     string                   `json:"name"` // of old profiles
	Names    []string                 `json:"names"`
	Action   specs.LinuxSeccompAction `json:"action"`
	Errno    *uint                    `json:"errnoRet"`
	Args     []profileArg             `json:"args"`
	Includes profileFilter            `json:"includes"`
	Excludes profileFilter            `json:"excludes"`
}

type profileArg struct {
	Index    uint                       `json:"index"`
	Value    uint64                     `json:"value"`
	ValueTwo uint64                     `json:"valueTwo"`
	Op       specs.LinuxSeccompOperator `json:"op"`
}

type profileFilter struct {
	Caps      []string `json:"caps"`
	Arches    []string `json:"arches"` // as Go names them
	MinKernel string   `json:"minKernel"`
}

// seccompArch is the name that libseccomp has for that of Go; "" is none.
func seccompArch(arch string) specs.Arch {
	switch arch {
	case "386":
		return specs.ArchX86
	case "amd64":
		return specs.ArchX86_64
	case "arm":
		return specs.ArchARM
	case "arm64":
		return specs.ArchAARCH64
	case "riscv64":
		return specs.ArchRISCV64
	}
	return ""
}

var (
	seccompActions = []specs.LinuxSeccompAction{
		specs.ActKill, specs.ActKillProcess, specs.ActKillThread, specs.ActTrap, specs.ActErrno, specs.ActTrace, specs.ActAllow, specs.ActLog,
	}
	seccompOperators = []specs.LinuxSeccompOperator{
		specs.OpNotEqual, specs.OpLessThan, specs.OpLessEqual, specs.OpEqualTo, specs.OpGreaterEqual, specs.OpGreaterThan, specs.OpMaskedEqual,
	}
)

// seccompProfile reads a profile of Docker, and keeps what holds for a process
// with these capabilities on this architecture (as Go names it) and kernel.
func seccompProfile(text []byte, capabilities []string, arch string, kernel Release) (*specs.LinuxSeccomp, error) {
	if len(text) > maxProfile {
		return nil, fmt.Errorf("profile has more than %d bytes", maxProfile)
	}
	var p profile
	if err := json.Unmarshal(text, &p); err != nil {
		return nil, fmt.Errorf("profile is not valid: %w", err)
	}
	switch {
	case len(p.Architectures) > 0 && len(p.ArchMap) > 0:
		return nil, errors.New("profile has both architectures and archMap")
	case len(p.Syscalls) > maxRules:
		return nil, fmt.Errorf("profile has more than %d rules", maxRules)
	case p.ListenerPath != "" || p.ListenerMetadata != "":
		return nil, errors.New("profile asks another program (listenerPath), which is not supported")
	}
	if err := checkAction(p.DefaultAction, p.DefaultErrno); err != nil {
		return nil, fmt.Errorf("profile: defaultAction: %w", err)
	}
	filter := &specs.LinuxSeccomp{
		DefaultAction: p.DefaultAction, DefaultErrnoRet: p.DefaultErrno,
		Architectures: p.Architectures, Flags: p.Flags,
	}
	for _, a := range p.ArchMap {
		if a.Arch == seccompArch(arch) {
			filter.Architectures = append([]specs.Arch{a.Arch}, a.Subs...)
			break
		}
	}
	for n, rule := range p.Syscalls {
		call, err := rule.syscall()
		if err != nil {
			return nil, fmt.Errorf("profile: rule %d: %w", n+1, err)
		}
		applies, err := rule.applies(capabilities, arch, kernel)
		if err != nil {
			return nil, fmt.Errorf("profile: rule %d: %w", n+1, err)
		}
		if applies {
			filter.Syscalls = append(filter.Syscalls, call)
		}
	}
	return filter, nil
}

// syscall is the rule as the OCI runtime takes it.
func (r profileRule) syscall() (specs.LinuxSyscall, error) {
	call := specs.LinuxSyscall{Names: r.Names, Action: r.Action, ErrnoRet: r.Errno}
	switch {
	case r.Name != "" && len(r.Names) > 0:
		return call, errors.New("has both name and names")
	case r.Name != "":
		call.Names = []string{r.Name}
	}
	if len(call.Names) == 0 || len(call.Names) > maxSyscalls || slices.Contains(call.Names, "") {
		return call, errors.New("names no system call, or too many")
	}
	if err := checkAction(r.Action, r.Errno); err != nil {
		return call, err
	}
	if len(r.Args) > maxArgs {
		return call, fmt.Errorf("compares more than %d arguments", maxArgs)
	}
	for _, a := range r.Args {
		if a.Index >= maxArgs || !slices.Contains(seccompOperators, a.Op) {
			return call, fmt.Errorf("compares argument %d by %.40q", a.Index, a.Op)
		}
		call.Args = append(call.Args, specs.LinuxSeccompArg{Index: a.Index, Value: a.Value, ValueTwo: a.ValueTwo, Op: a.Op})
	}
	return call, nil
}

// applies tells whether a rule holds: none of what excludes it, and all of what
// includes it.
func (r profileRule) applies(capabilities []string, arch string, kernel Release) (bool, error) {
	has := func(c string) bool { return slices.Contains(capabilities, c) }
	newer := func(text string) (bool, error) {
		major, minor, ok := strings.Cut(text, ".")
		a, err := strconv.ParseUint(major, 10, 16)
		b, err2 := strconv.ParseUint(minor, 10, 16)
		if !ok || err != nil || err2 != nil {
			return false, fmt.Errorf("minKernel %.40q is no version, as 4.8", text)
		}
		return kernel.atLeast(Release{int(a), int(b)}), nil
	}
	if slices.Contains(r.Excludes.Arches, arch) || slices.ContainsFunc(r.Excludes.Caps, has) {
		return false, nil
	}
	if r.Excludes.MinKernel != "" {
		if excluded, err := newer(r.Excludes.MinKernel); err != nil || excluded {
			return false, err
		}
	}
	if len(r.Includes.Arches) > 0 && !slices.Contains(r.Includes.Arches, arch) {
		return false, nil
	}
	if slices.ContainsFunc(r.Includes.Caps, func(c string) bool { return !has(c) }) {
		return false, nil
	}
	if r.Includes.MinKernel != "" {
		return newer(r.Includes.MinKernel)
	}
	return true, nil
}

func checkAction(action specs.LinuxSeccompAction, errno *uint) error {
	if action == specs.ActNotify {
		return errors.New("SCMP_ACT_NOTIFY asks another program, which is not supported")
	}
	if !slices.Contains(seccompActions, action) {
		return fmt.Errorf("%.40q is no action", action)
	}
	if errno != nil && *errno > maxErrno {
		return fmt.Errorf("errnoRet %d is no error number", *errno)
	}
	return nil
}
