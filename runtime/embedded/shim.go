package embedded

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
)

const (
	shimName = "containerd-shim-runc-v2"
	initName = "margolite-init"
)

// FindShim returns the absolute path of the runc shim: in libexec/margolite next to the directory of this executable,
// beside the executable, in /usr/libexec/margolite, in /usr/lib/margolite, or in PATH, in this order. Beside it comes
// second: in /usr/bin that may be the shim of another containerd.
func FindShim() (string, error) {
	if path := FindOwnShim(); path != "" {
		return path, nil
	}
	path, err := exec.LookPath(shimName)
	if err != nil {
		return "", fmt.Errorf("%w in %v or PATH", ErrNoShim, programDirs())
	}
	return filepath.Abs(path)
}

// FindOwnShim is FindShim without PATH, where the shim of another containerd is. "" means that there is none.
func FindOwnShim() string { return findProgram(programDirs(), shimName) }

// FindInit returns the absolute path of margolite-init, process 1 of containers that ask for one: where the shim may be,
// save in PATH. "" means that there is none, which most devices never miss.
func FindInit() string { return findProgram(programDirs(), initName) }

// programDirs are where the programs that belong to this one may be.
func programDirs() []string {
	var dirs []string
	if self, err := os.Executable(); err == nil {
		own := filepath.Dir(self)
		dirs = append(dirs, filepath.Join(filepath.Dir(own), "libexec", "margolite"), own)
	}
	for _, dir := range []string{"/usr/libexec/margolite", "/usr/lib/margolite"} {
		if !slices.Contains(dirs, dir) {
			dirs = append(dirs, dir)
		}
	}
	return dirs
}

func findProgram(dirs []string, name string) string {
	for _, dir := range dirs {
		path := filepath.Join(dir, name)
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return path
		}
	}
	return ""
}
