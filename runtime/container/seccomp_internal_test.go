package container

import (
	"slices"
	"testing"

	"github.com/containerd/containerd/v2/pkg/cap"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/margolite/margolite/runtime/compose"
)

// The default filter follows from what the container may do.
func TestDefaultSeccompProfile(t *testing.T) {
	host := Host{Seccomp: true, Capabilities: cap.Known()}
	allows := func(s compose.Service, call string) bool {
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
			return s.Action == specs.ActAllow && slices.Contains(s.Names, call)
		})
	}
	admin := compose.Service{CapAdd: []string{"CAP_SYS_ADMIN"}}
	for _, c := range []struct {
		name    string
		service compose.Service
		call    string
		want    bool
	}{
		{"to read", compose.Service{}, "read", true},
		{"to mount", compose.Service{}, "mount", false},
		{"to mount, as an administrator", admin, "mount", true},
		{"to load a module, as an administrator", admin, "init_module", false},
	} {
		if got := allows(c.service, c.call); got != c.want {
			t.Errorf("%s: allowed: %t", c.name, got)
		}
	}
}
