package syscalls_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/margolite/margolite/test/expect"
	"github.com/margolite/margolite/test/syscalls"
)

func TestCallsAreCountedExactly(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	thread, err := syscalls.OfThread("fsync", "pwrite64")
	if err != nil {
		t.Skip("needs tracepoints of system calls:", err)
	}
	defer thread.Close()
	process := expect.Value(syscalls.OfProcess(os.Getpid(), "fsync", "pwrite64", "execve"))(t)
	defer process.Close()

	f := expect.Value(os.Create(filepath.Join(t.TempDir(), "file")))(t)
	defer f.Close()
	for range 3 {
		expect.Check(t, f.Sync())
	}
	elsewhere := make(chan error)
	go func() {
		runtime.LockOSThread() // it ends with the goroutine, and its calls still count
		_, err := f.WriteAt([]byte("x"), 0)
		elsewhere <- err
	}()
	expect.Check(t, <-elsewhere)
	expect.Check(t, exec.Command("/bin/true").Run())

	for _, c := range []struct {
		of   string
		c    *syscalls.Counter
		want []int64
	}{
		{"the thread", thread, []int64{3, 0}},
		{"the process", process, []int64{3, 1, 1}},
	} {
		got := expect.Value(c.c.Count())(t)
		for i := range c.want {
			if got[i] != c.want[i] {
				t.Errorf("%s made %v calls, want %v", c.of, got, c.want)
				break
			}
		}
	}
}
