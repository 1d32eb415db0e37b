package agent_test

import (
	"maps"
	"os"
	"slices"
	"testing"

	"github.com/margolite/margolite/test/expect"
	"github.com/margolite/margolite/test/syscalls"
)

// An update writes to the medium what has to survive the next power cut, and no
// more often: each transaction of the store waits for the medium twice, three
// times where something is noted in the journal, and a manifest twice more for the
// file beside. Reports that are heard together go together.
func TestAnUpdateWritesAsOftenAsItHasTo(t *testing.T) {
	var commits guarded
	verbs := map[string]int{}
	s := newSite(t, func(s *site) {
		s.onCommit = func(verb string) { commits.set(func() { verbs[verb]++ }) }
	})
	s.installed()
	s.publish(2, map[string]string{first: document(first, "2.0.0")}) // there is a revision to go back to from now on
	s.heard(first, "pending@1", "installing@1", "installed@1", "pending@1", "installing@2", "installed@2")
	s.quiet()

	commits.set(func() { clear(verbs) })
	syncs, err := syscalls.OfProcess(os.Getpid(), syscalls.Syncs()...)
	if err == nil {
		defer syncs.Close()
	}
	s.updates(3, "3.0.0", "pending@1", "installing@1", "installed@1", "pending@1", "installing@2", "installed@2", "pending@2", "installing@3", "installed@3")
	s.quiet()
	s.eventually("what nobody needs is gone", func() bool {
		return read(&commits, func() int { return verbs["prune artifacts"] }) > 0
	})

	commits.mu.Lock()
	defer commits.mu.Unlock()
	most := map[string]int{"accept manifest": 1, "staged": 1, "go": 1, "works": 1, "prune artifacts": 1, "acknowledge reports": 3}
	for _, verb := range slices.Sorted(maps.Keys(verbs)) {
		within(t, verbs[verb], 0, most[verb], "commits of %q", verb)
	}
	if syncs == nil {
		t.Log("syncs are not counted:", err)
		return
	}
	counts := expect.Value(syncs.Count())(t)
	sum := int64(0)
	for _, n := range counts {
		sum += n
	}
	t.Logf("%d syncs, commits: %v", sum, verbs)
	expect.True(t, sum <= 2*8+3+2, "an update waits for the medium %d times", sum) // of eight transactions three are noted
}

// A container that ends has only its own deployment looked at, and nothing loaded
// as long as the containers are those that were made.
func TestAnEventLoadsNothing(t *testing.T) {
	const deployments = 16
	s := newSite(t)
	project := func(n int) string { return numbered(n) + "-main" }
	s.publish(1, many(deployments, "1.0.0"))
	for n := range deployments {
		s.heard(numbered(n), installed...)
	}
	looked := func(n int) {
		t.Helper()
		before := s.runtime.count("intact " + project(n))
		s.runtime.end(project(n))
		s.runtime.poke()
		s.eventually("the deployment whose container ended is checked", func() bool { return s.runtime.count("intact "+project(n)) > before })
	}
	for n := range deployments { // each worker has come to rest, and knows that its revision is whole
		looked(n)
	}
	loads, observed, whole := s.runtime.sum("load"), s.runtime.sum("observe"), s.runtime.sum("intact")
	for range 3 {
		looked(7)
	}
	expect.Equal(t, s.runtime.sum("load")-loads, 0, "loads of packages for three events")
	expect.Equal(t, s.runtime.sum("observe")-observed, 0, "looks at everything that runs for three events")
	expect.Equal(t, s.runtime.sum("intact")-whole, 3, "looks at a deployment for three events")
}
