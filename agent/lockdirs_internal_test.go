package agent

import (
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

const (
	goneID  = "ad9b614e-8912-45f4-a523-372358765d01"
	keptID  = "ad9b614e-8912-45f4-a523-372358765d02"
	aliveID = "ad9b614e-8912-45f4-a523-372358765d03"
)

// entries are the names in a directory.
func entries(t *testing.T, dir string) (names []string) {
	t.Helper()
	all, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	for _, e := range all {
		names = append(names, e.Name())
	}
	return names
}

// What a workload has put into its directory is removed with it, whatever it is (see
// package runtime/tree).
func TestADirectoryOfLockFilesIsRemoved(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("none", dir, "tmpfs", 0, ""); err == nil { // a file system of its own, as on a device
		t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	}
	l := newLockFiles(dir, slog.New(slog.NewTextHandler(t.Output(), nil)))
	l.prepare([]string{goneID, keptID})
	check(t, os.WriteFile(filepath.Join(l.dir, goneID, "mixer"), nil, 0o600))
	l.remove(t.Context(), goneID)
	l.remove(t.Context(), goneID) // there is nothing
	if got := entries(t, l.dir); !slices.Equal(got, []string{keptID}) {
		t.Errorf("the directories are %v", got)
	}
}

// At the start what is left of former deployments goes; what is recorded, runs, or
// is no deployment's stays.
func TestOrphanedDirectoriesOfLockFilesAreRemoved(t *testing.T) {
	l := newLockFiles(filepath.Join(t.TempDir(), "locks"), slog.New(slog.NewTextHandler(t.Output(), nil)))
	l.prepare([]string{goneID, keptID, aliveID, "mixers"})
	if err := os.MkdirAll(filepath.Join(l.dir, removedPrefix+"7", "0", "a", "b"), 0o700); err != nil { // the process was killed
		t.Fatal(err)
	}
	unreadable := errors.New("a record cannot be read")
	if err := l.removeOrphans(t.Context(), nil, func() ([]string, error) { return nil, unreadable }); !errors.Is(err, unreadable) {
		t.Error(err)
	}
	if got := entries(t, l.dir); len(got) != 5 {
		t.Errorf("the directories are %v although it is not known who is gone", got)
	}
	check(t, l.removeOrphans(t.Context(), []string{"", aliveID}, func() ([]string, error) { return []string{keptID}, nil }))
	if got, want := entries(t, l.dir), []string{keptID, aliveID, "mixers"}; !slices.Equal(got, want) {
		t.Errorf("the directories are %v, want %v", got, want)
	}
}
