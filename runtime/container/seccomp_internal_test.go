package container

import (
	"slices"
	"testing"

	"github.com/containerd/containerd/v2/pkg/cap"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/margolite/margolite/runtime/compose"
)

// The default filter follows from what the container may do.
func TestDefaultSeccompProfile(t *testing.T) {
	host := Host{Seccomp: true, Capabilities: cap.Known()}
	allows := func(s compose.Service, call string, arg uint64) bool {
		t.Helper()
		spec, err := build(t, s, shell, host, specs.User{})
		if err != nil {
			t.Fatal(err)
		}
		f := spec.Linux.Seccomp
		if f == nil || f.DefaultAction != specs.ActErrno {
			t.Fatalf("the filter is %+v", f)
		}
		return slices.ContainsFunc(f.Syscalls, func(s specs.LinuxSyscall) bool {
			return s.Action == specs.ActAllow && slices.Contains(s.Names, call) && (len(s.Args) == 0 ||
				s.Args[0].Op == specs.OpEqualTo && s.Args[0].Value == arg || s.Args[0].Op == specs.OpLessThan && arg < s.Args[0].Value)
		})
	}
	admin := compose.Service{CapAdd: []string{"CAP_SYS_ADMIN"}}
	for _, c := range []struct {
		name    string
		service compose.Service
		call    string
		arg     uint64
		want    bool
	}{
		{"to read", compose.Service{}, "read", 0, true},
		{"to mount", compose.Service{}, "mount", 0, false},
		{"to mount, as an administrator", admin, "mount", 0, true},
		{"to load a module, as an administrator", admin, "init_module", 0, false},
		{"IPv4", compose.Service{}, "socket", unix.AF_INET, true},
		{"a CAN bus", compose.Service{}, "socket", unix.AF_CAN, true},
		{"the kernel's cryptography", compose.Service{}, "socket", unix.AF_ALG, false},
	} {
		if got := allows(c.service, c.call, c.arg); got != c.want {
			t.Errorf("%s: allowed: %t", c.name, got)
		}
	}
}
