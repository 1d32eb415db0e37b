package embedded_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/margolite/margolite/runtime/embedded"
)

func TestFindShimLooksInPathLast(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("PATH", dir)
	if _, err := embedded.FindShim(); !errors.Is(err, embedded.ErrNoShim) {
		t.Errorf("without a shim: %v", err)
	}
	path := filepath.Join(dir, "containerd-shim-runc-v2")
	if err := os.WriteFile(path, nil, 0o755); err != nil {
		t.Fatal(err)
	}
	if got, err := embedded.FindShim(); got != path || err != nil {
		t.Errorf("in PATH: %q, %v", got, err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	beside := filepath.Join(filepath.Dir(self), "containerd-shim-runc-v2")
	if err := os.WriteFile(beside, nil, 0o755); err != nil {
		t.Fatal(err)
	}
	defer os.Remove(beside)
	if got, err := embedded.FindShim(); got != beside || err != nil {
		t.Errorf("beside the program: %q, %v", got, err)
	}
}

func TestFindInitIsBesideTheProgram(t *testing.T) {
	if got := embedded.FindInit(); got != "" {
		t.Skipf("there is one on this machine: %s", got)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	beside := filepath.Join(filepath.Dir(self), "margolite-init")
	if err := os.WriteFile(beside, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	defer os.Remove(beside)
	if got := embedded.FindInit(); got != "" {
		t.Errorf("a file that is no program: %q", got)
	}
	if err := os.Chmod(beside, 0o755); err != nil {
		t.Fatal(err)
	}
	if got := embedded.FindInit(); got != beside {
		t.Errorf("beside the program: %q", got)
	}
}
