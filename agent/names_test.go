package agent_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"

	"github.com/margolite/margolite/store"
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
			if got := names(); !slices.Equal(got, []string{"other", want}) {
				t.Errorf("the names are %q", got)
			}
		}
	}
	s.publish(3, map[string]string{first: named(first, "1.0.0", "valves")})
	s.heard(second, "pending@1", "installing@1", "installed@1", "removing@3", "removed@3")

	// A document that cannot be read has no name, and has it again when it comes back.
	s.wfm.fail("manifest", errors.New("out of reach")) // it does not come back by itself
	s.change(func(records *store.Store) {
		if _, err := records.PruneArtifacts(nil); err != nil {
			t.Fatal(err)
		}
	})
	if got := names(); !slices.Equal(got, []string{""}) {
		t.Errorf("the names are %q", got)
	}
	body := []byte(named(first, "1.0.0", "valves"))
	check(t, s.store.Commit("test", store.Change{Artifacts: map[digest.Digest][]byte{digest.FromBytes(body): body}}))
	if got := names(); !slices.Equal(got, []string{"valves"}) {
		t.Errorf("the names are %q", got)
	}
}
