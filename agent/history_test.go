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
	"github.com/margolite/margolite/test/expect"
)

// history is the journal of a site: its entries of some kinds, all without any.
func (s *site) history(kinds ...string) []control.Entry {
	s.t.Helper()
	all := expect.Value(s.agent.History(s.t.Context(), control.HistoryRequest{}))(s.t)
	return slices.DeleteFunc(all, func(e control.Entry) bool { return len(kinds) > 0 && !slices.Contains(kinds, e.Kind) })
}

// verified fails the test unless nothing is wrong with the journal.
func (s *site) verified() {
	s.t.Helper()
	v := expect.Value(s.agent.VerifyHistory(s.t.Context()))(s.t)
	expect.Equal(s.t, v.Problem, "", "problem of the journal")
	all := s.history()
	head := slices.IndexFunc(all, func(e control.Entry) bool { return e.Chain == v.Head }) // others may have come after it
	expect.Equal(s.t, int(v.Entries), head+1, "entries verified")
	expect.Equal(s.t, v.First, all[0].Sequence, "first entry verified")
}

func TestTheJournalTellsOfManifests(t *testing.T) {
	var l log
	s := rolledBack(t, logged(&l))
	refused := s.refused()
	check(t, s.agent.AcceptRollback(t.Context(), control.RollbackRequest{Version: 3, Digest: refused.Digest, UID: 4711}))
	accepted := s.history("manifest.accepted", "manifest.refused", "manifest.rollback")
	expect.Equal(t, len(accepted), 3, "entries")
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
		got := expect.Value(s.agent.History(t.Context(), r))(t)
		expect.Equal(t, got, last[len(last)-1:], "%s", name)
	}
	s.verified()
	entries := s.history()
	s.stop() // everything is logged
	for _, e := range entries {
		expect.Equal(t, len(l.with("kind="+e.Kind, fmt.Sprintf("sequence=%d ", e.Sequence), "chain="+e.Chain)), 1, "lines of log about entry %d", e.Sequence)
	}
}

// An agent that starts again and again writes nothing for it, also where it
// refuses the same manifest each time.
func TestALoopOfStartsLeavesTheJournalAlone(t *testing.T) {
	s := newSite(t)
	s.publish(5, nil)
	starts := s.history("agent.started")
	expect.Equal(t, len(starts), 1, "starts in the journal")
	expect.Equal(t, starts[0].Sequence, 1, "sequence of the start")
	s.wfm.fail("manifest", margo.Errors{{Requirement: "DS-11", Message: "sha512"}, {Requirement: "DS-12", Message: "and more"}})
	for range 5 {
		s.restart()
		s.refuses()
	}
	within(t, len(s.history("agent.started")), 0, 3, "starts in the journal")
	expect.Equal(t, len(s.history("manifest.refused")), 1, "refusals in the journal")
	s.restart()
	_ = s.agent.Sync(t.Context())
	expect.Equal(t, s.store.Writes(), 0, "transactions of the last start")
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
	expect.Equal(t, len(s.history("manifest.refused")), 16, "refusals in the journal")
}

func TestAJournalThatWasCutIsASecurityEvent(t *testing.T) {
	var l log
	s := newSite(t, logged(&l))
	s.publish(1, nil)
	s.publish(2, nil)
	s.stop()
	path := filepath.Join(s.dir, "margolite.db")
	db := expect.Value(bolt.Open(path, 0o600, nil))(t)
	err := db.Update(func(tx *bolt.Tx) error {
		c := tx.Bucket([]byte("journal")).Cursor()
		c.Last()
		return c.Delete()
	})
	check(t, errors.Join(err, db.Close()))
	for starts := range 3 {
		s.start()
		s.sync() // it has started
		v := expect.Value(s.agent.VerifyHistory(t.Context()))(t)
		expect.Contains(t, v.Problem, "entry 3 of the journal is missing", "problem")
		events := s.history("security")
		told := min(starts+1, 2) // as the newest entry, and as a gap once others follow; then no more
		expect.Equal(t, len(events), told, "security events")
		expect.Contains(t, events[told-1].Text, "entry 3 of the journal is missing", "security event")
		s.stop()
	}
	expect.Equal(t, len(l.with("security=true", "entry 3 of the journal is missing")), 2, "lines of log")

	// The database is lost as a whole.
	check(t, os.Remove(path))
	s.start()
	s.publish(3, nil)
	expect.Equal(t, len(s.history("security")), 1, "security events")
}
