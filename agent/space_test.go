package agent_test

import (
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/margolite/margolite/runtime"
	"github.com/margolite/margolite/runtime/image"
	"github.com/margolite/margolite/test/expect"
)

// narrow is a device on which an update fits once enough is dropped.
type narrow struct {
	guarded
	lack    *image.NoSpaceError // nil: everything fits
	enough  func(kept []string) bool
	history []string // what was kept with each look that something had to go for, and what was staged
}

// newNarrow has two deployments that run, each with a revision before.
func newNarrow(t *testing.T) (*site, *narrow) {
	s := newSite(t)
	both := func(version uint64, revision string, told ...string) {
		s.publish(version, map[string]string{first: document(first, revision), second: document(second, revision)})
		s.hears(first, told...)
		s.hears(second, told...)
	}
	both(1, "0.9.0", installed...)
	both(2, "1.0.0", "pending@1", "installing@2", "installed@2")
	s.quiet()
	n := &narrow{lack: &image.NoSpaceError{Dir: t.TempDir(), Needed: 1 << 60, Images: []string{"app:2"}}, enough: func([]string) bool { return false }}
	var pruned int
	s.restart(func() { pruned = s.runtime.count("prune") })
	s.eventually("what the former agent left was looked for", func() bool { return s.runtime.count("prune") > pruned })
	s.runtime.set(func() { s.runtime.staging, s.runtime.pruned = n.stage, n.prune })
	return s, n
}

func (n *narrow) stage(revision string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.history = append(n.history, "stage "+revision)
	if n.lack == nil {
		return nil
	}
	return &runtime.Error{Code: runtime.NoSpace, Object: "app:2", Err: n.lack}
}

func (n *narrow) prune(keep runtime.Keep) []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	var kept []string
	for _, images := range keep.Images {
		kept = slices.AppendSeq(kept, maps.Keys(images))
	}
	slices.Sort(kept)
	kept = slices.Compact(kept)
	if n.lack == nil {
		return nil
	}
	n.history = append(n.history, strings.NewReplacer(first, "first", second, "second").Replace("keep "+strings.Join(kept, ", ")))
	if n.enough(kept) {
		n.lack.Needed, n.lack = 0, nil
	}
	return []string{"something"}
}

func (n *narrow) seen() []string {
	return read(&n.guarded, func() []string { return slices.Clone(n.history) })
}

// What a deployment could be brought back to makes room for its next revision,
// then what others could be; what runs never does. No more goes than has to.
func TestFormerRevisionsMakeRoom(t *testing.T) {
	const running = "1.0.0 of second, 1.0.0 of first"
	keeps := []string{"keep 0.9.0 of second, 0.9.0 of first, " + running, "keep 0.9.0 of second, " + running, "keep " + running}
	for name, c := range map[string]struct {
		drops int  // how many former revisions have to go until it fits
		stays bool // that of the other deployment
	}{
		"nothing needed goes first": {0, true},
		"its own":                   {1, true},
		"that of another":           {2, false},
		"all of them are too few":   {3, false},
	} {
		t.Run(name, func(t *testing.T) {
			s, n := newNarrow(t)
			n.set(func() {
				n.history = nil
				n.enough = func([]string) bool { n.lack.Needed--; return 1<<60-n.lack.Needed > int64(c.drops) }
			})
			s.publish(3, map[string]string{first: document(first, "2.0.0"), second: document(second, "1.0.0")})
			want := append([]string{"stage 2.0.0"}, keeps[:min(c.drops, 2)+1]...)
			want = append(want, "stage 2.0.0")
			if c.drops < 3 {
				s.hears(first, "pending@2", "installing@3", "installed@3")
			} else {
				s.hears(first, "pending@2", "failed@3")
			}
			got := n.seen()
			expect.Equal(t, got[:min(len(got), len(want))], want, "what was done")
			expect.Equal(t, s.deployment(second).Former != nil, c.stays, "the former revision of the other one stays")
			if c.drops == 3 {
				expect.Equal(t, s.record().Former, nil, "former revision")
				s.heardError(first, "STORAGE_FULL", "app:2")
				expect.Equal(t, slices.Contains(s.runtime.running(), first+"-main 1.0.0"), true, "what worked runs")
			}
		})
	}
}

// What did not fit comes by itself once there is space, whatever the back-off
// would be, and nothing is asked for in vain meanwhile.
func TestWhatDidNotFitComesOnceThereIsSpace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, n := newNarrow(t)
		s.publish(3, map[string]string{first: document(first, "2.0.0"), second: document(second, "1.0.0")})
		s.hears(first, "pending@2", "failed@3")
		n.set(func() {
			check(t, os.Remove(n.lack.Dir)) // where nothing is, nothing is known to be missing
			n.lack = nil
		})
		s.hears(first, "pending@3", "installing@3", "installed@3")
	})
}

// A change does not begin on a device that is full, and does by itself later.
func TestNothingIsBegunWithoutSpace(t *testing.T) {
	simulated(t, rarely, func(t *testing.T, s *site) {
		s.installed()
		s.quiet()
		s.runtime.fail("spare", runtime.NoSpace)
		begun, release := s.runtime.hold("spare")
		s.publish(2, map[string]string{first: document(first, "2.0.0")})
		<-begun
		begun, again := s.runtime.hold("spare")
		release()
		<-begun
		s.hears(first, "pending@1")
		s.untouched("1.0.0")
		s.runtime.fail("spare", "")
		again()
		s.hears(first, "installing@2", "installed@2")
	})
}
