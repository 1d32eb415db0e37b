package agent_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/margolite/margolite/agent/control"
	"github.com/margolite/margolite/store"
	"github.com/margolite/margolite/test/expect"
)

func TestStatusNamesDeploymentsAsTheirDocumentsDo(t *testing.T) {
	s := newSite(t)
	named := func(id, revision, name string) string {
		return strings.Replace(document(id, revision), "name: app,", "name: "+name+",", 1)
	}
	names := func() (names []string) {
		t.Helper()
		st := s.fullStatus()
		for _, d := range st.Deployments {
			names = append(names, d.Name)
		}
		slices.Sort(names)
		return names
	}
	for i, want := range []string{"pumps", "valves"} {
		s.publish(uint64(i+1), map[string]string{first: named(first, "1.0.0", want), second: named(second, "1.0.0", "other")})
		s.heard(second, "pending@1", "installing@1", "installed@1")
		for range 2 {
			expect.Equal(t, names(), []string{"other", want}, "names")
		}
	}
	s.publish(3, map[string]string{first: named(first, "1.0.0", "valves")})
	s.heard(second, "pending@1", "installing@1", "installed@1", "removing@3", "removed@3")

	// A document that cannot be read has no name, and has it again when it comes back.
	s.wfm.fail("manifest", errors.New("out of reach")) // it does not come back by itself
	s.change(func(records *store.Store) { check(t, expect.ErrorOf(records.PruneArtifacts(nil))) })
	expect.Equal(t, names(), []string{""}, "names")
	body := []byte(named(first, "1.0.0", "valves"))
	check(t, s.store.Commit("test", store.Change{Artifacts: map[digest.Digest][]byte{digest.FromBytes(body): body}}))
	expect.Equal(t, names(), []string{"valves"}, "names")
}

// status says what the WFM was told last, and whether it knows the present state.
func TestStatusSaysWhatWasReported(t *testing.T) {
	s := newSite(t)
	reported := func(what string, want func(r *control.Reported) bool) {
		t.Helper()
		s.eventually("status says of what was reported: "+what, func() bool { return want(s.fullStatus().Deployments[0].Reported) })
	}
	s.publish(1, map[string]string{first: document(first, "1.0.0")})
	reported("installed", func(r *control.Reported) bool {
		return r.State == "installed" && !r.At.IsZero() && time.Since(r.At) < time.Minute && r.Waiting == 0
	})
	s.wfm.fail("status", errors.New("no network"))
	s.publish(2, map[string]string{first: document(first, "2.0.0")})
	reported("nobody hears it", func(r *control.Reported) bool { return r.State == "installed" && r.Waiting > 0 })
	s.restart()
	reported("after a restart", func(r *control.Reported) bool { return r.At.IsZero() && r.Waiting > 0 })
	s.wfm.fail("status", nil)
	s.sync()
	reported("heard again", func(r *control.Reported) bool { return !r.At.IsZero() && r.Waiting == 0 })
}
