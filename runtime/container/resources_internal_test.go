package container

import (
	"encoding/json"
	"math"
	"strings"
	"testing"

	v1 "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/margolite/margolite/runtime/compose"
	"github.com/margolite/margolite/test/expect"
)

// able is a device whose kernel does everything.
var able = Host{
	Cgroups: CgroupsV1, CPUs: "0-3", OpenFiles: 1 << 20, MostOpenFiles: 1 << 20,
	Limits: Limits{
		Memory: true, Swap: true, Swappiness: true, OOMKillDisable: true, CPUShares: true, CPUQuota: true,
		CPUSet: true, Pids: true, BlockWeight: true, BlockWeightDevice: true, BlockThrottle: true,
	},
}

func TestLimits(t *testing.T) {
	swappy := uint64(30)
	tests := []struct {
		name string
		ask  compose.Resources
		want string // JSON of the OCI specification
	}{
		{"none", compose.Resources{}, `{}`},
		{"memory comes with as much swap", compose.Resources{Memory: 64 << 20}, `{"memory":{"limit":67108864,"swap":134217728}}`},
		{"memory and swap", compose.Resources{Memory: 64 << 20, MemorySwap: 64 << 20}, `{"memory":{"limit":67108864,"swap":67108864}}`},
		{"swap without limit", compose.Resources{Memory: 64 << 20, MemorySwap: -1}, `{"memory":{"limit":67108864,"swap":-1}}`},
		{
			"other kinds of memory",
			compose.Resources{MemoryReservation: 1 << 20, Swappiness: &swappy, OOMKillDisable: true},
			`{"memory":{"reservation":1048576,"swappiness":30,"disableOOMKiller":true}}`,
		},
		{"CPUs", compose.Resources{NanoCPUs: 1_500_000_000}, `{"cpu":{"quota":150000,"period":100000}}`},
		{"the kernel's least of a CPU", compose.Resources{NanoCPUs: 1}, `{"cpu":{"quota":1000,"period":100000}}`},
		{"quota and period", compose.Resources{CPUQuota: 5000, CPUPeriod: 10000}, `{"cpu":{"quota":5000,"period":10000}}`},
		{"shares and set", compose.Resources{CPUShares: 512, CPUSet: "0,2-3"}, `{"cpu":{"shares":512,"cpus":"0,2-3"}}`},
		{"processes", compose.Resources{Pids: 10}, `{"pids":{"limit":10}}`},
		{"processes without limit", compose.Resources{Pids: -1}, `{}`},
		{"weight", compose.Resources{BlkioWeight: 300}, `{"blockIO":{"weight":300}}`},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			warned := ""
			r := expect.Value(resources(&compose.Service{Resources: test.ask}, able, func(w string) { warned += w }))(t)
			text := expect.Value(json.Marshal(r))(t)
			expect.True(t, string(text) == test.want && warned == "", "got %s, warning %q, want %s", text, warned, test.want)
		})
	}
}

// Nobody gets more than half of the processes that there may be on the device.
func TestProcessesAreLimited(t *testing.T) {
	host := able
	host.Processes = 1000
	for asked, want := range map[int64]int64{0: 500, -1: 500, 12: 12, math.MaxInt64: 500} {
		r := expect.Value(resources(&compose.Service{Resources: compose.Resources{Pids: asked}}, host, func(w string) { t.Error(w) }))(t)
		expect.Equal(t, *r.Pids.Limit, want, "limit of %d", asked)
	}
}

func TestLimitsThatMakeNoSense(t *testing.T) {
	tests := map[string]struct {
		ask compose.Resources
		err string
	}{
		"CPUs that the device lacks":       {compose.Resources{CPUSet: "2-4"}, "the device has CPUs 0-3"},
		"a set of CPUs that is none":       {compose.Resources{CPUSet: "first"}, "list of CPUs"},
		"a set of CPUs without end":        {compose.Resources{CPUSet: strings.Repeat("0-8191,", 100) + "0"}, "list of CPUs"},
		"a device that is not there":       {compose.Resources{BlkioDevices: []compose.BlkioDevice{{Path: "/dev/nowhere", ReadBPS: 1}}}, "/dev/nowhere"},
		"a device that is no block device": {compose.Resources{BlkioDevices: []compose.BlkioDevice{{Path: "/dev/null", ReadBPS: 1}}}, "not a block device"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := resources(&compose.Service{Resources: test.ask}, able, func(string) {})
			expect.ErrorWith(t, err, test.err, "error")
		})
	}
}

// What the kernel cannot limit is left out and said, as with Docker.
func TestLimitsThatTheKernelLacks(t *testing.T) {
	swappy := uint64(1)
	ask := compose.Resources{
		Memory: 64 << 20, MemoryReservation: 1 << 20, MemorySwap: 128 << 20, Swappiness: &swappy, OOMKillDisable: true,
		NanoCPUs: 1e9, CPUShares: 10, CPUSet: "0", Pids: 5, BlkioWeight: 100,
		BlkioDevices: []compose.BlkioDevice{{Path: "/dev/nowhere", ReadBPS: 1, Weight: 100}},
	}
	var warned []string
	r, err := resources(&compose.Service{Resources: ask}, Host{}, func(w string) { warned = append(warned, w) })
	check(t, err)
	expect.Equal(t, string(expect.Value(json.Marshal(r))(t)), "{}", "limits")
	for _, key := range []string{"mem_limit", "mem_reservation", "mem_swappiness", "oom_kill_disable", "cpus", "cpu_shares", "cpuset", "pids_limit", "blkio_config.weight", "blkio_config.device"} {
		expect.Contains(t, strings.Join(warned, "\n"), key, "warnings")
	}
	noSwap := able
	noSwap.Swap = false
	r, err = resources(&compose.Service{Resources: compose.Resources{Memory: 64 << 20}}, noSwap, func(w string) { t.Errorf("warned of what nobody asked for: %s", w) })
	if err != nil || r.Memory.Swap != nil || *r.Memory.Limit != 64<<20 {
		t.Errorf("got %+v, %v", r.Memory, err)
	}
}

func TestUlimits(t *testing.T) {
	ask := func(u ...compose.Ulimit) ([]specs.POSIXRlimit, error) {
		return rlimits(&compose.Service{Ulimits: u}, able)
	}
	got := expect.Value(ask(compose.Ulimit{Name: "core", Soft: 0, Hard: -1}, compose.Ulimit{Name: "nofile", Soft: 10, Hard: 20}))(t)
	want := []specs.POSIXRlimit{{Type: "RLIMIT_CORE", Soft: 0, Hard: 1<<64 - 1}, {Type: "RLIMIT_NOFILE", Soft: 10, Hard: 20}}
	expect.Equal(t, got, want, "limits")
	expect.ErrorWith(t, expect.ErrorOf(ask(compose.Ulimit{Name: "nofile", Soft: 1, Hard: -1})), "", "more files than there are")
}

func TestSysctls(t *testing.T) {
	host := Host{UnprivilegedPorts: true, PingGroups: true}
	hosts := compose.Namespace{Mode: compose.ModeHost}
	for name, test := range map[string]struct {
		service compose.Service
		want    map[string]string
	}{
		"those that everybody gets": {compose.Service{}, map[string]string{"net.ipv4.ip_unprivileged_port_start": "0", "net.ipv4.ping_group_range": "0 2147483647"}},
		"the service's replace them": {
			compose.Service{Sysctls: map[string]string{"net.ipv4.ip_unprivileged_port_start": "1024", "kernel.msgmax": "1"}},
			map[string]string{"net.ipv4.ip_unprivileged_port_start": "1024", "net.ipv4.ping_group_range": "0 2147483647", "kernel.msgmax": "1"},
		},
		"a domain name":                 {compose.Service{Domainname: "plant.example", Network: hosts}, map[string]string{"kernel.domainname": "plant.example"}},
		"nothing in the host's network": {compose.Service{Network: hosts}, map[string]string{}},
	} {
		expect.Equal(t, sysctls(&test.service, host), test.want, "%s", name)
	}
}

func TestServiceShapesTheProcess(t *testing.T) {
	adjust := 500
	spec, err := build(t, compose.Service{
		TTY: true, Init: true, OOMScoreAdj: &adjust, Annotations: map[string]string{"a": "b", groupAnnotation: "other"},
	}, v1.ImageConfig{Entrypoint: []string{"/entry"}, Cmd: []string{"serve"}, Env: []string{"TERM=image"}}, able, specs.User{})
	check(t, err)
	if !spec.Process.Terminal || spec.Process.ConsoleSize == nil || strings.Join(spec.Process.Env, " ") != "PATH="+defaultPath+" HOSTNAME=web TERM=image" {
		t.Errorf("terminal: %+v", spec.Process)
	}
	expect.Equal(t, strings.Join(spec.Process.Args, " "), "/sbin/docker-init -- /entry serve", "runs")
	if *spec.Process.OOMScoreAdj != 500 || spec.Annotations["a"] != "b" || spec.Annotations[groupAnnotation] != "shop" {
		t.Errorf("OOM score %d, annotations %v", *spec.Process.OOMScoreAdj, spec.Annotations)
	}
	mounted := spec.Mounts[len(spec.Mounts)-1]
	expect.Equal(t, []string{mounted.Source, mounted.Destination}, []string{"/libexec/margolite-init", initPath}, "where init is mounted")

	_, err = newSpec(Config{Service: &compose.Service{Init: true}, Image: shell}, able, placing{paths: &paths{}})
	expect.ErrorWith(t, err, "margolite-init is missing", "without the program")
}

func TestNamespaces(t *testing.T) {
	in := func(mode compose.NamespaceMode) compose.Namespace { return compose.Namespace{Mode: mode, Of: "x"} }
	host := Host{Cgroups: CgroupsV2, CgroupNamespace: true}
	tests := []struct {
		name    string
		service compose.Service
		want    string
		shm     string // source of /dev/shm
	}{
		{"its own", compose.Service{}, "mount pid ipc uts network cgroup", "shm"},
		{"the host's process ids", compose.Service{PID: in(compose.ModeHost)}, "mount ipc uts network cgroup", "shm"},
		{"the host's IPC", compose.Service{IPC: in(compose.ModeHost)}, "mount pid uts network cgroup", "/dev/shm"},
		{"names of the host", compose.Service{UTS: in(compose.ModeHost)}, "mount pid ipc network cgroup", "shm"},
		{"the host's network", compose.Service{Network: in(compose.ModeHost)}, "mount pid ipc uts cgroup", "shm"},
		{"the host's control groups", compose.Service{Cgroup: in(compose.ModeHost)}, "mount pid ipc uts network", "shm"},
		{"shared IPC", compose.Service{IPC: in(compose.ModeShareable)}, "mount pid ipc uts network cgroup", "/run/shm/id"},
		{"that of a service", compose.Service{IPC: in(compose.ModeService), PID: in(compose.ModeService)}, "mount pid ipc uts network cgroup", "/run/shm/id"},
		{"no shared memory", compose.Service{IPC: in(compose.ModeNone)}, "mount pid ipc uts network cgroup", ""},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			spec := expect.Value(build(t, test.service, shell, host, specs.User{}))(t)
			var kinds []string
			for _, n := range spec.Linux.Namespaces {
				kinds = append(kinds, string(n.Type))
			}
			expect.Equal(t, strings.Join(kinds, " "), test.want, "namespaces")
			shm := ""
			for _, m := range spec.Mounts {
				if m.Destination == "/dev/shm" {
					shm = m.Source
				}
			}
			expect.Equal(t, shm, test.shm, "/dev/shm")
			expect.Equal(t, spec.Hostname == "", test.service.UTS.Mode == compose.ModeHost, "no host name of its own")
		})
	}
}
