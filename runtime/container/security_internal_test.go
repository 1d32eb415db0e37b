package container

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/pkg/cap"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/margolite/margolite/runtime/compose"
	"github.com/margolite/margolite/test/expect"
)

func TestCapabilities(t *testing.T) {
	host := Host{Capabilities: []string{"CAP_CHOWN", "CAP_KILL", "CAP_NET_ADMIN", "CAP_NET_RAW"}}
	tests := []struct {
		name    string
		service compose.Service
		want    string // "": an error
	}{
		{"those of Docker that the device has", compose.Service{}, "CAP_CHOWN CAP_KILL CAP_NET_RAW"},
		{"one more", compose.Service{CapAdd: []string{"CAP_NET_ADMIN"}}, "CAP_CHOWN CAP_KILL CAP_NET_ADMIN CAP_NET_RAW"},
		{"one that it has anyway", compose.Service{CapAdd: []string{"CAP_KILL"}}, "CAP_CHOWN CAP_KILL CAP_NET_RAW"},
		{"one less", compose.Service{CapDrop: []string{"CAP_KILL"}}, "CAP_CHOWN CAP_NET_RAW"},
		{"just one", compose.Service{CapDrop: []string{"ALL"}, CapAdd: []string{"CAP_CHOWN"}}, "CAP_CHOWN"},
		{"all", compose.Service{CapAdd: []string{"ALL"}}, "CAP_CHOWN CAP_KILL CAP_NET_ADMIN CAP_NET_RAW"},
		{"all but one", compose.Service{CapAdd: []string{"ALL"}, CapDrop: []string{"CAP_NET_ADMIN"}}, "CAP_CHOWN CAP_KILL CAP_NET_RAW"},
		{"all of the device for the privileged", compose.Service{Privileged: true, CapDrop: []string{"ALL"}}, "CAP_CHOWN CAP_KILL CAP_NET_ADMIN CAP_NET_RAW"},
		{"one that the device does not give", compose.Service{CapAdd: []string{"CAP_SYS_ADMIN"}}, ""},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got, err := capabilitiesOf(&test.service, host)
			if (err != nil) != (test.want == "") || strings.Join(got, " ") != test.want {
				t.Errorf("got %q, %v, want %q", got, err, test.want)
			}
		})
	}
	none := expect.Value(capabilitiesOf(&compose.Service{CapDrop: []string{"ALL"}}, host))(t)
	expect.Equal(t, len(none), 0, "capabilities without any")
}

func TestPrivileged(t *testing.T) {
	host := Host{Cgroups: CgroupsV2, Seccomp: true, AppArmor: true, Profile: DefaultProfile}
	spec := expect.Value(build(t, compose.Service{Privileged: true}, shell, host, specs.User{}))(t)
	if spec.Linux.Seccomp != nil || spec.Process.ApparmorProfile != "unconfined" || spec.Linux.MaskedPaths != nil || spec.Linux.ReadonlyPaths != nil {
		t.Error("the privileged are confined")
	}
	if rules := spec.Linux.Resources.Devices; len(rules) != 1 || !rules[0].Allow || rules[0].Access != "rwm" || rules[0].Major != nil {
		t.Errorf("devices are %+v", rules)
	}
	for _, m := range spec.Mounts {
		if (m.Destination == "/sys" || m.Destination == "/sys/fs/cgroup") && slices.Contains(m.Options, "ro") {
			t.Errorf("%s is read-only", m.Destination)
		}
	}
	withProfile := expect.Value(build(t, compose.Service{Privileged: true, Seccomp: compose.Seccomp{Profile: []byte(`{"defaultAction":"SCMP_ACT_LOG"}`)}}, shell, host, specs.User{}))(t)
	expect.Equal(t, withProfile.Linux.Seccomp != nil, true, "a profile that was asked for is used")
	usual := expect.Value(build(t, compose.Service{NoNewPrivileges: true}, shell, host, specs.User{}))(t)
	if usual.Linux.Seccomp == nil || usual.Process.ApparmorProfile != DefaultProfile || usual.Linux.MaskedPaths == nil || !usual.Process.NoNewPrivileges {
		t.Errorf("others are not confined: %+v", usual.Process)
	}
	open := expect.Value(build(t, compose.Service{UnmaskedPaths: true, AppArmor: "unconfined", Seccomp: compose.Seccomp{Unconfined: true}}, shell, host, specs.User{}))(t)
	if open.Linux.Seccomp != nil || open.Process.ApparmorProfile != "unconfined" || open.Linux.MaskedPaths != nil || open.Linux.ReadonlyPaths != nil {
		t.Error("what was to be open is confined")
	}
}

func TestSecurityThatTheKernelLacks(t *testing.T) {
	for name, service := range map[string]compose.Service{
		"seccomp":  {Seccomp: compose.Seccomp{Profile: []byte(`{"defaultAction":"SCMP_ACT_LOG"}`)}},
		"apparmor": {AppArmor: "mine"},
	} {
		expect.ErrorWith(t, expect.ErrorOf(build(t, service, shell, Host{}, specs.User{})), name, "%s", name)
	}
	spec := expect.Value(build(t, compose.Service{AppArmor: "unconfined"}, shell, Host{}, specs.User{}))(t)
	expect.Equal(t, spec.Process.ApparmorProfile, "", "profile without AppArmor")
}

func TestAppArmorProfileIsLoaded(t *testing.T) {
	file := filepath.Join(t.TempDir(), "profiles")
	check(t, os.WriteFile(file, []byte("docker-default (enforce)\nmy app (complain)\n"), 0o600))
	for name, want := range map[string]bool{"docker-default": true, "my app": true, "docker": false, "my": false} {
		expect.Equal(t, expect.Value(hasProfile(file, name))(t), want, "%s is loaded", name)
	}
}

// appArmorDevice is the root of a device whose apparmor_parser keeps what it is given,
// and makes the kernel have it.
func appArmorDevice(t *testing.T, loaded string) (root string) {
	t.Helper()
	root = t.TempDir()
	profiles := filepath.Join(root, loadedProfiles)
	parser := fmt.Sprintf("#!/bin/sh\necho \"$*\" >>%[1]s/calls\ncat >%[1]s/profile\necho '%[2]s (enforce)' >>%[3]s\n", root, DefaultProfile, profiles)
	err := errors.Join(os.MkdirAll(filepath.Dir(profiles), 0o755), os.WriteFile(profiles, []byte(loaded), 0o644),
		os.WriteFile(filepath.Join(root, profileParser), []byte(parser), 0o755))
	check(t, err)
	t.Setenv("PATH", root+":"+os.Getenv("PATH"))
	return root
}

func TestDefaultProfileIsLoadedOnce(t *testing.T) {
	root := appArmorDevice(t, "docker-default (enforce)\n")
	for range 2 {
		check(t, loadProfile(t.Context(), root))
	}
	calls := expect.Value(os.ReadFile(filepath.Join(root, "calls")))(t)
	expect.Equal(t, strings.Count(string(calls), "\n"), 1, "calls of the parser in %q", calls)
	profile, err := os.ReadFile(filepath.Join(root, "profile"))
	if text := string(profile); err != nil || !strings.Contains(text, "profile "+DefaultProfile+" ") || strings.Contains(text, "include") {
		t.Errorf("loaded is %s, %v", text, err)
	}
}

func TestDefaultProfileFitsTheDevice(t *testing.T) {
	root := makeTree(t, map[string]string{
		profilesDir + "/tunables/global": "", profilesDir + "/abstractions/base": "", profilesDir + "/abi/3.0": "",
	})
	text := profileOf(root, "my agent (enforce)\n")
	for _, want := range []string{"abi <abi/3.0>,\n", "#include <tunables/global>\n", "  #include <abstractions/base>\n", `signal (receive) peer="my agent",`} {
		expect.Contains(t, text, want, "profile")
	}
	for _, agent := range []string{"", "unconfined\n", "x\" rule"} {
		expect.Contains(t, profileOf(root, agent), `peer="unconfined",`, "for agent %q", agent)
	}
}

func TestConfinement(t *testing.T) {
	withParser := appArmorDevice(t, "")
	enforcing := makeTree(t, map[string]string{"/sys/fs/selinux/enforce": "1"})
	for name, test := range map[string]struct {
		host       Host
		root       string
		text, mend string
	}{
		"nothing":                 {Host{}, withParser, "the kernel has neither seccomp nor AppArmor", ""},
		"seccomp":                 {Host{Seccomp: true}, withParser, "seccomp filter", ""},
		"AppArmor":                {Host{Seccomp: true, AppArmor: true}, withParser, "seccomp filter, AppArmor profile margolite-default", ""},
		"SELinux":                 {Host{Seccomp: true}, enforcing, "seccomp filter, SELinux context of the agent", ""},
		"AppArmor without access": {Host{AppArmor: true}, t.TempDir(), "no AppArmor profile (cannot list profiles: ", "install apparmor_parser and mount securityfs"},
	} {
		if text, mend := Confinement(test.host, test.root); !strings.HasPrefix(text, test.text) || mend != test.mend {
			t.Errorf("%s: %q; %q", name, text, mend)
		}
	}
}

const dockerProfile = `{
 "defaultAction": "SCMP_ACT_ERRNO", "defaultErrnoRet": 1,
 "archMap": [
  {"architecture": "SCMP_ARCH_X86_64", "subArchitectures": ["SCMP_ARCH_X86", "SCMP_ARCH_X32"]},
  {"architecture": "SCMP_ARCH_AARCH64", "subArchitectures": ["SCMP_ARCH_ARM"]}
 ],
 "syscalls": [
  {"names": ["read", "write"], "action": "SCMP_ACT_ALLOW"},
  {"name": "old", "action": "SCMP_ACT_ALLOW", "args": [{"index": 0, "value": 8, "valueTwo": 1, "op": "SCMP_CMP_MASKED_EQ"}]},
  {"names": ["mount"], "action": "SCMP_ACT_ALLOW", "includes": {"caps": ["CAP_SYS_ADMIN"]}},
  {"names": ["clone"], "action": "SCMP_ACT_ALLOW", "excludes": {"caps": ["CAP_SYS_ADMIN"], "arches": ["s390x"]}}
 ]}`

// process is a specification whose process has these capabilities.
func process(capabilities ...string) *specs.Spec {
	return &specs.Spec{Process: &specs.Process{Capabilities: &specs.LinuxCapabilities{Bounding: capabilities}}}
}

// The filter follows from what the process may do, and from its processor.
func TestSeccompProfile(t *testing.T) {
	for _, test := range []struct {
		capabilities []string
		want         []string
	}{
		{nil, []string{"read", "write", "old", "clone"}},
		{[]string{"CAP_SYS_ADMIN"}, []string{"read", "write", "old", "mount"}},
	} {
		got := expect.Value(seccompProfile([]byte(dockerProfile), process(test.capabilities...)))(t)
		var names []string
		for _, s := range got.Syscalls {
			names = append(names, s.Names...)
		}
		expect.Equal(t, names, test.want, "with %q: allows", test.capabilities)
		expect.Equal(t, slices.Contains(got.Architectures, specs.ArchX86), runtime.GOARCH == "amd64", "32 bit calls among %q", got.Architectures)
		if got.DefaultAction != specs.ActErrno || *got.DefaultErrnoRet != 1 || got.Syscalls[1].Args[0].ValueTwo != 1 {
			t.Errorf("got %+v", got)
		}
	}
}

func TestSeccompProfilesThatMakeNoSense(t *testing.T) {
	for text, want := range map[string]string{
		``:                                    "not valid",
		`{}`:                                  "not an action",
		`{"defaultAction":"SCMP_ACT_NOTIFY"}`: "another program",
		`{"defaultAction":"SCMP_ACT_ALLOW","defaultErrnoRet":99999}`:                                                                                                          "not an error number",
		`{"defaultAction":"SCMP_ACT_ALLOW","listenerPath":"/x"}`:                                                                                                              "another program",
		`{"defaultAction":"SCMP_ACT_ALLOW","architectures":["SCMP_ARCH_ARM"],"archMap":[{}]}`:                                                                                 "both",
		`{"defaultAction":"SCMP_ACT_ALLOW","syscalls":[null]}`:                                                                                                                "is null",
		`{"defaultAction":"SCMP_ACT_ALLOW","syscalls":[{"action":"SCMP_ACT_ALLOW"}]}`:                                                                                         "rule 1",
		`{"defaultAction":"SCMP_ACT_ALLOW","syscalls":[{"names":["a"],"name":"b","action":"SCMP_ACT_ALLOW"}]}`:                                                                "both",
		`{"defaultAction":"SCMP_ACT_ALLOW","syscalls":[{"names":["a"],"action":"ALLOW"}]}`:                                                                                    "not an action",
		`{"defaultAction":"SCMP_ACT_ALLOW","syscalls":[{"names":["a"],"action":"SCMP_ACT_ALLOW","args":[{"index":6,"op":"SCMP_CMP_EQ"}]}]}`:                                   "argument 6",
		`{"defaultAction":"SCMP_ACT_ALLOW","syscalls":[{"names":["a"],"action":"SCMP_ACT_ALLOW","includes":{"minKernel":"new"}}]}`:                                            "kernel version",
		`{"defaultAction":"SCMP_ACT_ALLOW","syscalls":[` + strings.Repeat(`{"names":["a"],"action":"SCMP_ACT_LOG"},`, maxRules) + `{"names":["a"],"action":"SCMP_ACT_LOG"}]}`: "more than",
		strings.Repeat(" ", maxProfile+1): "more than",
	} {
		expect.ErrorWith(t, expect.ErrorOf(seccompProfile([]byte(text), process())), want, "%.80s", text)
	}
}

func FuzzSeccompProfile(f *testing.F) {
	f.Add([]byte(dockerProfile))
	f.Add([]byte(`{"defaultAction":"SCMP_ACT_ALLOW","syscalls":[{"name":"x","action":"SCMP_ACT_TRAP"}]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		got, err := seccompProfile(text, process("CAP_KILL"))
		if err != nil {
			return
		}
		expect.Require(t, got != nil, "a profile became no filter")
		for _, s := range got.Syscalls {
			expect.True(t, len(s.Names) != 0 && checkAction(s.Action, nil) == nil, "let through %+v", s)
		}
		expect.OK(t, expect.ErrorOf(json.Marshal(got)))
	})
}

// The default filter follows from what the container may do.
func TestDefaultSeccompProfile(t *testing.T) {
	host := Host{Seccomp: true, Capabilities: cap.Known()}
	allows := func(s compose.Service, call string) bool {
		t.Helper()
		spec := expect.Value(build(t, s, shell, host, specs.User{}))(t)
		f := spec.Linux.Seccomp
		expect.Require(t, f != nil && f.DefaultAction == specs.ActErrno, "the filter is %+v", f)
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
		expect.Equal(t, allows(c.service, c.call), c.want, "%s: allowed", c.name)
	}
}
