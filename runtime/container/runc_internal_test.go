package container

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	v1 "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/margolite/margolite/runtime/compose"
)

// bench runs services with runc and busybox, to see what becomes of their
// specifications.
type bench struct {
	*testing.T
	host Host
	root string // of the file system
	init string
	runs int
}

const benchGroup = "/margolite-spec-test"

func newBench(t *testing.T) *bench {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	for _, program := range []string{"runc", "busybox"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("%s is not installed", program)
		}
	}
	b := &bench{T: t, host: DetectHost(t.Context(), "runc"), root: filepath.Join(t.TempDir(), "rootfs")}
	for _, dir := range []string{"bin", "dev", "etc", "proc", "sbin", "sys", "tmp"} {
		if err := os.MkdirAll(filepath.Join(b.root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	program, err := exec.LookPath("busybox")
	if err != nil {
		t.Fatal(err)
	}
	b.must("cp", program, filepath.Join(b.root, "bin/busybox"))
	b.must(program, "--install", "-s", filepath.Join(b.root, "bin"))
	applets, err := filepath.Glob(filepath.Join(b.root, "bin", "*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, applet := range applets { // they lead to the program of this machine
		if filepath.Base(applet) != "busybox" {
			if err := errors.Join(os.Remove(applet), os.Symlink("busybox", applet)); err != nil {
				t.Fatal(err)
			}
		}
	}
	t.Cleanup(func() {
		for _, dir := range cgroupDirs(benchGroup) {
			_ = os.Remove(dir)
		}
	})
	return b
}

func (b *bench) must(name string, args ...string) {
	b.Helper()
	if out, err := exec.CommandContext(b.Context(), name, args...).CombinedOutput(); err != nil {
		b.Fatalf("%s %q: %v: %s", name, args, err, out)
	}
}

// spec is that of a service which runs a shell command.
func (b *bench) spec(s compose.Service, u User, command string) *specs.Spec {
	b.Helper()
	b.runs++
	s.Command = []string{"/bin/sh", "-c", command}
	config := Config{Service: &s, Image: v1.ImageConfig{}}
	config.Labels.Sandbox.Hostname = "web"
	spec, err := newSpec(config, b.host, placing{
		user: u, cgroup: path.Join(benchGroup, fmt.Sprint(b.runs)), init: b.init,
		warn: func(text string) { b.Log(text) },
	})
	if err != nil {
		b.Fatal(err)
	}
	if err := complete(spec, devicesOf(&s)); err != nil {
		b.Fatal(err)
	}
	return spec
}

// bundle is what runc is given.
func (b *bench) bundle(spec *specs.Spec) (args []string, id string) {
	b.Helper()
	dir := b.TempDir()
	spec.Root.Path = b.root
	text, err := json.Marshal(spec)
	if err != nil {
		b.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "config.json"), text, 0o600); err != nil {
		b.Fatal(err)
	}
	id = fmt.Sprintf("spec-%d", b.runs)
	root := filepath.Join(dir, "runc")
	b.Cleanup(func() {
		_ = exec.Command("runc", "--root", root, "delete", "--force", id).Run() // it may never have been
	})
	return []string{"--root", root, "run", "--bundle", dir, id}, id
}

// run is the output of a service, and the error of runc.
func (b *bench) run(spec *specs.Spec) (string, error) {
	b.Helper()
	args, _ := b.bundle(spec)
	cmd := exec.CommandContext(b.Context(), "runc", args...)
	cmd.WaitDelay = 10 * time.Second
	out, err := cmd.CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

// outcome is what a service prints.
func (b *bench) outcome(s compose.Service, u User, command string) string {
	b.Helper()
	out, err := b.run(b.spec(s, u, command))
	if err != nil {
		b.Fatalf("%s: %v: %s", command, err, out)
	}
	return out
}

func TestContainersHaveWhatTheirServiceSays(t *testing.T) {
	b := newBench(t)
	status := func(field string) string { return "sed -n 's/^" + field + ":[[:space:]]*//p' /proc/self/status" }
	least, most := 100, 800
	if !exists("/dev/loop0") {
		t.Skip("needs /dev/loop0")
	}
	tests := []struct {
		name    string
		service compose.Service
		user    User
		command string
		want    string
	}{
		{"Docker's capabilities", compose.Service{}, User{}, status("CapEff"), "00000000a80425fb"},
		{"none", compose.Service{CapDrop: []string{"ALL"}}, User{}, status("CapEff") + ";" + status("CapBnd"), "0000000000000000\n0000000000000000"},
		{"one", compose.Service{CapDrop: []string{"ALL"}, CapAdd: []string{"CAP_NET_ADMIN"}}, User{}, status("CapPrm"), "0000000000001000"},
		{"somebody has none in effect", compose.Service{}, User{UID: 1000}, status("CapEff") + ";" + status("CapBnd"), "0000000000000000\n00000000a80425fb"},
		{"new privileges", compose.Service{}, User{}, status("NoNewPrivs"), "0"},
		{"no new privileges", compose.Service{NoNewPrivileges: true}, User{}, status("NoNewPrivs"), "1"},
		{"a filter of system calls", compose.Service{}, User{}, status("Seccomp"), "2"},
		{"no filter", compose.Service{Seccomp: compose.Seccomp{Unconfined: true}}, User{}, status("Seccomp"), "0"},
		{
			"a filter of its own",
			compose.Service{Seccomp: compose.Seccomp{Profile: []byte(`{"defaultAction":"SCMP_ACT_ALLOW","syscalls":[{"names":["mkdir","mkdirat"],"action":"SCMP_ACT_ERRNO","errnoRet":95}]}`)}},
			User{},
			"mkdir /tmp/new 2>&1; rm -f /nothing; echo went on", "mkdir: can't create directory '/tmp/new': Operation not supported\nwent on",
		},
		{"groups", compose.Service{}, User{UID: 5, GID: 6, Groups: []uint32{7, 8}}, "id -u; id -g; id -G", "5\n6\n6 7 8"},
		{"names", compose.Service{Domainname: "plant.example"}, User{}, "hostname; cat /proc/sys/kernel/domainname", "web\nplant.example"},
		{
			"kernel settings",
			compose.Service{Sysctls: map[string]string{"net.ipv4.ip_forward": "1", "kernel.msgmax": "4097"}},
			User{},
			"cd /proc/sys; cat net/ipv4/ip_forward kernel/msgmax net/ipv4/ip_unprivileged_port_start net/ipv4/ping_group_range", "1\n4097\n0\n0\t2147483647",
		},
		{
			"limits of the process",
			compose.Service{Ulimits: []compose.Ulimit{{Name: "core", Soft: 0, Hard: 0}, {Name: "nofile", Soft: 99, Hard: 100}, {Name: "stack", Soft: 1 << 20, Hard: 1 << 20}}},
			User{},
			"ulimit -c; ulimit -n; ulimit -Hn; ulimit -s", "0\n99\n100\n1024",
		},
		{"who is killed first", compose.Service{OOMScoreAdj: &most}, User{}, "cat /proc/self/oom_score_adj", "800"},
		{"who is killed later", compose.Service{OOMScoreAdj: &least}, User{}, "cat /proc/self/oom_score_adj", "100"},
		{"a root that is read-only", compose.Service{ReadOnly: true}, User{}, "touch /new 2>&1 || true", "touch: /new: Read-only file system"},
		{"masks", compose.Service{}, User{}, "head -c 1 /proc/keys | wc -c; { echo x > /proc/sys/kernel/shmmax; } 2>&1 || true", "0\n/bin/sh: can't create /proc/sys/kernel/shmmax: Read-only file system"},
		{"no masks", compose.Service{UnmaskedPaths: true}, User{}, "grep -c ' /proc/' /proc/mounts || true", "0"},
		{"no shared memory", compose.Service{IPC: compose.Namespace{Mode: compose.ModeNone}}, User{}, "grep -c /dev/shm /proc/mounts || true", "0"},
		{
			"a device to read",
			compose.Service{Devices: []compose.Device{{Path: "/dev/zero", Target: "/dev/source", Permissions: "r"}}},
			User{},
			"rm /dev/zero; head -c 3 /dev/source | wc -c", "3",
		},
		{
			"a device of nobody", compose.Service{}, User{}, "mknod /dev/disk b 7 0 && head -c 0 /dev/disk 2>&1 || true", "head: /dev/disk: Operation not permitted",
		},
		{
			"a device that a rule allows", compose.Service{DeviceRules: []string{"b 7:* rm"}}, User{}, "mknod /dev/disk b 7 0 && head -c 0 /dev/disk && echo open", "open",
		},
		{
			"a device to read alone",
			compose.Service{Devices: []compose.Device{{Path: "/dev/loop0", Target: "/dev/disks/first", Permissions: "r"}}},
			User{},
			"head -c 0 /dev/disks/first && echo open; (echo > /dev/disks/first) 2>&1 || true", "open\n/bin/sh: can't create /dev/disks/first: Operation not permitted",
		},
		{
			"everything for the privileged",
			compose.Service{Privileged: true},
			User{},
			"test -b /dev/loop0 && head -c 0 /dev/loop0 && awk '$2 == \"/sys\" {print $4}' /proc/mounts | grep -c '^rw'; " + status("Seccomp") + "; grep -c ' /proc/' /proc/mounts || true", "1\n0\n0",
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			b := &bench{T: t, host: b.host, root: b.root, runs: b.runs + 100}
			if got := b.outcome(test.service, test.user, test.command); got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
	t.Run("all capabilities for the privileged", func(t *testing.T) {
		own, err := os.ReadFile("/proc/self/status")
		if err != nil {
			t.Fatal(err)
		}
		_, rest, _ := strings.Cut(string(own), "CapBnd:\t")
		want, _, _ := strings.Cut(rest, "\n")
		b := &bench{T: t, host: b.host, root: b.root, runs: 1000}
		if got := b.outcome(compose.Service{Privileged: true}, User{}, status("CapEff")); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	})
}

func TestContainersAreLimited(t *testing.T) {
	b := newBench(t)
	either := func(v1, v2 string) string {
		if b.host.Cgroups == CgroupsV2 {
			return "cat /sys/fs/cgroup/" + v2
		}
		return "cat /sys/fs/cgroup/" + v1
	}
	swappy := uint64(7)
	half := strconv.FormatInt(b.host.Processes/2, 10)
	tests := []struct {
		name   string
		able   bool
		limits compose.Resources
		read   string
		want   []string // on v1, on v2
	}{
		{"memory", b.host.Memory, compose.Resources{Memory: 64 << 20}, either("memory/memory.limit_in_bytes", "memory.max"), []string{"67108864", "67108864"}},
		{"swap", b.host.Swap, compose.Resources{Memory: 64 << 20}, either("memory/memory.memsw.limit_in_bytes", "memory.swap.max"), []string{"134217728", "67108864"}},
		{"no swap", b.host.Swap, compose.Resources{Memory: 64 << 20, MemorySwap: 64 << 20}, either("memory/memory.memsw.limit_in_bytes", "memory.swap.max"), []string{"67108864", "0"}},
		{"reservation", b.host.Memory, compose.Resources{MemoryReservation: 32 << 20}, either("memory/memory.soft_limit_in_bytes", "memory.low"), []string{"33554432", "33554432"}},
		{"swappiness", b.host.Swappiness, compose.Resources{Swappiness: &swappy}, either("memory/memory.swappiness", ""), []string{"7", ""}},
		{"CPUs", b.host.CPUQuota, compose.Resources{NanoCPUs: 500_000_000}, either("cpu/cpu.cfs_quota_us", "cpu.max"), []string{"50000", "50000 100000"}},
		{"shares", b.host.CPUShares, compose.Resources{CPUShares: 512}, either("cpu/cpu.shares", "cpu.weight"), []string{"512", "20"}},
		{"a set of CPUs", b.host.CPUSet, compose.Resources{CPUSet: "0"}, either("cpuset/cpuset.cpus", "cpuset.cpus"), []string{"0", "0"}},
		{"processes", b.host.Pids, compose.Resources{Pids: 12}, either("pids/pids.max", "pids.max"), []string{"12", "12"}},
		{"processes that nobody limited", b.host.Pids, compose.Resources{}, either("pids/pids.max", "pids.max"), []string{half, half}},
		{"processes without a limit of their own", b.host.Pids, compose.Resources{Pids: -1}, either("pids/pids.max", "pids.max"), []string{half, half}},
		{"more processes than there can be", b.host.Pids, compose.Resources{Pids: math.MaxInt64}, either("pids/pids.max", "pids.max"), []string{half, half}},
		{
			"a disk", b.host.BlockThrottle && exists("/dev/loop0"),
			compose.Resources{BlkioDevices: []compose.BlkioDevice{{Path: "/dev/loop0", ReadBPS: 1 << 20, WriteIOPS: 9}}},
			either("blkio/blkio.throttle.read_bps_device", "io.max"),
			[]string{"7:0 1048576", "7:0 rbps=1048576 wbps=max riops=max wiops=9"},
		},
		{"weight", b.host.BlockWeight, compose.Resources{BlkioWeight: 300}, either("blkio/blkio.bfq.weight", "io.bfq.weight"), []string{"300", "300"}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if !test.able {
				t.Skip("needs a kernel that limits:", test.name)
			}
			b := &bench{T: t, host: b.host, root: b.root, runs: b.runs + 100}
			want := test.want[0]
			if b.host.Cgroups == CgroupsV2 {
				want = test.want[1]
			}
			if got := b.outcome(compose.Service{Resources: test.limits}, User{}, test.read); got != want {
				t.Errorf("got %q, want %q", got, want)
			}
		})
	}
}

func TestContainersShareNamespaces(t *testing.T) {
	b := newBench(t)
	own := func(kind string) string {
		link, err := os.Readlink("/proc/self/ns/" + kind)
		if err != nil {
			t.Fatal(err)
		}
		return link
	}
	read := func(s compose.Service) []string {
		return strings.Fields(b.outcome(s, User{}, "for n in pid ipc uts net; do readlink /proc/self/ns/$n; done"))
	}
	hosts := compose.Namespace{Mode: compose.ModeHost}
	private, shared := read(compose.Service{}), read(compose.Service{PID: hosts, IPC: hosts, UTS: hosts, Network: hosts})
	for i, kind := range []string{"pid", "ipc", "uts", "net"} {
		if private[i] == own(kind) {
			t.Errorf("%s is the host's by default ", kind)
		}
		if shared[i] != own(kind) {
			t.Errorf("%s is not the host's though it should be", kind)
		}
	}

	// One container in the namespaces of another.
	args, id := b.bundle(b.spec(compose.Service{}, User{}, "echo $$; exec sleep 60"))
	first := exec.CommandContext(t.Context(), "runc", slices.Insert(args, 3, "--detach", "--pid-file", filepath.Join(t.TempDir(), "pid"))...)
	pidFile := first.Args[6]
	if err := first.Run(); err != nil {
		t.Fatalf("%s: %v", id, err)
	}
	text, err := os.ReadFile(pidFile)
	if err != nil {
		t.Fatal(err)
	}
	var pid int
	if _, err := fmt.Sscan(string(text), &pid); err != nil {
		t.Fatal(err)
	}
	spec := b.spec(compose.Service{PID: compose.Namespace{Mode: compose.ModeService, Of: "other"}, IPC: compose.Namespace{Mode: compose.ModeContainer, Of: "other"}}, User{},
		"cat /proc/1/cmdline | tr '\\0' ' '; readlink /proc/1/ns/ipc; readlink /proc/self/ns/ipc")
	for i, m := range spec.Mounts {
		if m.Destination == "/dev/shm" {
			spec.Mounts[i].Source = t.TempDir()
		}
	}
	joinNamespaces(spec, map[specs.LinuxNamespaceType]string{
		specs.PIDNamespace: namespacePath(pid, specs.PIDNamespace),
		specs.IPCNamespace: namespacePath(pid, specs.IPCNamespace),
	})
	out, err := b.run(spec)
	fields := strings.Fields(out)
	if err != nil || !strings.Contains(out, "sleep 60") || len(fields) != 4 || fields[2] != fields[3] {
		t.Errorf("got %q, %v", out, err)
	}
}

func TestInitIsProcessOne(t *testing.T) {
	b := newBench(t)
	b.init = filepath.Join(t.TempDir(), "margolite-init")
	build := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-o", b.init, "github.com/margolite/margolite/cmd/margolite-init")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	got := b.outcome(compose.Service{Init: true}, User{}, "tr '\\0' ' ' </proc/1/cmdline | cut -d' ' -f 1-3; test $$ != 1 && echo second")
	if got != "/sbin/docker-init -- /bin/sh\nsecond" {
		t.Errorf("got %q", got)
	}
	out, err := b.run(b.spec(compose.Service{Init: true, ReadOnly: true, CapDrop: []string{"ALL"}, Resources: compose.Resources{Pids: 32}}, User{UID: 1000}, "exit 42"))
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 42 {
		t.Errorf("got %v: %s", err, out)
	}
}

func TestCDIDeviceInAContainer(t *testing.T) {
	b := newBench(t)
	mark := filepath.Join(t.TempDir(), "hook-ran")
	library := filepath.Join(t.TempDir(), "library")
	if err := os.WriteFile(library, []byte("content\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	dirs := cdiRig(t, map[string]string{"v.yaml": `cdiVersion: "0.6.0"
kind: vendor.example/sensor
devices:
- name: zero
  containerEdits:
    env: [SENSOR=zero]
    deviceNodes: [{path: /dev/sensor, hostPath: /dev/zero, permissions: r}]
    mounts: [{hostPath: ` + library + `, containerPath: /lib/sensor.so, options: [ro, bind]}]
    hooks: [{hookName: createRuntime, path: /usr/bin/touch, args: [touch, ` + mark + `]}]
    additionalGids: [77]
`})
	spec := b.spec(compose.Service{}, User{UID: 1000, GID: 1000}, "echo $SENSOR; head -c 2 /dev/sensor | wc -c; cat /lib/sensor.so; id -G; stat -c %u:%g /dev/sensor")
	if err := addCDI(spec, []string{"vendor.example/sensor=zero"}, dirs); err != nil {
		t.Fatal(err)
	}
	out, err := b.run(spec)
	if want := "zero\n2\ncontent\n1000 77\n1000:1000"; err != nil || out != want {
		t.Errorf("got %q, %v, want %q", out, err, want)
	}
	if _, err := os.Stat(mark); err != nil {
		t.Errorf("hook: %v", err)
	}
}

// What a container writes to its log must not be lost among what runc says.
func TestSpecificationsAreAcceptedWithoutWarning(t *testing.T) {
	b := newBench(t)
	args, _ := b.bundle(b.spec(compose.Service{}, User{}, "true"))
	cmd := exec.CommandContext(t.Context(), "runc", args...)
	var said bytes.Buffer
	cmd.Stderr = &said
	if err := cmd.Run(); err != nil || said.Len() > 0 {
		t.Errorf("%v: %s", err, said.String())
	}
}
