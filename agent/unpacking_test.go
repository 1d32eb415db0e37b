package agent_test

import (
	"os"
	"slices"
	"sync"
	"testing"
	"time"
)

// killedWhileUnpacking lets the agent be killed while it unpacks the images of a
// revision, once for each of these numbers of layers that are left.
func killedWhileUnpacking(t *testing.T, layers ...int) *site {
	t.Helper()
	var mu sync.Mutex
	var medium []byte // when the agent was killed
	var left int
	unpacking := make(chan struct{}, 1)
	s := newSite(t, func(s *site) {
		s.onCommit = func(verb string) {
			if verb != "unpacking" {
				return
			}
			mu.Lock()
			defer mu.Unlock()
			medium, _ = os.ReadFile(s.database())
		}
		s.runtime.unpacks = func(progress func(int)) {
			mu.Lock()
			n := left
			mu.Unlock()
			progress(n)
			unpacking <- struct{}{}
		}
	})
	s.runtime.block("stage 1.0.0")
	left = layers[0]
	s.wfm.publish(1, map[string]string{first: document(first, "1.0.0")})
	s.sync()
	for n := range layers {
		select {
		case <-unpacking:
		case <-time.After(patience):
			t.Fatalf("nothing is unpacked before kill %d", n+1)
		}
		s.stop()
		killed := t.TempDir()
		mu.Lock()
		check(t, os.CopyFS(killed, os.DirFS(s.dir)))
		s.dir = killed
		check(t, os.WriteFile(s.database(), medium, 0o600))
		if n+1 < len(layers) {
			left = layers[n+1]
			s.runtime.block("stage 1.0.0")
		}
		mu.Unlock()
		s.start()
	}
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

// Power cuts while something is unpacked do no harm as long as it gets on. What the
// WFM took just before one may be told again: the device did not come to note it.
func TestPowerCutsWhileUnpackingDoNoHarm(t *testing.T) {
	s := killedWhileUnpacking(t, 5, 5, 4, 4, 3, 2)
	want := []string{"pending@1", "installing@1", "installed@1"}
	s.eventually("the WFM hears of it", func() bool {
		got, _ := s.wfm.heard(first)
		return slices.Equal(slices.Compact(got), want)
	})
}
