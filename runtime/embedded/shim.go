package embedded

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

const shimName = "containerd-shim-runc-v2"

// FindShim returns the absolute path of the runc shim: beside this executable, in /usr/libexec/margolite, in
// /usr/lib/margolite, or in PATH, in this order.
func FindShim() (string, error) {
	dirs := []string{"/usr/libexec/margolite", "/usr/lib/margolite"}
	if self, err := os.Executable(); err == nil {
		dirs = append([]string{filepath.Dir(self)}, dirs...)
	}
	for _, dir := range dirs {
		path := filepath.Join(dir, shimName)
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return path, nil
		}
	}
	path, err := exec.LookPath(shimName)
	if err != nil {
		return "", fmt.Errorf("%w in %v or PATH", ErrNoShim, dirs)
	}
	return filepath.Abs(path)
}
