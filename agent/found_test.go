package agent_test

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"

	"github.com/margolite/margolite/agent/control"
	"github.com/margolite/margolite/policy"
	"github.com/margolite/margolite/runtime"
	"github.com/margolite/margolite/test/expect"
)

// damages are ways in which a medium loses the database of a stopped agent. In
// some of them its records are lost, in some they are not.
var damages = map[string]func(data []byte) []byte{
	"it is gone":          nil,
	"a meta page rots":    func(data []byte) []byte { data[4096+33] ^= 1; return data },
	"both meta pages rot": func(data []byte) []byte { data[33] ^= 1; data[4096+33] ^= 1; return data },
	"a record rots": func(data []byte) []byte {
		return bytes.ReplaceAll(data, []byte(`"phase":"active"`), []byte(`"phase":"staged"`))
	},
}

// damage restarts an agent whose database a medium loses meanwhile.
func (s *site) damage(how func([]byte) []byte, meanwhile ...func()) {
	s.t.Helper()
	s.restart(append(meanwhile, func() {
		if how == nil {
			check(s.t, os.Remove(s.database()))
			return
		}
		check(s.t, os.WriteFile(s.database(), how(expect.Value(os.ReadFile(s.database()))(s.t)), 0o600))
	})...)
}

// Whatever becomes of the store, what runs is taken over as it is, with nobody
// asked; the WFM hears what is so, and nothing that is not. Older manifests stay
// refused, and the next one is applied.
func TestDS08WhatRunsIsTakenOverAfterDamage(t *testing.T) {
	t.Parallel()
	for name, how := range damages {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			documents := map[string]string{first: document(first, "1.0.0"), second: document(second, "1.0.0")}
			s.publish(5, documents)
			before := []string{"pending@5", "installing@5", "installed@5"}
			s.heard(first, before...)
			s.heard(second, before...)
			s.quiet()
			s.gate.close(true)
			s.wfm.failAll(errUnreachable)
			s.damage(how)
			s.refuses()
			s.runtime.await(t, first+"-main 1.0.0", second+"-main 1.0.0")
			st := s.fullStatus()
			expect.Require(t, st.Damage != nil && st.Manifest != nil && st.Manifest.Version == 5, "status is %+v", st)
			s.wfm.failAll(nil)
			s.wfm.publish(4, nil)
			s.refuses()
			s.publish(5, documents)
			for _, id := range []string{first, second} {
				s.eventually("the WFM hears of it again", func() bool {
					got, _ := s.wfm.heard(id)
					return len(got) > len(before) && got[len(got)-1] == "installed@5"
				})
				got, _ := s.wfm.heard(id)
				after := slices.Compact(got[len(before):])
				// Where the last transaction is lost, what it acknowledged is told again.
				again := len(after) <= len(before) && slices.Equal(after, before[len(before)-len(after):])
				expect.True(t, again || slices.Equal(after, []string{"pending@5", "installed@5"}), "the WFM heard %v", after)
			}
			s.made("remove "+first+"-main", 0)
			s.eventually("a package that was lost is fetched again", func() bool { return s.store.HasArtifact(digest.FromString("1.0.0")) })
			s.quiet()
			writes := s.store.Writes()
			s.sync()
			s.sync()
			s.wroteNothing(writes)
			s.gate.close(false)
			s.publish(6, map[string]string{first: document(first, "2.0.0")})
			s.runtime.await(t, first+"-main 2.0.0")
			s.eventually("the WFM hears of the update", func() bool {
				a, _ := s.wfm.heard(first)
				b, _ := s.wfm.heard(second)
				return a[len(a)-1] == "installed@6" && b[len(b)-1] == "removed@6"
			})
			events := s.history("store.damaged")
			expect.True(t, len(events) == 1 && events[0].Text == st.Damage.Text, "the journal has %+v", events)
		})
	}
}

// What was found running is not the desired revision: that is an update, and it
// waits as one.
func TestAnUpdateOfWhatWasFoundWaitsForItsApproval(t *testing.T) {
	s := installedSite(t, ruled(policy.Rules{Approval: policy.ApproveUpdates}))
	s.quiet()
	s.damage(nil)
	s.publish(2, map[string]string{first: document(first, "2.0.0")})
	s.reason(first, "approv")
	s.runtime.await(t, first+"-main 1.0.0")
	s.approve(document(first, "2.0.0"))
	s.runtime.await(t, first+"-main 2.0.0")
	s.publish(3, nil)
	s.reason(first, "approv")
}

// What the site has said is not forgotten with the store: locks hold, and what was
// rejected stays so.
func TestWhatTheSiteSaidOutlivesTheStore(t *testing.T) {
	s := installedSite(t)
	s.gate.close(true)
	s.publish(2, map[string]string{first: document(first, "2.0.0")})
	s.reason(first, "the gate is closed")
	check(t, s.answer(s.agent.Reject, document(first, "2.0.0"), "not on a Friday"))
	check(t, expect.ErrorOf(s.agent.Hold(t.Context(), control.HoldRequest{Holder: "press 7", Caller: byHand})))
	for range 2 {
		s.damage(nil, func() { s.gate.close(false) })
		s.sync()
		s.eventually("it is refused again", func() bool {
			last := s.wfm.last(first)
			return last.Error != nil && last.Error.Code == "REJECTED" && strings.Contains(last.Error.Message, "not on a Friday")
		})
		s.runtime.await(t, first+"-main 1.0.0")
		locks := s.fullStatus().Locks
		expect.True(t, len(locks) == 1 && locks[0].Holder == "press 7", "locks are %+v", locks)
	}
	// A removal ends it, as it does with the store whole.
	check(t, expect.ErrorOf(s.agent.Release(t.Context(), control.ReleaseRequest{All: true, Caller: byHand})))
	s.publish(3, nil)
	s.gone()
	s.publish(4, map[string]string{first: document(first, "2.0.0")})
	s.runtime.await(t, first+"-main 2.0.0")
}

// A document or a package that the store has lost, or that rots, is no failure of what
// runs: it is fetched again, and nobody hears of it.
func TestALostDocumentOfWhatRunsIsNoFailure(t *testing.T) {
	doc := digest.FromString(document(first, "1.0.0"))
	for name, spoil := range map[string]func(s *site){
		"a document is lost": func(s *site) { s.change(s.lose(doc)) },
		"a package is lost":  func(s *site) { s.change(s.lose(digest.FromString("1.0.0"))) },
		"a document rots": func(s *site) {
			s.damage(func(data []byte) []byte {
				return bytes.ReplaceAll(data, []byte("deploymentProfile"), []byte("deploymentProfilf"))
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := installedSite(t)
			s.quiet()
			s.runtime.fail("fetch 1.0.0", runtime.Unreachable)
			spoil(s)
			s.reason(first, "cannot be restored")
			s.runtime.fail("", "")
			s.sync()
			s.quiet()
			s.runtime.poke()
			s.eventually("the document is sound", func() bool {
				_, err := s.store.Artifact(doc)
				return err == nil
			})
			s.heard(first, installed...)
		})
	}
}

// A revision fails whose document the store has lost while the WFM does not give it
// again: the fault still has the name of the deployment as its source (ST-08).
func TestST08TheNameOutlivesTheDocument(t *testing.T) {
	s := installedSite(t)
	s.runtime.fail("fetch 2.0.0", runtime.Unreachable)
	s.publish(2, map[string]string{first: document(first, "2.0.0")})
	s.heard(first, append(slices.Clone(installed), "pending@1")...)
	s.wfm.fail("documents", errUnreachable)
	s.change(s.lose(digest.FromString(document(first, "2.0.0"))))
	s.eventually("the WFM hears that it failed", func() bool { return s.wfm.last(first).Error != nil })
	s.heardError(first, "DEVICE_ERROR")
	expect.Equal(t, s.wfm.last(first).Error.Source, "app", "source of the error")
}

// Damage is told once, and until somebody has looked at it.
func TestDamageIsToldOnce(t *testing.T) {
	var l log
	s := installedSite(t, logged(&l))
	s.quiet()
	s.damage(damages["a meta page rots"])
	for range 3 {
		s.sync()
		damage := s.fullStatus().Damage
		expect.Require(t, damage != nil, "the status says nothing of damage")
		expect.Equal(t, damage.Kept, "margolite.db.bad", "file that was kept")
		expect.Contains(t, damage.Text, "meta page", "damage")
		expect.Equal(t, len(s.history("store.damaged")), 1, "entries of the journal")
		s.restart()
	}
	expect.Equal(t, len(l.with("security=true", "the store was damaged")), 1, "lines of log")
	s.restart(func() { check(t, os.Remove(filepath.Join(s.dir, "margolite.db.bad"))) })
	expect.Equal(t, s.fullStatus().Damage, nil, "damage")
}
