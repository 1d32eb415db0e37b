package agent_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/margolite/margolite/agent/control"
	"github.com/margolite/margolite/store"
	"github.com/margolite/margolite/test/expect"
)

// rolledBack is a site at version 10 with two deployments, whose WFM was
// restored to version 3: it lists the one as it is, and not the other.
func rolledBack(t *testing.T, prepare ...func(*site)) *site {
	t.Helper()
	s := newSite(t, prepare...)
	s.publish(10, map[string]string{first: document(first, "1.0.0"), second: document(second, "1.0.0")})
	s.heard(first, "pending@10", "installing@10", "installed@10")
	s.heard(second, "pending@10", "installing@10", "installed@10")
	s.quiet()
	s.wfm.publish(3, map[string]string{first: document(first, "1.0.0")})
	s.refuses()
	return s
}

// refused is the manifest that an operator may have accepted.
func (s *site) refused() *control.RefusedManifest { return s.fullStatus().WFM.RefusedManifest }

// accepted fails the test unless this version is the accepted one.
func (s *site) accepted(epoch, version uint64) {
	s.t.Helper()
	m, _, err := s.store.Manifest()
	check(s.t, err)
	expect.Equal(s.t, []uint64{m.Epoch, m.Version}, []uint64{epoch, version}, "accepted epoch and version")
}

func TestAnOperatorHasARollbackAccepted(t *testing.T) {
	var l log
	s := rolledBack(t, logged(&l))
	refused := s.refused()
	within(t, int(time.Since(refused.Since)), 0, int(time.Minute), "nanoseconds since it has been refused")
	want := &control.RefusedManifest{Since: refused.Since, Accepted: 10, Version: 3, Digest: refused.Digest, Deployments: []string{first}, Removed: []string{second}}
	expect.Equal(t, refused, want, "refused")
	// A WFM that has lost its state may have lost what it knew of the device: it is told
	// again, once.
	s.refuses()
	s.refuses()
	expect.Equal(t, s.wfm.count("capabilities"), 2, "times that capabilities were told")
	events, cancel := s.agent.Subscribe()
	defer cancel()
	applied := s.runtime.count("apply 1.0.0")
	check(t, s.agent.AcceptRollback(t.Context(), control.RollbackRequest{Version: 3, Digest: refused.Digest, UID: 4711}))
	s.accepted(1, 3)
	s.heard(second, "pending@10", "installing@10", "installed@10", "removing@3", "removed@3")
	s.heard(first, "pending@10", "installing@10", "installed@10", "installed@3")
	s.runtime.await(t, first+"-main 1.0.0")
	s.made("apply 1.0.0", applied)
	expect.Equal(t, len(l.with("security=true", "kind=manifest.rollback", "user 4711", "version=3", "in place of version 10", refused.Digest)), 1, "lines of log")
	for e := range events {
		if e.Kind == control.RollbackAccepted {
			expect.Equal(t, fmt.Sprint(e.Version, e.Digest), fmt.Sprint(3, refused.Digest), "event")
			expect.Contains(t, e.Text, "4711", "event")
			break
		}
	}
	expect.Equal(t, s.refused(), nil, "refused")

	// From here on versions grow as before, also after a restart.
	s.restart()
	s.wfm.publish(2, nil)
	s.refuses()
	s.publish(4, map[string]string{first: document(first, "2.0.0")})
	s.runtime.await(t, first+"-main 2.0.0")
	s.accepted(1, 4)
}

func TestOnlyTheRollbackThatWasShownIsAccepted(t *testing.T) {
	accepted := map[string]string{first: document(first, "1.0.0"), second: document(second, "1.0.0")}
	for name, change := range map[string]func(s *site, r *control.RollbackRequest){
		"another version is named":                                  func(_ *site, r *control.RollbackRequest) { r.Version = 4 },
		"another digest is named":                                   func(_ *site, r *control.RollbackRequest) { r.Digest += "0" },
		"the WFM serves another one by now":                         func(s *site, _ *control.RollbackRequest) { s.wfm.publish(2, nil) },
		"the WFM serves the same version with other content by now": func(s *site, _ *control.RollbackRequest) { s.wfm.publish(3, nil) },
		"the WFM serves what was accepted by now":                   func(s *site, _ *control.RollbackRequest) { s.wfm.publish(10, accepted) },
		"nothing is refused any more":                               func(s *site, _ *control.RollbackRequest) { s.publish(10, accepted) },
		"the WFM asked for silence": func(s *site, _ *control.RollbackRequest) {
			s.wfm.fail("manifest", unavailable(time.Hour))
			s.refuses()
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := rolledBack(t)
			request := control.RollbackRequest{Version: s.refused().Version, Digest: s.refused().Digest}
			change(s, &request)
			expect.Error(t, s.agent.AcceptRollback(t.Context(), request), control.ErrConflict, "accept")
			s.accepted(0, 10)
			s.runtime.await(t, first+"-main 1.0.0", second+"-main 1.0.0")
		})
	}
}

// the same version with other content is refused until an operator accepts it, and
// the permission ends with the request: what could not be fetched then is not accepted by
// a later poll.
func TestDS06TheSameVersionWithOtherContentIsAcceptedByAnOperator(t *testing.T) {
	s := rolledBack(t)
	s.wfm.publish(10, map[string]string{first: document(first, "0.9.0")})
	s.refuses()
	refused := s.refused()
	expect.Equal(t, refused.Changed, []string{first}, "changed")
	s.wfm.fail("documents", errUnreachable)
	accept := control.RollbackRequest{Version: 10, Digest: refused.Digest}
	expect.Error(t, s.agent.AcceptRollback(t.Context(), accept), errUnreachable, "accept")
	s.wfm.fail("", nil)
	s.refuses()
	s.accepted(0, 10)
	expect.OK(t, s.agent.AcceptRollback(t.Context(), accept))
	s.runtime.await(t, first+"-main 0.9.0")
	s.sync() // it is the accepted one now
	s.accepted(1, 10)
}

func TestDS07RefusalsAreLoggedOnceEach(t *testing.T) {
	var l log
	s := rolledBack(t, logged(&l))
	for range 5 {
		for v := uint64(3); v < 6; v++ { // servers of one WFM that do not agree
			s.wfm.publish(v, nil)
			_ = s.agent.Sync(t.Context())
		}
		s.wfm.fail("manifest", errUnreachable)
		_ = s.agent.Sync(t.Context())
		s.wfm.fail("", nil)
		s.wfm.publish(10, map[string]string{first: document(first, "1.0.0"), second: document(second, "1.0.0")})
		s.sync()
	}
	expect.Equal(t, len(l.with("manifest refused", "security=true")), 3, "security events")
}

// askedWith are the ETags with which the manifest was asked for.
func (f *fakeWFM) askedWith() []string {
	return read(&f.guarded, func() []string { return slices.Clone(f.etags) })
}

func TestDS08VersionAndETagSurviveARestart(t *testing.T) {
	s := newSite(t)
	s.updates(10, "1.0.0", "pending@10", "installing@10", "installed@10")
	s.quiet()
	for _, without := range []string{"nothing", "the file beside the database", "the database"} {
		s.stop()
		switch without {
		case "the file beside the database":
			_ = os.Remove(filepath.Join(s.dir, "accepted.json"))
		case "the database":
			_ = os.Remove(s.database())
		}
		asked, documents := len(s.wfm.askedWith()), s.wfm.count("documents")
		s.start()
		s.sync() // the first poll of this process may be under way
		expect.Equal(t, s.wfm.askedWith()[asked] != "", without != "the database", "an ETag is sent without %s", without)
		s.wfm.publish(9, nil)
		s.refuses()
		s.wfm.publish(10, map[string]string{first: document(first, "1.0.0")})
		s.sync()
		expect.Equal(t, s.wfm.count("documents") > documents, without == "the database", "documents are fetched again without %s", without)
	}
}

// A kill between the database and the file beside it leaves the rollback that
// was accepted, and never what was before.
func TestAKillWhileARollbackIsAccepted(t *testing.T) {
	s := rolledBack(t)
	before := expect.Value(os.ReadFile(filepath.Join(s.dir, "accepted.json")))(t)
	check(t, s.agent.AcceptRollback(t.Context(), control.RollbackRequest{Version: 3, Digest: s.refused().Digest}))
	s.change(func(*store.Store) {})
	s.restart(func() { check(t, os.WriteFile(filepath.Join(s.dir, "accepted.json"), before, 0o600)) })
	s.accepted(1, 3)
	s.sync()
	s.heard(second, "pending@10", "installing@10", "installed@10", "removing@3", "removed@3")
}
