package agent_test

import (
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/margolite/margolite/agent/control"
	"github.com/margolite/margolite/agent/wfm"
	"github.com/margolite/margolite/runtime"
	"github.com/margolite/margolite/store"
	"github.com/margolite/margolite/test/expect"
)

// change stops the agent, changes what it left, and starts another one.
func (s *site) change(edit func(*store.Store)) {
	s.t.Helper()
	s.restart(func() {
		records := expect.Value(store.Open(s.database(), store.Options{}))(s.t)
		edit(records)
		check(s.t, records.Close())
	})
}

func (s *site) database() string { return filepath.Join(s.dir, "margolite.db") }

// lose drops one artifact from the store, as a bad block would.
func (s *site) lose(lost digest.Digest) func(*store.Store) {
	return func(records *store.Store) {
		s.t.Helper()
		expect.Equal(s.t, records.HasArtifact(lost), true, "the artifact to lose is stored")
		deployments := expect.Value(records.Deployments())(s.t)
		keep := map[digest.Digest]bool{}
		for _, d := range deployments {
			for _, r := range []*store.Revision{&d.Desired, d.Active} {
				if r == nil {
					continue
				}
				keep[r.Digest] = true
				for _, staged := range r.Staged {
					keep[staged.Package] = true
				}
			}
		}
		delete(keep, lost)
		check(s.t, expect.ErrorOf(records.PruneArtifacts(keep)))
	}
}

// installed publishes the first deployment and waits until it runs.
func (s *site) installed() {
	s.t.Helper()
	s.updates(1, "1.0.0", installed...)
}

// installedSite is newSite with the first deployment installed.
func installedSite(t *testing.T, prepare ...func(*site)) *site {
	t.Helper()
	s := newSite(t, prepare...)
	s.installed()
	return s
}

// updates publishes a revision of the first deployment alone, and waits until the WFM
// heard exactly these states of it.
func (s *site) updates(version uint64, revision string, states ...string) {
	s.t.Helper()
	s.publish(version, map[string]string{first: document(first, revision)})
	s.heard(first, states...)
}

// publishUntil publishes documents and returns once a step of the runtime has begun, which
// then waits until it is released or cancelled.
func (s *site) publishUntil(step string, version uint64, documents map[string]string) (release func()) {
	s.t.Helper()
	begun, release := s.runtime.hold(step)
	s.publish(version, documents)
	<-begun
	return release
}

// reboot restarts the agent on a device where nothing runs.
func (s *site) reboot() {
	s.t.Helper()
	s.restart(s.runtime.reset)
}

// bothInstalled is installed for two deployments.
func (s *site) bothInstalled() {
	s.t.Helper()
	s.publish(1, map[string]string{first: document(first, "1.0.0"), second: document(second, "1.0.0")})
	s.heard(first, installed...)
	s.heard(second, installed...)
}

// What a killed agent had no time to drop is dropped when it starts: artifacts, and
// images also where the store has nothing left that tells of them.
func TestPruningThatWasKilledGoesOn(t *testing.T) {
	s := newSite(t)
	s.tidied()
	s.installed()
	s.eventually("what nothing needs was looked for", func() bool { return s.runtime.count("prune") > 1 }) // after the last report
	s.quiet()
	left := digest.FromString("left")
	for _, artifacts := range []map[digest.Digest][]byte{nil, {left: []byte("left")}} {
		pruned := s.runtime.count("prune")
		s.change(func(records *store.Store) {
			check(t, records.Commit("test", store.Change{Artifacts: artifacts}))
		})
		s.eventually("images that nothing needs were looked for", func() bool { return s.runtime.count("prune") > pruned })
	}
	s.eventually("what nothing needs is gone", func() bool { return !s.store.HasArtifact(left) })
}

// tidied waits until the agent has looked for what one before has left.
func (s *site) tidied() {
	s.t.Helper()
	s.eventually("what was left was looked for", func() bool { return s.runtime.count("prune") > 0 })
}

// A package that the store lost is fetched again.
func TestALostPackageIsFetchedAgain(t *testing.T) {
	s := installedSite(t)
	s.quiet()
	s.runtime.reset()
	s.change(s.lose(digest.FromString("1.0.0")))
	s.runtime.await(t, first+"-main 1.0.0")
	s.heard(first, "pending@1", "installing@1", "installed@1")
}

// An image that the device lost is fetched again, when its containers have to be
// made.
func TestALostImageIsFetchedAgain(t *testing.T) {
	s := installedSite(t)
	s.quiet()
	s.stop()
	s.runtime.reset()
	s.runtime.fail("apply 1.0.0", runtime.NotFound)
	s.runtime.staging = func(string) error { s.runtime.fail("", ""); return nil }
	s.start()
	s.eventually("it is applied with its image", func() bool { return s.runtime.count("apply 1.0.0") == 3 })
	s.runtime.await(t, first+"-main 1.0.0")
	s.quiet()
	s.heard(first, "pending@1", "installing@1", "installed@1")
}

// A document that the store lost is fetched again with the next poll, although
// the manifest did not change.
func TestALostDocumentIsFetchedAgain(t *testing.T) {
	s := installedSite(t)
	s.change(func(records *store.Store) {
		s.runtime.reset()
		s.lose(digest.FromString(document(first, "1.0.0")))(records)
	})
	s.heard(first, "pending@1", "installing@1", "installed@1", "failed@1")
	s.sync()
	s.heard(first, "pending@1", "installing@1", "installed@1", "failed@1", "installed@1")
	s.runtime.await(t, first+"-main 1.0.0")
}

// The desired revision is tried again even if the former one cannot be had back.
func TestALostFormerRevisionDoesNotHoldUpTheDesiredOne(t *testing.T) {
	s := installedSite(t)
	s.runtime.fail("stage 2.0.0", runtime.NotFound)
	s.updates(2, "2.0.0", "pending@1", "installing@1", "installed@1", "pending@1", "failed@2")
	s.runtime.fail("", "")
	s.runtime.reset()
	s.change(s.lose(digest.FromString(document(first, "1.0.0"))))
	s.heard(first, "pending@1", "installing@1", "installed@1", "pending@1", "failed@2", "pending@2", "installing@2", "installed@2")
}

// The database is gone, and the WFM no longer lists everything that still runs:
// what it does not list is removed (DS-22).
func TestWhatRunsWithoutARecordIsRemoved(t *testing.T) {
	for name, then := range map[string]map[string]string{
		"another deployment is listed": {second: document(second, "1.0.0")},
		"none is listed":               nil,
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			s.bothInstalled()
			s.restart(func() { check(t, os.Remove(s.database())) })
			expect.Equal(t, len(s.runtime.running()), 2, "projects that run without a manifest")
			s.publish(2, then)
			s.heard(first, "pending@1", "installing@1", "installed@1", "removing@2", "removed@2")
			want := []string{}
			for id := range then {
				want = append(want, id+"-main 1.0.0")
			}
			s.runtime.await(t, want...)
		})
	}
}

// A failure that comes back is tried again at leisure, also when the runtime
// tells of each container that ends.
func TestFailuresAreTriedAgainWithBackoff(t *testing.T) {
	simulated(t, func(s *site) { s.runtime.noisy = true }, func(t *testing.T, s *site) {
		s.runtime.fail("apply 1.0.0", runtime.Exited)
		s.updates(1, "1.0.0", "pending@1", "installing@1", "failed@1")
		s.during(300 * time.Millisecond)
		within(t, s.runtime.count("apply 1.0.0"), 1, 2, "starts within 300 ms")
	})
}

// A removal that fails is reported (ST-09), and goes on until it is done.
func TestST01FailedRemovalIsReportedAndTriedAgain(t *testing.T) {
	s := installedSite(t)
	s.runtime.fail("remove "+first+"-main", runtime.Internal)
	s.publish(2, nil)
	s.heard(first, "pending@1", "installing@1", "installed@1", "removing@2", "failed@2")
	s.heardError(first, "DEVICE_ERROR")
	expect.Equal(t, s.wfm.last(first).Error.Source, "app", "source of the error")
	s.runtime.fail("", "")
	s.restart()
	s.heard(first, "pending@1", "installing@1", "installed@1", "removing@2", "failed@2", "removed@2")
	expect.Equal(t, s.wfm.last(first).Error, nil, "error of what was removed")
}

// What was loaded of a deployment that was never staged goes with it.
func TestWhatWasNeverStagedIsRemoved(t *testing.T) {
	s := newSite(t)
	s.runtime.fail("stage 1.0.0", runtime.NotFound)
	s.updates(1, "1.0.0", "pending@1", "failed@1")
	s.publish(2, nil)
	s.heard(first, "pending@1", "failed@1", "removing@2", "removed@2")
	s.made("remove "+first+"-main", 1)
}

// An update that cannot get rid of a component it no longer has is
// failed, although no component of its own is.
func TestST04FailureOfAComponentThatIsGoneFailsTheDeployment(t *testing.T) {
	s := newSite(t)
	s.publish(1, map[string]string{first: documentOf(first, map[string]string{"main": "1.0.0", "old": "1.0.0"})})
	s.heard(first, "pending@1", "installing@1", "installing@1", "installed@1")
	s.runtime.fail("remove "+first+"-old", runtime.Internal)
	s.updates(2, "2.0.0", "pending@1", "installing@1", "installing@1", "installed@1", "pending@1", "installing@2", "failed@2")
}

// The spelling of an id is the manifest's, and the deployment stays the same.
func TestAnIDInOtherLettersIsTheSameDeployment(t *testing.T) {
	upper := strings.ToUpper(first)
	s := installedSite(t)
	s.publish(2, map[string]string{upper: document(first, "1.0.0")})
	s.heard(upper, "installed@2")
	s.publish(3, map[string]string{upper: document(first, "2.0.0")})
	s.heard(upper, "installed@2", "pending@2", "installing@3", "installed@3")
	s.runtime.await(t, first+"-main 2.0.0")
	s.publish(4, nil)
	s.heard(upper, "installed@2", "pending@2", "installing@3", "installed@3", "removing@4", "removed@4")
	s.heard(first, "pending@1", "installing@1", "installed@1")
	expect.Equal(t, len(s.fullStatus().Deployments), 0, "deployments in the status")
}

// What is durable is told and worked on, even if the file beside the database could
// not be written.
func TestAcceptedManifestIsWorkedOnWithoutItsSmallFile(t *testing.T) {
	s := installedSite(t)
	file := filepath.Join(s.dir, "accepted.json")
	check(t, errors.Join(os.Remove(file), os.MkdirAll(filepath.Join(file, "in the way"), 0o700)))
	begun, release := s.runtime.hold("fetch 2.0.0")
	s.wfm.publish(2, map[string]string{first: document(first, "2.0.0")})
	s.refuses()
	<-begun
	s.heard(first, "pending@1", "installing@1", "installed@1", "pending@1") // without a further change
	release()
	s.heard(first, "pending@1", "installing@1", "installed@1", "pending@1", "installing@2", "installed@2")
}

// A deployment that is published again ends up as published, wherever the work
// on the revision before was.
func TestNewerRevisionSupersedesInEachPhase(t *testing.T) {
	t.Parallel()
	for _, step := range []string{"fetch 1.0.0", "load 1.0.0", "stage 1.0.0", "apply 1.0.0"} {
		t.Run(step, func(t *testing.T) {
			s := newSite(t)
			s.publishUntil(step, 1, map[string]string{first: document(first, "1.0.0")})
			s.publish(2, map[string]string{first: document(first, "2.0.0")})
			s.runtime.await(t, first+"-main 2.0.0")
		})
	}
	t.Run("waiting for the gate", func(t *testing.T) {
		s := newSite(t)
		s.gate.close(true)
		s.publish(1, map[string]string{first: document(first, "1.0.0")})
		s.reason(first, "the gate is closed")
		s.gate.close(false)
		s.updates(2, "2.0.0", "pending@1", "installing@2", "installed@2")
	})
	t.Run("removing", func(t *testing.T) {
		s := installedSite(t)
		s.publishUntil("remove "+first+"-main", 2, nil)
		s.updates(3, "1.0.0", "pending@1", "installing@1", "installed@1", "removing@2", "pending@2", "installing@3", "installed@3")
		s.runtime.await(t, first+"-main 1.0.0")
	})
	t.Run("removed by a newer manifest while applying", func(t *testing.T) {
		s := newSite(t)
		s.publishUntil("apply 1.0.0", 1, map[string]string{first: document(first, "1.0.0")})
		s.publish(2, nil)
		s.heard(first, "pending@1", "installing@1", "removing@2", "removed@2")
		s.runtime.await(t)
	})
}

// reason waits until a deployment shows why it waits.
func (s *site) reason(id, want string) {
	s.t.Helper()
	s.eventually(id+" waits because "+want, func() bool {
		st, err := s.agent.Status(s.t.Context())
		return err == nil && slices.ContainsFunc(st.Deployments, func(d control.Deployment) bool {
			return d.ID == id && strings.Contains(d.Reason, want)
		})
	})
}

// looks lets the agent look at what runs.
func (s *site) looks() {
	s.t.Helper()
	observed := s.runtime.looks()
	s.runtime.poke()
	s.eventually("the agent looked", func() bool { return s.runtime.looks() > observed })
}

// eventually waits for what has no event.
func (s *site) eventually(what string, is func() bool) {
	s.t.Helper()
	expect.Eventually(s.t, what, is)
}

// Back to the revision that worked last: it runs also while the gate is closed,
// in place of what the update left half done, and nobody is asked.
func TestRevertRunsWhileTheGateIsClosed(t *testing.T) {
	s := installedSite(t)
	s.publishUntil("apply 2.0.0", 2, map[string]string{first: document(first, "2.0.0")})
	s.gate.close(true)
	s.publish(3, map[string]string{first: document(first, "1.0.0")})
	s.runtime.await(t, first+"-main 1.0.0")
	s.heard(first, "pending@1", "installing@1", "installed@1", "pending@1", "installing@2", "pending@2", "installing@3", "installed@3")
}

// A restart in the middle of several components goes on; it does not report
// again what was reported.
func TestRestartWhileInstallingReportsOnlyWhatIsNew(t *testing.T) {
	s := newSite(t)
	s.publishUntil("apply 3.0.0", 1, map[string]string{first: documentOf(first, map[string]string{"a": "1.0.0", "b": "2.0.0", "c": "3.0.0"})})
	s.restart()
	s.heard(first, "pending@1", "installing@1", "installing@1", "installing@1", "installed@1")
}

// Also who asked for a poll before the WFM asked for silence has to wait.
func TestERR04RetryAfterIsHonouredForWaitingRequests(t *testing.T) {
	simulated(t, func(s *site) { s.set.Poll.Interval = time.Hour }, func(t *testing.T, s *site) {
		s.sync()
		begun, release := s.wfm.hold("manifest")
		s.wfm.fail("manifest", &wfm.Error{Op: "get state manifest", Status: 503, RetryAfter: time.Hour})
		answers := make(chan error, 2)
		go func() { answers <- s.agent.Sync(t.Context()) }()
		<-begun
		go func() { answers <- s.agent.Sync(t.Context()) }()
		synctest.Wait() // until it waits
		release()
		conflicts := 0
		for range 2 {
			if err := <-answers; errors.Is(err, control.ErrConflict) {
				conflicts++
			}
		}
		expect.Equal(t, conflicts, 1, "requests held back: the one that waited")
	})
}

// A WFM that does not take the capabilities does not keep the device from its
// manifest; it is offered them again.
func TestRefusedCapabilitiesDoNotKeepTheManifestAway(t *testing.T) {
	for name, refusal := range map[string]wfm.Error{
		"403":                     {Status: http.StatusForbidden},
		"400, as a proxy says it": {Status: http.StatusBadRequest, Page: true},
	} {
		t.Run(name, func(t *testing.T) {
			refusal.Op = "put capabilities"
			s := installedSite(t, func(s *site) { s.wfm.fail("capabilities", &refusal) })
			s.wfm.fail("", nil)
			asked := len(s.wfm.calls())
			s.sync()
			expect.Equal(t, s.wfm.calls()[asked], "capabilities", "first call of the next poll")
		})
	}
}

// The status tells what it can when containerd cannot be asked.
func TestStatusWithoutARuntime(t *testing.T) {
	s := installedSite(t)
	s.runtime.fail("observe", runtime.Internal)
	st := s.fullStatus()
	expect.Equal(t, len(st.Deployments), 1, "deployments in the status")
	expect.Contains(t, st.RuntimeError, "observe fails", "runtime error")
}

// Of two deployments that go at once, one may still be there when the images that
// are needed are counted on account of the other.
func TestNoImageStaysOfDeploymentsThatGoAtOnce(t *testing.T) {
	s := newSite(t)
	s.bothInstalled()
	s.quiet()
	kept := make(chan runtime.Keep, 1000)
	s.runtime.set(func() { s.runtime.pruned = func(keep runtime.Keep) []string { kept <- keep; return nil } })
	_, release := s.runtime.hold("prune")
	s.publish(2, nil)
	s.heard(first, "pending@1", "installing@1", "installed@1", "removing@2", "removed@2")
	s.heard(second, "pending@1", "installing@1", "installed@1", "removing@2", "removed@2")
	release()
	for {
		select {
		case keep := <-kept:
			if len(keep.Images)+len(keep.Fetching) == 0 {
				return
			}
		case <-time.After(10 * time.Second):
			t.Fatal("some are kept")
		}
	}
}

// An agent stops at once, whatever hangs.
func TestAnAgentStopsWhileEverythingHangs(t *testing.T) {
	for _, step := range []string{"fetch 1.0.0", "stage 1.0.0", "apply 1.0.0"} {
		t.Run(step, func(t *testing.T) {
			simulated(t, func(*site) {}, func(t *testing.T, s *site) {
				s.publishUntil(step, 1, map[string]string{first: document(first, "1.0.0")})
				begun := time.Now()
				s.stop()
				expect.Equal(t, time.Since(begun), 0, "time to stop")
				s.start()
				s.runtime.await(t, first+"-main 1.0.0")
			})
		})
	}
}
