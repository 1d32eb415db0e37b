package container

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/margolite/margolite/runtime/compose"
	"github.com/margolite/margolite/test/expect"
)

const cdiYAML = `cdiVersion: "0.6.0"
kind: vendor.example/camera
annotations: {made.by: test}
containerEdits:
  env: [CAMERAS=yes]
  hooks:
  - {hookName: createContainer, path: /bin/hook, args: [hook, update], env: [A=b], timeout: 5}
devices:
- name: "0"
  annotations: {any: thing}
  containerEdits:
    deviceNodes:
    - {path: /dev/camera0, hostPath: /dev/null, permissions: rw, fileMode: 0o640, uid: 7}
    - {path: /dev/camera9, type: c, major: 81, minor: 9}
    - {path: /dev/closed, hostPath: /dev/zero, permissions: none}
    mounts:
    - {hostPath: /usr/lib/camera.so, containerPath: /usr/lib/deep/camera.so, options: [ro, nosuid, bind]}
    additionalGids: [44, 0]
- name: all
  containerEdits:
    env: [CAMERA=all, PATH=/cameras]
`

const cdiJSON = `{"cdiVersion":"0.5.0","kind":"vendor.example/gpu","devices":[{"name":"all","containerEdits":{"deviceNodes":[{"path":"/dev/null"}]}}]}`

// cdiRig is a directory for each set of files.
func cdiRig(t *testing.T, sets ...map[string]string) []string {
	t.Helper()
	var dirs []string
	for _, files := range sets {
		dirs = append(dirs, makeTree(t, files))
	}
	return dirs
}

func bare(u specs.User) *specs.Spec {
	return &specs.Spec{
		Process: &specs.Process{User: u, Env: []string{"PATH=/bin", "CAMERA=none"}},
		Mounts:  []specs.Mount{{Destination: "/usr/lib/deep/camera.so", Type: "bind", Source: "/old"}, {Destination: "/usr"}},
		Linux:   &specs.Linux{Resources: &specs.LinuxResources{}},
	}
}

func TestCDIEdits(t *testing.T) {
	dirs := cdiRig(t, map[string]string{"camera.yaml": cdiYAML, "gpu.json": cdiJSON, "README": "no file of ours"})
	spec := bare(specs.User{UID: 1000, GID: 1001, AdditionalGids: []uint32{44, 5}})
	check(t, addCDI(spec, []string{"vendor.example/camera=0", "vendor.example/gpu=all", "vendor.example/camera=all"}, dirs))
	expect.Equal(t, spec.Process.Env, []string{"PATH=/cameras", "CAMERA=all", "CAMERAS=yes"}, "environment")
	expect.Equal(t, spec.Process.User.AdditionalGids, []uint32{44, 5}, "groups")
	if h := spec.Hooks; h == nil || len(h.CreateContainer) != 1 || h.CreateContainer[0].Path != "/bin/hook" || *h.CreateContainer[0].Timeout != 5 {
		t.Errorf("hooks are %+v", h)
	}
	if len(spec.Mounts) != 2 || spec.Mounts[1].Source != "/usr/lib/camera.so" || spec.Mounts[0].Destination != "/usr" {
		t.Errorf("mounts are %+v", spec.Mounts)
	}
	expect.Require(t, len(spec.Linux.Devices) == 4, "devices are %+v", spec.Linux.Devices)
	first, second, gpu := spec.Linux.Devices[0], spec.Linux.Devices[1], spec.Linux.Devices[3]
	if first.Path != "/dev/camera0" || first.Major != 1 || first.Minor != 3 || first.FileMode.Perm() != 0o640 || *first.UID != 7 || *first.GID != 1001 {
		t.Errorf("camera 0 is %+v", first)
	}
	if second.Major != 81 || second.Minor != 9 || *second.UID != 1000 || gpu.Path != "/dev/null" || gpu.Minor != 3 {
		t.Errorf("camera 9 is %+v, GPU is %+v", second, gpu)
	}
	expect.Equal(t, describeRules(spec.Linux.Resources.Devices), []string{"c 1:3 rw", "c 81:9 rwm", "c 1:3 rwm"}, "rules")
}

func TestCDIDevicesAreFound(t *testing.T) {
	other := strings.ReplaceAll(cdiJSON, "/dev/null", "/dev/zero")
	dirs := cdiRig(t,
		map[string]string{"gpu.json": cdiJSON, "bad.json": "{", "alien.yaml": "cdiVersion: 0.6.0\nkind: vendor.example/alien\nunknown: 1\n"},
		map[string]string{"gpu.json": other})
	spec := bare(specs.User{})
	check(t, addCDI(spec, []string{"vendor.example/gpu=all"}, append(dirs, "/nowhere")))
	expect.Equal(t, spec.Linux.Devices[0].Minor, 5, "minor number, which is that of the later directory")
	err := addCDI(bare(specs.User{}), []string{"vendor.example/gpu=7"}, dirs)
	for _, part := range []string{"vendor.example/gpu=7", "there are 1: vendor.example/gpu=all", "bad.json", "alien.yaml"} {
		expect.ErrorWith(t, err, part, "error")
	}
	twice := cdiRig(t, map[string]string{"a.json": cdiJSON, "b.json": other})
	expect.ErrorWith(t, addCDI(bare(specs.User{}), []string{"vendor.example/gpu=all"}, twice), "in both", "a device of two files")
}

func TestCDIFilesThatMakeNoSense(t *testing.T) {
	head := "cdiVersion: 0.6.0\nkind: v.example/c\ndevices:\n- name: a\n  containerEdits: "
	for text, want := range map[string]string{
		"":                                   "EOF",
		"null":                               "empty",
		"cdiVersion: 9.0.0\nkind: a.b/c\n":   "cdiVersion",
		"cdiVersion: 0.6.0\nkind: nothing\n": "kind",
		"cdiVersion: 0.6.0\nkind: a.b/c\ndevices: [{name: a}, {name: a}]\n": "duplicate name",
		head + "{env: [novalue]}\n":                                         "environment",
		head + "{deviceNodes: [{path: dev/x}]}\n":                           "device node",
		head + "{deviceNodes: [{path: /dev/x, permissions: all}]}\n":        "permissions",
		head + "{deviceNodes: [null]}\n":                                    "null",
		head + "{mounts: [{hostPath: /x, containerPath: /}]}\n":             "mount",
		head + "{mounts: [{containerPath: /x}]}\n":                          "mount",
		head + "{mounts: [null]}\n":                                         "null",
		head + "{hooks: [{hookName: never, path: /x}]}\n":                   "hook",
		head + "{hooks: [{hookName: poststop, path: x}]}\n":                 "hook",
		head + "{hooks: [null]}\n":                                          "null",
		head + "{intelRdt: {closID: x}}\n":                                  "not supported",
		head + "{netDevices: [{hostInterfaceName: eth1, name: eth0}]}\n":    "not supported",
		head + "{netDevices: [null]}\n":                                     "not supported",
		head + "{future: 1}\n":                                              "future",
	} {
		expect.ErrorWith(t, expect.ErrorOf(parseCDI([]byte(text))), want, "%.120q", text)
	}
}

// What cannot be read among the files must not keep the others from being read.
func TestCDIFilesThatCannotBeRead(t *testing.T) {
	dirs := cdiRig(t, map[string]string{"gpu.json": cdiJSON, "long.yaml": strings.Repeat(" ", maxCDIFile+1)})
	check(t, unix.Mkfifo(filepath.Join(dirs[0], "a.json"), 0o600))
	expect.OK(t, addCDI(bare(specs.User{}), []string{"vendor.example/gpu=all"}, dirs))
	err := addCDI(bare(specs.User{}), []string{"vendor.example/gpu=7"}, dirs)
	for _, part := range []string{"a.json: not a regular file", "long.yaml has more than"} {
		expect.ErrorWith(t, err, part, "error")
	}
}

// What udev names is a link to the device.
func TestCDIDeviceBehindALink(t *testing.T) {
	link := filepath.Join(t.TempDir(), "camera")
	check(t, os.Symlink("/dev/null", link))
	dirs := cdiRig(t, map[string]string{"a.json": strings.ReplaceAll(cdiJSON, "/dev/null", link)})
	spec := bare(specs.User{})
	check(t, addCDI(spec, []string{"vendor.example/gpu=all"}, dirs))
	if got := spec.Linux.Devices[0]; got.Path != link || got.Major != 1 || got.Minor != 3 {
		t.Errorf("got %+v", got)
	}
}

func FuzzParseCDI(f *testing.F) {
	f.Add([]byte(cdiYAML))
	f.Add([]byte(cdiJSON))
	f.Add([]byte("cdiVersion: 0.6.0\nkind: a.b/c\ndevices: [{name: a, containerEdits: {deviceNodes: [null]}}]\n"))
	f.Add([]byte("cdiVersion: 0.6.0\nkind: &a a.b/c\ndevices: [*a]\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		parsed, err := parseCDI(text)
		if err != nil {
			return
		}
		registry := cdiRegistry{devices: make(map[string]*cdiDevice)}
		registry.add(parsed, "file")
		for name, device := range registry.devices {
			expect.Equal(t, device.twice, "", "%s is there twice", name)
			spec := bare(specs.User{})
			if err := applyCDI(device.edits, spec); err != nil {
				continue // a device that this machine lacks
			}
			for _, m := range spec.Mounts {
				expect.True(t, checkTarget(m.Destination) == nil, "mounts at %q", m.Destination)
			}
		}
	})
}

// runc takes a specification with a CDI device, and says nothing of it: what a container
// writes to its log must not be lost among what runc says.
func TestCDIDeviceInAContainer(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	busybox, err := exec.LookPath("busybox")
	if err == nil {
		_, err = exec.LookPath("runc")
	}
	if err != nil {
		t.Skip("needs runc and busybox:", err)
	}
	program := expect.Value(os.ReadFile(busybox))(t)
	dir := t.TempDir()
	root, mark, library := filepath.Join(dir, "rootfs"), filepath.Join(dir, "hook-ran"), filepath.Join(dir, "library")
	for _, below := range []string{"bin", "dev", "etc", "proc", "sys", "tmp"} {
		check(t, os.MkdirAll(filepath.Join(root, below), 0o755))
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
	const group = "/margolite-spec-test"
	const command = "b=/bin/busybox; echo $SENSOR; $b head -c 2 /dev/sensor | $b wc -c; $b cat /lib/sensor.so; $b id -G; $b stat -c %u:%g /dev/sensor"
	config := Config{Service: &compose.Service{Command: []string{"/bin/busybox", "sh", "-c", command}}}
	config.Labels.Sandbox.Hostname = "web"
	spec := expect.Value(newSpec(config, DetectHost(t.Context(), "runc"), placing{paths: &paths{}, user: specs.User{UID: 1000, GID: 1000}, cgroup: path.Join(group, "cdi")}))(t)
	check(t, addCDI(spec, []string{"vendor.example/sensor=zero"}, dirs))
	spec.Root.Path = root
	text, err := json.Marshal(spec)
	err = errors.Join(err, os.WriteFile(filepath.Join(root, "bin/busybox"), program, 0o755), os.WriteFile(library, []byte("content\n"), 0o644),
		os.WriteFile(filepath.Join(dir, "config.json"), text, 0o600))
	check(t, err)
	t.Cleanup(func() {
		_ = exec.Command("runc", "--root", filepath.Join(dir, "runc"), "delete", "--force", "cdi").Run() // it may never have been
		for _, dir := range cgroupDirs(group) {
			_ = os.Remove(dir)
		}
	})
	cmd := exec.CommandContext(t.Context(), "runc", "--root", filepath.Join(dir, "runc"), "run", "--bundle", dir, "cdi")
	cmd.WaitDelay = 10 * time.Second
	var out, said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &said
	err = cmd.Run()
	if want := "zero\n2\ncontent\n1000 77\n1000:1000\n"; err != nil || out.String() != want || said.Len() > 0 {
		t.Errorf("got %q, %v, want %q; said is %q", &out, err, want, &said)
	}
	expect.Error(t, expect.ErrorOf(os.Stat(mark)), nil, "hook")
}

var check = expect.Check
