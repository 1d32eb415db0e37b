package tree_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/margolite/margolite/runtime/tree"
	"github.com/margolite/margolite/test/expect"
	"github.com/margolite/margolite/test/isolated"
)

func TestMain(m *testing.M) { os.Exit(isolated.MainInLanes(m)) }

// deepen makes so many directories in one another below dir, with a file in the last one, and returns how many bytes of the
// medium they take.
func deepen(t *testing.T, dir string, levels int) (bytes int64) {
	t.Helper()
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	for n := 0; n < levels && err == nil; n++ {
		var below int
		if err = unix.Mkdirat(fd, "directory", 0o755); err == nil {
			below, err = unix.Openat(fd, "directory", unix.O_RDONLY|unix.O_DIRECTORY, 0)
		}
		_ = unix.Close(fd)
		fd = below
		var stat unix.Stat_t
		if err == nil && unix.Fstat(fd, &stat) == nil {
			bytes += stat.Blocks * 512
		}
	}
	if err == nil {
		var file int
		if file, err = unix.Openat(fd, "file", unix.O_CREAT|unix.O_WRONLY, 0o600); err == nil {
			_, err = unix.Write(file, make([]byte, 4096))
			_ = unix.Fsync(file)
			var stat unix.Stat_t
			_ = unix.Fstat(file, &stat)
			bytes += stat.Blocks * 512
			_ = unix.Close(file)
		}
	}
	check(t, err)
	_ = unix.Close(fd)
	return bytes
}

// fewDescriptors leaves the process a few descriptors while a test runs.
func fewDescriptors(t *testing.T) {
	t.Helper()
	open := expect.Value(os.ReadDir("/proc/self/fd"))(t)
	var was unix.Rlimit
	check(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &was))
	few := was
	few.Cur = uint64(len(open) + 8)
	check(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &few))
	t.Cleanup(func() {
		expect.OK(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &was))
	})
}

func blocks(t *testing.T, path string) int64 {
	t.Helper()
	var stat unix.Stat_t
	check(t, unix.Lstat(path, &stat))
	return stat.Blocks * 512
}

func TestDirectoriesDeeperThanAPath(t *testing.T) {
	fewDescriptors(t)
	for _, levels := range []int{1, 6000} {
		t.Run(fmt.Sprint(levels), func(t *testing.T) {
			root := filepath.Join(t.TempDir(), "root")
			check(t, os.Mkdir(root, 0o755))
			want := deepen(t, root, levels) + blocks(t, root)
			expect.Equal(t, expect.Value(tree.Size(t.Context(), root))(t), want, "size")
			for _, than := range []int{0, levels - 1, levels, levels + 1} {
				expect.Equal(t, expect.Value(tree.IsDeeper(t.Context(), root, than))(t), levels > than, "deeper than %d", than)
			}
			expect.OK(t, tree.Remove(t.Context(), root))
			expect.Error(t, expect.ErrorOf(os.Lstat(root)), os.ErrNotExist, "it is left")
		})
	}
}

// Each directory has files, and several directories below.
func TestATree(t *testing.T) {
	root := filepath.Join(t.TempDir(), "root")
	var want int64
	var fill func(dir string, levels int)
	fill = func(dir string, levels int) {
		check(t, os.Mkdir(dir, 0o755))
		for n := range 5 {
			check(t, os.WriteFile(filepath.Join(dir, fmt.Sprint(".lifted-", n)), make([]byte, n*1000), 0o600))
		}
		for n := range 4 {
			if levels > 0 {
				fill(filepath.Join(dir, fmt.Sprint("directory", n)), levels-1)
			}
		}
	}
	fill(root, 4)
	unix.Sync()
	err := filepath.Walk(root, func(path string, _ os.FileInfo, err error) error {
		want += blocks(t, path)
		return err
	})
	check(t, err)
	expect.Equal(t, expect.Value(tree.Size(t.Context(), root))(t), want, "size")
	over, cancel := context.WithCancel(t.Context())
	cancel()
	expect.Error(t, tree.Remove(over, root), context.Canceled, "removed after the end")
	expect.Error(t, expect.ErrorOf(tree.Size(over, root)), context.Canceled, "measured after the end")
	expect.OK(t, tree.Empty(t.Context(), root))
	expect.Equal(t, len(expect.Value(os.ReadDir(root))(t)), 0, "entries left")
	expect.OK(t, errors.Join(tree.Remove(t.Context(), root), tree.Remove(t.Context(), root)))
}

func TestManyFilesTakeLittleMemory(t *testing.T) {
	const files, most = 30_000, 4 << 20
	root := filepath.Join(t.TempDir(), "root")
	check(t, os.Mkdir(root, 0o755))
	for n := range files {
		f := expect.Value(os.Create(filepath.Join(root, fmt.Sprint("a file with a name that is rather long, so that it takes memory ", n))))(t)
		f.Close()
	}
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	_, sizeErr := tree.Size(t.Context(), root)
	runtime.GC()
	runtime.ReadMemStats(&after)
	if sizeErr != nil || after.HeapSys > before.HeapSys+most {
		t.Errorf("measuring took %d bytes: %v", after.HeapSys-before.HeapSys, sizeErr)
	}
	expect.OK(t, tree.Remove(t.Context(), root))
	runtime.ReadMemStats(&after)
	expect.True(t, after.HeapSys <= before.HeapSys+most, "removing took %d bytes", after.HeapSys-before.HeapSys)
}

// What a tree leads to elsewhere, by a symlink or a mount, stays, and the rest goes.
func TestNothingElsewhereIsTouched(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	dir := t.TempDir()
	root, other := filepath.Join(dir, "root"), filepath.Join(dir, "other")
	for _, d := range []string{root, other, filepath.Join(root, "a"), filepath.Join(root, "a", "mounted"), filepath.Join(root, "b")} {
		check(t, os.Mkdir(d, 0o755))
	}
	kept := filepath.Join(other, "kept")
	check(t, os.WriteFile(kept, make([]byte, 1<<20), 0o600))
	for _, link := range []string{"link", "a/link", "b/link"} {
		check(t, os.Symlink(other, filepath.Join(root, link)))
	}
	mounted := filepath.Join(root, "a", "mounted")
	check(t, unix.Mount(other, mounted, "", unix.MS_BIND, ""))
	t.Cleanup(func() { _ = unix.Unmount(mounted, unix.MNT_DETACH) })
	if size, err := tree.Size(t.Context(), root); err != nil || size >= 1<<20 {
		t.Errorf("size %d, %v", size, err)
	}
	if err := tree.Remove(t.Context(), root); !errors.Is(err, unix.EXDEV) && !errors.Is(err, unix.EBUSY) {
		t.Errorf("removed what is mounted: %v", err)
	}
	expect.OK(t, expect.ErrorOf(os.Stat(kept)))
	expect.Error(t, expect.ErrorOf(os.Lstat(filepath.Join(root, "b"))), os.ErrNotExist, "b is left")
	matches, _ := filepath.Glob(filepath.Join(root, "*", "mounted"))
	matches2, _ := filepath.Glob(filepath.Join(root, "mounted"))
	for _, at := range append(matches, matches2...) {
		_ = unix.Unmount(at, unix.MNT_DETACH)
	}
	expect.OK(t, tree.Remove(t.Context(), root))
	expect.OK(t, expect.ErrorOf(os.Stat(kept)))
	link := filepath.Join(dir, "to-other")
	check(t, os.Symlink(other, link))
	expect.OK(t, errors.Join(tree.Remove(t.Context(), link)))
	expect.OK(t, expect.ErrorOf(os.Stat(kept)))
}

var check = expect.Check

// A FIFO would hold up whoever opens it, and a device may do something.
func TestOnlyRegularFilesAreRead(t *testing.T) {
	dir := t.TempDir()
	file, pipe := filepath.Join(dir, "file"), filepath.Join(dir, "pipe")
	check(t, errors.Join(os.WriteFile(file, []byte("text"), 0o600), unix.Mkfifo(pipe, 0o600)))
	expect.Equal(t, string(expect.Value(tree.ReadFile(file, 4))(t)), "text", "the file has")
	expect.ErrorWith(t, expect.ErrorOf(tree.ReadFile(file, 3)), file+" has more than 3 bytes", "a file that is too large")
	for _, path := range []string{pipe, dir, "/dev/null"} {
		expect.ErrorWith(t, expect.ErrorOf(tree.ReadFile(path, 4)), path+": not a regular file", "reading it")
	}
}
