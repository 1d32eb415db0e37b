package agent_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	bolt "go.etcd.io/bbolt"

	"github.com/margolite/margolite/agent/control"
	"github.com/margolite/margolite/agent/margo"
)

// history is the journal of a site: its entries of some kinds, all without any.
func (s *site) history(kinds ...string) (entries []control.Entry) {
	s.t.Helper()
	all, err := s.agent.History(s.t.Context(), control.HistoryRequest{})
	check(s.t, err)
	for _, e := range all {
		for _, kind := range kinds {
			if e.Kind == kind {
				entries = append(entries, e)
			}
		}
	}
	if len(kinds) == 0 {
		return all
	}
	return entries
}

// verified fails the test unless nothing is wrong with the journal.
func (s *site) verified() {
	s.t.Helper()
	v, err := s.agent.VerifyHistory(s.t.Context())
	if err != nil || v.Problem != "" {
		s.t.Errorf("the journal does not verify: %+v, %v", v, err)
	}
	all := s.history()
	head := slices.IndexFunc(all, func(e control.Entry) bool { return e.Chain == v.Head }) // others may have come after it
	if int(v.Entries) != head+1 || v.First != all[0].Sequence {
		s.t.Errorf("verified is %+v, there is %+v", v, all)
	}
}

func TestTheJournalTellsOfManifests(t *testing.T) {
	s := rolledBack(t)
	refused := s.refused()
	check(t, s.agent.AcceptRollback(t.Context(), control.RollbackRequest{Version: 3, Digest: refused.Digest, UID: 4711}))
	accepted := s.history("manifest.accepted", "manifest.refused", "manifest.rollback")
	if len(accepted) != 3 {
		t.Fatalf("the journal has %+v", accepted)
	}
	for i, want := range []control.Entry{
		{Kind: "manifest.accepted", Version: 10, Text: "2 listed, 2 changed"},
		{Kind: "manifest.refused", Version: 3, Revision: refused.Digest, Text: "version 3 is lower than the accepted 10; if the WFM has lost its state, `margolite accept-rollback` accepts it [DS-06]"},
		{Kind: "manifest.rollback", Version: 3, Revision: refused.Digest, By: "user 4711", Text: "in place of version 10 (" + accepted[0].Revision + ")"},
	} {
		got := accepted[i]
		if want.Revision == "" {
			want.Revision = got.Revision
		}
		if got.Kind != want.Kind || got.Version != want.Version || got.Revision != want.Revision || got.By != want.By ||
			!strings.HasSuffix(got.Text, want.Text) || got.Revision == "" || got.Time.IsZero() {
			t.Errorf("entry %d is %+v, want %+v", i, got, want)
		}
	}
	s.eventually("what is not listed any more is removed", func() bool { return len(s.history("change.removed")) == 1 })
	last := s.history()
	for name, r := range map[string]control.HistoryRequest{"the newest": {Last: 1}, "those since": {Since: last[len(last)-1].Sequence}} {
		if got, err := s.agent.History(t.Context(), r); err != nil || !slices.Equal(got, last[len(last)-1:]) {
			t.Errorf("%s is %+v, %v", name, got, err)
		}
	}
	s.verified()
}

// An agent that starts again and again writes nothing for it, also where it
// refuses the same manifest each time.
func TestALoopOfStartsLeavesTheJournalAlone(t *testing.T) {
	s := newSite(t)
	s.publish(5, nil)
	if starts := s.history("agent.started"); len(starts) != 1 || starts[0].Sequence != 1 {
		t.Errorf("starts are %+v", starts)
	}
	s.wfm.fail("manifest", margo.Errors{{Requirement: "DS-11", Message: "sha512"}, {Requirement: "DS-12", Message: "and more"}})
	for range 5 {
		s.restart()
		s.refuses()
	}
	if starts, refusals := s.history("agent.started"), s.history("manifest.refused"); len(starts) > 3 || len(refusals) != 1 {
		t.Errorf("%d starts and %d refusals are in the journal", len(starts), len(refusals))
	}
	s.restart()
	_ = s.agent.Sync(t.Context())
	if n := s.store.Writes(); n != 0 {
		t.Errorf("the last start wrote %d times", n)
	}
	s.verified()
}

// A WFM cannot drive the rest out of the journal with what is refused.
func TestRefusalsDoNotFillTheJournal(t *testing.T) {
	s := newSite(t)
	s.publish(1000, nil)
	for v := uint64(1); v <= 40; v++ {
		s.wfm.publish(v, nil)
		s.refuses()
	}
	if n := len(s.history("manifest.refused")); n != 16 {
		t.Errorf("%d refusals are in the journal", n)
	}
}

func TestAJournalThatWasCutIsASecurityEvent(t *testing.T) {
	var l log
	s := newSite(t, logged(&l))
	s.publish(1, nil)
	s.publish(2, nil)
	s.stop()
	path := filepath.Join(s.dir, "margolite.db")
	db, err := bolt.Open(path, 0o600, nil)
	check(t, err)
	err = db.Update(func(tx *bolt.Tx) error {
		c := tx.Bucket([]byte("journal")).Cursor()
		c.Last()
		return c.Delete()
	})
	check(t, errors.Join(err, db.Close()))
	for range 3 {
		s.start()
		s.sync() // it has started
		v, err := s.agent.VerifyHistory(t.Context())
		if err != nil || !strings.Contains(v.Problem, "entry 3 of the journal is missing") {
			t.Errorf("got %+v, %v", v, err)
		}
		events := s.history("security")
		if len(events) != 1 || !strings.Contains(events[0].Text, "entry 3 of the journal is missing") {
			t.Errorf("security events are %+v", events)
		}
		s.stop()
	}
	if lines := l.with("security=true", "entry 3 of the journal is missing"); len(lines) != 1 {
		t.Errorf("%d lines tell of it", len(lines))
	}

	// The database is lost as a whole.
	check(t, os.Remove(path))
	s.start()
	s.publish(3, nil)
	if events := s.history("security"); len(events) != 1 {
		t.Errorf("security events are %+v", events)
	}
}

func TestTheLogHasTheChain(t *testing.T) {
	var l log
	s := newSite(t, logged(&l))
	s.publish(1, nil)
	for _, e := range s.history() {
		if lines := l.with("kind="+e.Kind, fmt.Sprintf("sequence=%d ", e.Sequence), "chain="+e.Chain); len(lines) != 1 {
			t.Errorf("%d lines tell of entry %d", len(lines), e.Sequence)
		}
	}
}
