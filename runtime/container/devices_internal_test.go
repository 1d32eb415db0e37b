package container

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/margolite/margolite/runtime/compose"
	"github.com/margolite/margolite/test/expect"
)

// completed is the specification of a service with the devices of this machine.
func completed(t *testing.T, s compose.Service, u specs.User) (*specs.Spec, error) {
	t.Helper()
	spec, err := build(t, s, shell, Host{}, u)
	if err != nil {
		return nil, err
	}
	return spec, complete(spec, devicesOf(&s))
}

func TestDevices(t *testing.T) {
	link := filepath.Join(t.TempDir(), "by-id")
	check(t, os.Symlink("/dev/zero", link))
	spec := expect.Value(completed(t, compose.Service{
		Devices: []compose.Device{
			{Path: "/dev/null", Target: "/dev/nothing", Permissions: "r"},
			{Path: link, Target: "/dev/sensor", Permissions: "rw"},
			{Path: "/dev/full", Target: "/dev/nothing"}, // the last one wins
		},
		DeviceRules: []string{"c 188:* rwm", "b *:* r", "a 7:7 m"},
	}, specs.User{}))(t)
	expect.Require(t, len(spec.Linux.Devices) == 2, "devices are %+v", spec.Linux.Devices)
	sensor, nothing := spec.Linux.Devices[0], spec.Linux.Devices[1]
	if sensor.Path != "/dev/sensor" || sensor.Type != "c" || sensor.Major != 1 || sensor.Minor != 5 || sensor.FileMode.Perm() != 0o666 {
		t.Errorf("sensor is %+v", sensor)
	}
	expect.True(t, nothing.Path == "/dev/nothing" && nothing.Minor == 7, "nothing is %+v", nothing)
	got := describeRules(spec.Linux.Resources.Devices[1+len(deviceRules):])
	want := []string{"c 188:* rwm", "b *:* r", "a 7:7 m", "c 1:3 r", "c 1:5 rw", "c 1:7 rwm"}
	expect.Equal(t, got, want, "rules")
	if first := spec.Linux.Resources.Devices[0]; first.Allow || first.Access != "rwm" || first.Major != nil {
		t.Errorf("devices are not denied first: %+v", first)
	}
	if everybody := rules(&compose.Service{}); len(everybody) != 10 || describeRules(everybody)[9] != "c 136:* rwm" {
		t.Errorf("the rules of everybody changed: %q", describeRules(everybody))
	}
}

func describeRules(list []specs.LinuxDeviceCgroup) []string {
	number := func(n *int64) string {
		if n == nil {
			return "*"
		}
		return strconv.FormatInt(*n, 10)
	}
	var all []string
	for _, r := range list {
		all = append(all, r.Type+" "+number(r.Major)+":"+number(r.Minor)+" "+r.Access)
	}
	return all
}

func TestDeviceDirectories(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	dir := t.TempDir()
	check(t, os.Mkdir(filepath.Join(dir, "sub"), 0o755))
	for n, name := range []string{"a", "sub/b"} {
		if err := unix.Mknod(filepath.Join(dir, name), unix.S_IFCHR|0o600, int(unix.Mkdev(240, uint32(n)))); err != nil {
			t.Skip("needs mknod:", err)
		}
	}
	check(t, os.WriteFile(filepath.Join(dir, "file"), nil, 0o600))
	spec := expect.Value(completed(t, compose.Service{Devices: []compose.Device{{Path: dir, Target: "/dev/all", Permissions: "rw"}}}, specs.User{}))(t)
	var got []string
	for _, d := range spec.Linux.Devices {
		got = append(got, d.Path)
	}
	expect.Equal(t, got, []string{"/dev/all/a", "/dev/all/sub/b"}, "devices")
	expect.Equal(t, describeRules(spec.Linux.Resources.Devices[1+len(deviceRules):]), []string{"c 240:0 rw", "c 240:1 rw"}, "rules")
}

func TestDevicesThatMakeNoSense(t *testing.T) {
	empty := t.TempDir()
	for name, test := range map[string]struct {
		service compose.Service
		err     string
	}{
		"one that is not there":    {compose.Service{Devices: []compose.Device{{Path: "/dev/nowhere", Target: "/dev/x"}}}, "/dev/nowhere"},
		"a file":                   {compose.Service{Devices: []compose.Device{{Path: "/etc/passwd", Target: "/dev/x"}}}, "not a device node"},
		"a directory without any":  {compose.Service{Devices: []compose.Device{{Path: empty, Target: "/dev/x"}}}, "not a device node"},
		"a target that is no path": {compose.Service{Devices: []compose.Device{{Path: "/dev/null", Target: "x"}}}, "not a path"},
		"a CDI device":             {compose.Service{CDI: []string{"vendor.example/none=0"}}, "vendor.example/none=0 is not defined"},
	} {
		t.Run(name, func(t *testing.T) {
			expect.ErrorWith(t, expect.ErrorOf(completed(t, test.service, specs.User{})), test.err, "error")
		})
	}
}

func TestPrivilegedHaveAllDevices(t *testing.T) {
	spec := expect.Value(completed(t, compose.Service{Privileged: true, Devices: []compose.Device{{Path: "/dev/null", Target: "/dev/extra"}}}, specs.User{}))(t)
	var paths []string
	for _, d := range spec.Linux.Devices {
		paths = append(paths, d.Path)
		if strings.HasPrefix(d.Path, "/dev/pts/") || strings.HasPrefix(d.Path, "/dev/shm/") {
			t.Errorf("%s is not the machine's", d.Path)
		}
	}
	if !slices.Contains(paths, "/dev/kmsg") && !slices.Contains(paths, "/dev/null") || !slices.Contains(paths, "/dev/extra") {
		t.Errorf("devices are %q", paths)
	}
	expect.Equal(t, len(spec.Linux.Resources.Devices), 1, "rules are %+v", spec.Linux.Resources.Devices)
}
