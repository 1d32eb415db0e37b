package syscalls_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"

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
	process, err := syscalls.OfProcess(os.Getpid(), "fsync", "pwrite64", "execve")
	if err != nil {
		t.Fatal(err)
	}
	defer process.Close()

	f, err := os.Create(filepath.Join(t.TempDir(), "file"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for range 3 {
		if err := f.Sync(); err != nil {
			t.Fatal(err)
		}
	}
	elsewhere := make(chan error)
	go func() {
		runtime.LockOSThread() // it ends with the goroutine, and its calls still count
		_, err := f.WriteAt([]byte("x"), 0)
		elsewhere <- err
	}()
	if err := <-elsewhere; err != nil {
		t.Fatal(err)
	}
	if err := exec.Command("/bin/true").Run(); err != nil {
		t.Fatal(err)
	}

	for _, c := range []struct {
		of   string
		c    *syscalls.Counter
		want []int64
	}{
		{"the thread", thread, []int64{3, 0}},
		{"the process", process, []int64{3, 1, 1}},
	} {
		got, err := c.c.Count()
		if err != nil {
			t.Fatal(err)
		}
		for i := range c.want {
			if got[i] != c.want[i] {
				t.Errorf("%s made %v calls, want %v", c.of, got, c.want)
				break
			}
		}
	}
}
