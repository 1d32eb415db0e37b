package agent_test

import (
	"os"
	"testing"

	"github.com/margolite/margolite/test/expect"
)

// killedWhileUnpacking lets the agent be killed while it unpacks the images of a
// revision, once for each of these numbers of layers that are left.
func killedWhileUnpacking(t *testing.T, layers ...int) *site {
	t.Helper()
	s := newSite(t)
	for n, left := range layers {
		s.runtime.set(func() { s.runtime.unpacks = func(progress func(int)) { progress(left) } })
		begun := s.runtime.block("stage 1.0.0")
		if n == 0 {
			s.publish(1, map[string]string{first: document(first, "1.0.0")})
		} else {
			s.start()
		}
		<-begun
		s.quiet()
		medium := expect.Value(os.ReadFile(s.database()))(t)
		s.stop()
		check(t, os.WriteFile(s.database(), medium, 0o600))
	}
	s.start()
	return s
}

// A revision of which the agent does not survive unpacking the images is given up.
func TestARevisionThatCannotBeUnpackedIsGivenUp(t *testing.T) {
	s := killedWhileUnpacking(t, 3, 3, 3)
	s.eventually("it is given up", func() bool {
		last := s.wfm.last(first)
		return last.Error != nil && last.Error.Code == "INTERRUPTED"
	})
}

// Power cuts while something is unpacked do no harm as long as it gets on.
func TestPowerCutsWhileUnpackingDoNoHarm(t *testing.T) {
	s := killedWhileUnpacking(t, 5, 5, 4, 4, 3, 2)
	s.heard(first, installed...)
}
