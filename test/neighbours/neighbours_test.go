package neighbours

import (
	"os"
	"testing"

	"github.com/margolite/margolite/test/plant"
)

// long asks for hogs of full size, on all containerds, and for duties in time.
const long = "MARGOLITE_NEIGHBOURS_LONG"

func TestMain(m *testing.M) { os.Exit(plant.RunTests(m, build, nil)) }

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
			s := newSite(t, options{containerd: program, long: os.Getenv(long) != ""})
			s.settle()
			s.row(h, begin)
		})
	}
}
