package neighbours

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"

	"github.com/margolite/margolite/test/isolated"
	"github.com/margolite/margolite/test/plant"
)

const (
	// programsDir tells a process of tests where the programs are.
	programsDir = "MARGOLITE_TEST_PROGRAMS"
	// long asks for hogs of full size, on all containerds, and for duties in time.
	long = "MARGOLITE_NEIGHBOURS_LONG"
)

func TestMain(m *testing.M) { os.Exit(testsIn(m)) }

// testsIn builds the programs and runs the tests, which are in processes of their own.
func testsIn(m *testing.M) int {
	if os.Geteuid() != 0 {
		fmt.Println("these tests need root: containers are real")
		return 1
	}
	if isolated.Outside() && os.Getenv(programsDir) == "" {
		dir, err := os.MkdirTemp("", "margolite-neighbours-")
		if err == nil {
			defer os.RemoveAll(dir)
			err = errors.Join(build(context.Background(), dir), os.Setenv(programsDir, dir))
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "cannot build what the tests run:", err)
			return 1
		}
	}
	return isolated.MainInLanes(tests{m})
}

// tests are what runs in namespaces of its own, with what it needs there.
type tests struct{ *testing.M }

func (t tests) Run() int {
	if err := plant.MountShimDir(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return t.M.Run()
}

// beside carries out all duties beside a hog: on the embedded containerd, and also on
// Debian's in the long form or where the hog is for both.
func beside(t *testing.T, h hog, begin func(*site) started) {
	if testing.Short() && !h.short {
		t.Skip("in make test-all: the other hogs")
	}
	for backend, program := range map[string]string{"embedded": "", "debian": "/usr/bin/containerd"} {
		if program != "" && (testing.Short() || !h.debian && os.Getenv(long) == "") {
			continue
		}
		t.Run(backend, func(t *testing.T) {
			s := newSite(t, options{programs: os.Getenv(programsDir), containerd: program, long: os.Getenv(long) != ""})
			s.settle()
			s.row(h, begin)
		})
	}
}
