package container

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"testing"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/margolite/margolite/runtime/compose"
)

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
	program, err := os.ReadFile(busybox)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	root, mark, library := filepath.Join(dir, "rootfs"), filepath.Join(dir, "hook-ran"), filepath.Join(dir, "library")
	for _, below := range []string{"bin", "dev", "etc", "proc", "sys", "tmp"} {
		if err := os.MkdirAll(filepath.Join(root, below), 0o755); err != nil {
			t.Fatal(err)
		}
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
	spec, err := newSpec(config, DetectHost(t.Context(), "runc"), placing{user: specs.User{UID: 1000, GID: 1000}, cgroup: path.Join(group, "cdi")})
	if err != nil {
		t.Fatal(err)
	}
	if err := addCDI(spec, []string{"vendor.example/sensor=zero"}, dirs); err != nil {
		t.Fatal(err)
	}
	spec.Root.Path = root
	text, err := json.Marshal(spec)
	err = errors.Join(err, os.WriteFile(filepath.Join(root, "bin/busybox"), program, 0o755), os.WriteFile(library, []byte("content\n"), 0o644),
		os.WriteFile(filepath.Join(dir, "config.json"), text, 0o600))
	if err != nil {
		t.Fatal(err)
	}
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
	if _, err := os.Stat(mark); err != nil {
		t.Errorf("hook: %v", err)
	}
}
