package embedded

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

const (
	shimName = "containerd-shim-runc-v2"
	initName = "margolite-init"
)

const (
	leastMajor, leastMinor = 2, 3 // of containerd: older shims cannot read the parameters they are started with

	// ownRevision is the revision of this repository's shim.
	ownRevision = "margolite"

	shimPatience = 15 * time.Second // for a program to say its version
	maxVersion   = 4 << 10          // of what it says, in bytes
)

// Shim is a usable runc shim.
type Shim struct {
	Path string // absolute
	Own  bool   // it is that of this repository, which keeps what containers print
}

// FindShim returns the first runc shim of containerd 2.3 or later in: libexec/margolite next to the
// directory of this executable, the executable's directory, /usr/libexec/margolite,
// /usr/lib/margolite, PATH. It runs each with -v for its version.
func FindShim(ctx context.Context) (Shim, error) {
	var looked []os.FileInfo
	var passed []string
	for _, dir := range slices.Concat(programDirs(), filepath.SplitList(os.Getenv("PATH"))) {
		path := filepath.Join(dir, shimName)
		info := executable(path)
		again := func(other os.FileInfo) bool { return os.SameFile(info, other) } // /bin is /usr/bin
		if info == nil || !filepath.IsAbs(path) || slices.ContainsFunc(looked, again) {
			continue
		}
		looked = append(looked, info)
		said, err := askVersion(ctx, path, "-v")
		if err != nil {
			passed = append(passed, path+", which "+err.Error())
			continue
		}
		version, own := readVersion(said)
		if isEnough(version) {
			return Shim{path, own}, nil
		}
		passed = append(passed, path+", containerd "+cmp.Or(version, "of unknown version"))
	}
	self, _ := os.Executable() // "" would mean no more than another text
	text := fmt.Sprintf("no %s of version %d.%d or later beside %s, in /usr/libexec/margolite or on PATH", shimName, leastMajor, leastMinor, self)
	if len(passed) > 0 {
		text += " (rejected: " + strings.Join(passed, "; ") + ")"
	}
	return Shim{}, errors.New(text)
}

func askVersion(ctx context.Context, path, flag string) (said []byte, err error) {
	ctx, cancel := context.WithTimeout(ctx, shimPatience)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, flag)
	r, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return nil, fmt.Errorf("does not run: %w", err)
	}
	defer context.AfterFunc(ctx, func() { _ = r.Close() })()   // a child of it may keep the other end open
	said, readErr := io.ReadAll(io.LimitReader(r, maxVersion)) // the rest breaks its pipe
	_ = r.Close()
	if err := cmp.Or(cmd.Wait(), readErr); err != nil {
		return nil, fmt.Errorf("does not report its version: %w", cmp.Or(ctx.Err(), err))
	}
	return said, nil
}

func readVersion(said []byte) (version string, own bool) {
	for line := range strings.Lines(string(said)) {
		name, value, _ := strings.Cut(line, ":")
		switch value = strings.TrimSpace(value); strings.TrimSpace(name) {
		case "Version":
			version = value
		case "Revision":
			own = value == ownRevision
		}
	}
	return version, own
}

// isEnough tells whether a version such as 2.4.2+unknown or v2.3.0-rc.1 is new enough.
func isEnough(version string) bool {
	major, rest, _ := strings.Cut(strings.TrimPrefix(version, "v"), ".")
	minor, _, _ := strings.Cut(rest, ".")
	a, errA := strconv.Atoi(major)
	b, errB := strconv.Atoi(minor)
	return errA == nil && errB == nil && (a > leastMajor || a == leastMajor && b >= leastMinor)
}

type shims struct {
	mu    sync.Mutex
	found Shim
}

// path looks for a shim if none was found or it is gone: an upgrade may have moved it.
func (s *shims) path(ctx context.Context) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if executable(s.found.Path) != nil {
		return s.found.Path, nil
	}
	found, err := FindShim(ctx)
	if err != nil {
		return "", err
	}
	s.found = found
	return found.Path, nil
}

// FindInit returns the absolute path of margolite-init, an optional process 1 of containers, from
// where the shim may be except PATH; "": it is missing, which matters to few devices.
func FindInit() string {
	for _, dir := range programDirs() {
		if path := filepath.Join(dir, initName); executable(path) != nil {
			return path
		}
	}
	return ""
}

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

func executable(path string) os.FileInfo {
	info, err := os.Stat(path)
	if err != nil || !info.Mode().IsRegular() || info.Mode()&0o111 == 0 {
		return nil
	}
	return info
}
