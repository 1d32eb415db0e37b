package main

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/margolite/margolite/cmd/margolite/config"
	"github.com/margolite/margolite/test/expect"
)

// What workloads write to state.run is bounded by file systems that outlive the agent,
// follow its configuration, and go when the device is decommissioned.
func TestBoundedDirectories(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	cfg := config.Default()
	cfg.State.Run, cfg.Runtime.Logs.Total = t.TempDir(), 1<<20
	logs, locks := filepath.Join(cfg.State.Run, "logs"), filepath.Join(cfg.State.Run, "locks")
	t.Cleanup(func() {
		for _, dir := range []string{logs, locks} {
			_ = unix.Unmount(dir, unix.MNT_DETACH)
		}
	})
	size := func(dir string) int64 {
		t.Helper()
		var fs unix.Statfs_t
		check(t, unix.Statfs(dir, &fs))
		return int64(fs.Blocks) * int64(fs.Bsize)
	}

	check(t, boundDirs(cfg))
	file := filepath.Join(logs, "c-json.log")
	expect.Error(t, os.WriteFile(file, make([]byte, 2<<20), 0o600), unix.ENOSPC, "more than the total is written")
	check(t, os.WriteFile(file, []byte("kept"), 0o600))
	cfg.Runtime.Logs.Total = 3 << 20
	check(t, boundDirs(cfg)) // the next start of the agent
	expect.Equal(t, string(expect.Value(os.ReadFile(file))(t)), "kept", "after another start the file")
	expect.Equal(t, size(logs), 3<<20, "after another start the bytes of logs")
	if info, err := os.Stat(locks); err != nil || info.Mode() != os.ModeDir|os.ModeSticky|0o777 || size(locks) != 4<<20 {
		t.Errorf("locks: %v, %v, %d bytes", info, err, size(locks))
	}
	expect.OK(t, errors.Join(unboundDirs(cfg), unboundDirs(cfg), os.Remove(logs), os.Remove(locks)))

	// An agent that knew nothing of it has left files.
	file = filepath.Join(locks, "press")
	check(t, errors.Join(os.Mkdir(locks, 0o777), os.WriteFile(file, nil, 0o600)))
	check(t, boundDirs(cfg))
	expect.Error(t, expect.ErrorOf(os.Stat(file)), nil, "after an upgrade")

	cfg.Runtime.Logs.Dir = t.TempDir()
	check(t, errors.Join(unboundDirs(cfg), os.Remove(logs)))
	check(t, boundDirs(cfg))
	expect.Error(t, expect.ErrorOf(os.Stat(logs)), os.ErrNotExist, "with logs elsewhere")
}
