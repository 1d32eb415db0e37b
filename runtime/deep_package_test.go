package runtime_test

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/margolite/margolite/test/containerdtest"
)

// Workloads write where their package was extracted: a tree there that is deeper than there are descriptors is removed.
func TestADeepPackageIsRemoved(t *testing.T) {
	if testing.Short() {
		t.Skip("in make test-all: thousands of directories")
	}
	var was unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
		t.Fatal(err)
	}
	few := was
	few.Cur = 1024
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &few); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
			t.Error(err)
		}
	}()
	r := newRig(t, containerdtest.Backends()[0])
	e := r.engine()
	p := r.load(e, "deep", "services: {a: {image: BUSYBOX, command: [sleep, '1000']}}")
	containerdtest.Deepen(t, p.Directory, 3000)
	if err := e.Remove(containerdtest.Context(t), "deep"); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(p.Directory); !os.IsNotExist(err) {
		t.Errorf("it is left: %v", err)
	}
}
