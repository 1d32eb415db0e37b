package container

import (
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
)

// A process in a container may call itself a shim, but is not taken for one.
func TestAProcessOfAContainerIsNoShim(t *testing.T) {
	sleep, err := exec.LookPath("sleep")
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(sleep)
	if err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(t.TempDir(), shimProcess) // which is what the kernel calls it
	if err := os.WriteFile(program, text, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, flags := range map[string]uintptr{"a shim": 0, "a process of a container": syscall.CLONE_NEWPID} {
		process := exec.Command(program, "1000")
		process.SysProcAttr = &syscall.SysProcAttr{Cloneflags: flags}
		if err := process.Start(); err != nil {
			t.Fatal(err)
		}
		if got, want := isShim(process.Process.Pid), flags == 0; got != want {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
		_ = process.Process.Kill()
		_ = process.Wait()
	}
}
