package runtime_test

import (
	"testing"

	"github.com/margolite/margolite/runtime"
	"github.com/margolite/margolite/test/containerdtest"
	"github.com/margolite/margolite/test/expect"
)

// A device without runc may get it back, so that trying again helps; a container without its program may not.
func TestAMissingRuncIsTheFaultOfTheDevice(t *testing.T) {
	r := newRig(t, embeddedBackend())
	e := r.engine()
	for name, c := range map[string]struct {
		path, command string
		code          runtime.Code
	}{
		"runc is missing":        {"/nowhere", "sleep", runtime.Internal},
		"the program is missing": {"", "runc", runtime.StartFailed},
	} {
		t.Run(name, func(t *testing.T) {
			if c.path != "" {
				t.Setenv("PATH", c.path)
			}
			p := r.load(e, "missing", "services: {a: {image: BUSYBOX, command: ["+c.command+", '1000']}}")
			r.refused(e, p, c.code, "executable file not found")
			expect.Check(t, e.Remove(containerdtest.Context(t), "missing"))
		})
	}
}
