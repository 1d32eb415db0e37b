package container

import (
	"log/slog"
	"slices"
	"testing"

	v1 "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/margolite/margolite/runtime/compose"
	"github.com/margolite/margolite/runtime/network"
	"github.com/margolite/margolite/test/expect"
)

func build(t *testing.T, s compose.Service, image v1.ImageConfig, h Host, u specs.User) (*specs.Spec, error) {
	t.Helper()
	return newSpec(Config{
		Labels:  Labels{Project: "shop", Service: "web", Number: 1, Details: Details{Seat: Seat{Sandbox: network.Sandbox{Hostname: "web"}}}},
		Service: &s,
		Image:   image,
		Sandbox: network.Paths{NetNS: "/run/netns/x", Hosts: "/run/h", ResolvConf: "/run/r", Hostname: "/run/n"},
	}, h, placing{
		paths: &paths{Options{RunDir: "/run", StateDir: "/lib", Init: "/libexec/margolite-init", Logger: slog.New(slog.DiscardHandler)}},
		id:    "id", user: u, cgroup: "/margo/shop/id",
		volumes: mountedVolumes{list: []Volume{{Name: "data"}}, byName: map[string]int{"data": 0}},
	})
}

var shell = v1.ImageConfig{Entrypoint: []string{"/entry"}, Cmd: []string{"serve"}}

func TestProcessArguments(t *testing.T) {
	tests := []struct {
		name    string
		service compose.Service
		image   v1.ImageConfig
		want    []string
	}{
		{"those of the image", compose.Service{}, shell, []string{"/entry", "serve"}},
		{"a command replaces the image's command", compose.Service{Command: []string{"a"}}, shell, []string{"/entry", "a"}},
		{"an empty command clears it", compose.Service{Command: []string{}}, shell, []string{"/entry"}},
		{"an entrypoint clears the image's command", compose.Service{Entrypoint: []string{"/e"}}, shell, []string{"/e"}},
		{"entrypoint and command", compose.Service{Entrypoint: []string{"/e"}, Command: []string{"a"}}, shell, []string{"/e", "a"}},
		{"an empty entrypoint leaves the command", compose.Service{Entrypoint: []string{}, Command: []string{"a"}}, shell, []string{"a"}},
		{"nothing to run is an error", compose.Service{Entrypoint: []string{}}, shell, nil},
		{"an image that says nothing is an error", compose.Service{}, v1.ImageConfig{}, nil},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			spec, err := build(t, test.service, test.image, Host{}, specs.User{})
			if test.want == nil {
				if err == nil {
					t.Errorf("got %q, want an error", spec.Process.Args)
				}
				return
			}
			check(t, err)
			expect.Equal(t, spec.Process.Args, test.want, "arguments")
		})
	}
}

func TestOBS06ProcessEnvironment(t *testing.T) {
	image := shell
	image.Env = []string{"PATH=/img", "A=image", "B=image", "=broken", "novalue"}
	spec := expect.Value(build(t, compose.Service{Environment: map[string]string{"B": "service", "Z": "1", "C": ""}}, image, Host{}, specs.User{}))(t)
	want := []string{"PATH=/img", "HOSTNAME=web", "A=image", "B=service", "C=", "Z=1"}
	expect.Equal(t, spec.Process.Env, want, "environment")
}

// What the device gives to all containers gives way to what an image or a service
// says itself.
func TestOBS08EnvironmentOfTheDevice(t *testing.T) {
	c := Config{
		Service: &compose.Service{Environment: map[string]string{"B": "service"}},
		Image:   v1.ImageConfig{Env: []string{"A=image"}},
	}
	got := processEnv(c, []string{"A=device", "B=device", "HTTP_OTEL_EXPORTER_OTLP_ENDPOINT=http://192.0.2.1:4318"})
	want := []string{"PATH=" + defaultPath, "HOSTNAME=", "A=image", "B=service", "HTTP_OTEL_EXPORTER_OTLP_ENDPOINT=http://192.0.2.1:4318"}
	expect.Equal(t, got, want, "environment")
}

func TestWorkingDirectory(t *testing.T) {
	for _, test := range []struct{ service, image, want string }{
		{"", "", "/"},
		{"", "/app", "/app"},
		{"/srv", "/app", "/srv"},
		{"srv/../x", "/app", "/x"},
	} {
		image := shell
		image.WorkingDir = test.image
		spec := expect.Value(build(t, compose.Service{WorkingDir: test.service}, image, Host{}, specs.User{}))(t)
		expect.Equal(t, spec.Process.Cwd, test.want, "service %q in image %q", test.service, test.image)
	}
}

func TestMounts(t *testing.T) {
	service := compose.Service{
		ReadOnly: true,
		Mounts: []compose.Mount{
			{Volume: "data", Target: "/var/lib/data/deep"},
			{Path: "/etc/app", Target: "/etc", ReadOnly: true, Propagation: "rslave"},
		},
		Tmpfs: []compose.Tmpfs{{Target: "/dev/shm", Options: []string{"size=1m"}}, {Target: "/var", Options: []string{"exec"}}},
	}
	spec := expect.Value(build(t, service, shell, Host{Cgroups: CgroupsV1}, specs.User{}))(t)
	at := func(target string) (int, specs.Mount) {
		var found []int
		for i, m := range spec.Mounts {
			if m.Destination == target {
				found = append(found, i)
			}
		}
		expect.Require(t, len(found) == 1, "%d mounts at %s, want one", len(found), target)
		return found[0], spec.Mounts[found[0]]
	}
	if _, m := at("/var/lib/data/deep"); m.Source != "/lib/volumes/shop/data" || !slices.Equal(m.Options, []string{"rbind", "rprivate"}) {
		t.Errorf("volume is mounted as %+v", m)
	}
	if _, m := at("/etc"); !slices.Equal(m.Options, []string{"rbind", "rslave", "ro"}) {
		t.Errorf("directory is mounted as %+v", m)
	}
	if _, m := at("/dev/shm"); !slices.Contains(m.Options, "size=1m") {
		t.Errorf("the service's /dev/shm is %+v", m)
	}
	if _, m := at("/var"); slices.Index(m.Options, "exec") < slices.Index(m.Options, "noexec") {
		t.Errorf("exec does not win in %+v", m)
	}
	for _, pair := range [][2]string{{"/etc", "/etc/hosts"}, {"/var", "/var/lib/data/deep"}, {"/dev", "/dev/shm"}, {"/sys", "/sys/fs/cgroup"}} {
		outer, _ := at(pair[0])
		inner, _ := at(pair[1])
		if outer > inner {
			t.Errorf("%s is mounted after %s and hides it", pair[0], pair[1])
		}
	}
	if _, m := at("/etc/hosts"); m.Source != "/run/h" || !slices.Contains(m.Options, "ro") {
		t.Errorf("hosts of a read-only container is mounted as %+v", m)
	}
	if spec.Linux.RootfsPropagation != "rslave" || !spec.Root.Readonly {
		t.Errorf("root file system: propagation %q, read-only %v", spec.Linux.RootfsPropagation, spec.Root.Readonly)
	}

	old := compose.Service{Mounts: []compose.Mount{{Path: "/srv", Target: "/srv", ReadOnly: true, Below: compose.BelowReadOnly}}}
	expect.ErrorWith(t, expect.ErrorOf(build(t, old, shell, Host{}, specs.User{})), "5.12", "a kernel that cannot make what is below a mount read-only")
}

func TestHostDecidesWhatTheKernelGives(t *testing.T) {
	has := func(s *specs.Spec, namespace specs.LinuxNamespaceType) bool {
		return slices.ContainsFunc(s.Linux.Namespaces, func(n specs.LinuxNamespace) bool { return n.Type == namespace })
	}
	mounted := func(s *specs.Spec, target string) bool {
		return slices.ContainsFunc(s.Mounts, func(m specs.Mount) bool { return m.Destination == target })
	}
	small := expect.Value(build(t, compose.Service{}, shell, Host{}, specs.User{}))(t)
	expect.Equal(t, *small.Process.OOMScoreAdj, 0, "it has an OOM score")
	if mounted(small, "/dev/mqueue") || mounted(small, "/sys/fs/cgroup") || has(small, specs.CgroupNamespace) || small.Linux.Seccomp != nil || len(small.Linux.Sysctl) > 0 {
		t.Error("a small kernel is asked for what it does not have")
	}
	full := expect.Value(build(t, compose.Service{}, shell, Host{
		Cgroups: CgroupsV2, CgroupNamespace: true, MessageQueues: true, UnprivilegedPorts: true, Seccomp: true, OpenFiles: 1 << 20,
	}, specs.User{}))(t)
	if !mounted(full, "/dev/mqueue") || !mounted(full, "/sys/fs/cgroup") || !has(full, specs.CgroupNamespace) || full.Linux.Seccomp == nil || len(full.Linux.Sysctl) == 0 {
		t.Error("a full kernel is not used")
	}
	if hybrid, err := build(t, compose.Service{}, shell, Host{Cgroups: CgroupsV1, CgroupNamespace: true}, specs.User{}); err != nil || has(hybrid, specs.CgroupNamespace) {
		t.Errorf("cgroup v1 gets a namespace, or error %v", err)
	}
	expect.Equal(t, full.Process.Rlimits[0], specs.POSIXRlimit{Type: "RLIMIT_NOFILE", Soft: 1024, Hard: 524288}, "limit of open files")
	expect.Equal(t, full.Linux.Namespaces[slices.IndexFunc(full.Linux.Namespaces, func(n specs.LinuxNamespace) bool { return n.Type == specs.NetworkNamespace })].Path, "/run/netns/x", "network namespace")
	expect.Equal(t, full.Annotations[groupAnnotation], "shop", "shim is grouped by")
}
