package agent_test

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/margolite/margolite/agent/control"
	"github.com/margolite/margolite/policy"
	"github.com/margolite/margolite/runtime"
	"github.com/margolite/margolite/store"
	"github.com/margolite/margolite/test/expect"
)

// ruled lets a site begin with rules.
func ruled(r policy.Rules) func(*site) { return func(s *site) { s.gate.rules = r } }

var byHand = control.Caller{UID: 1000, PID: 1, User: "operator"}

// answers gives one answer to a change, which leads to a document or away from it.
func (s *site) answer(say func(context.Context, control.AnswerRequest) error, doc, reason string) error {
	return say(s.t.Context(), control.AnswerRequest{
		Deployment: strings.ToUpper(first), Revision: digest.FromString(doc).String(), Reason: reason, Caller: byHand,
	})
}

func (s *site) approve(doc string) {
	s.t.Helper()
	check(s.t, s.answer(s.agent.Approve, doc, ""))
}

func (s *site) reject(doc string) {
	s.t.Helper()
	check(s.t, s.answer(s.agent.Reject, doc, "not today"))
}

// record is what is known about the first deployment.
func (s *site) record() store.Deployment { return s.deployment(first) }

// untouched fails the test when something else runs than at the beginning, or a
// container was changed.
func (s *site) untouched(revision string, changes ...string) {
	s.t.Helper()
	s.runs(first + "-main " + revision)
	for _, c := range changes {
		s.made(c, 0)
	}
}

var installed = []string{"pending@1", "installing@1", "installed@1"}

// An update that nobody approved touches nothing: not over restarts, not with
// newer manifests, not while other containers come and go.
func TestPOL06POL07AnUpdateWaitsForItsApproval(t *testing.T) {
	s := installedSite(t, ruled(policy.Rules{Approval: policy.ApproveUpdates}))
	a, b := document(first, "2.0.0"), document(first, "3.0.0")
	s.publish(2, map[string]string{first: a})
	s.reason(first, "waits for approval")
	for range 3 {
		s.restart()
		s.reason(first, "waits for approval")
	}
	s.runtime.poke()
	s.publish(3, map[string]string{first: a, second: document(second, "1.0.0")})
	s.heard(second, "pending@3", "installing@3", "installed@3")
	s.publish(4, map[string]string{first: a})
	s.heard(first, append(installed, "pending@1")...)
	s.heard(second, "pending@3", "installing@3", "installed@3", "pending@3") // its removal waits, too

	// The answer to one revision is none to the next, nor to the one before.
	expect.Error(t, s.answer(s.agent.Approve, b, ""), control.ErrConflict, "approval of an unknown revision")
	s.gate.close(true)
	s.approve(a)
	s.reason(first, "the gate is closed")
	s.publish(5, map[string]string{first: b})
	s.eventually("the newer one is staged", func() bool { return s.record().Phase == "staged" })
	s.gate.close(false)
	s.runtime.poke()
	s.reason(first, "waits for approval")
	conflict(t, s.answer(s.agent.Approve, a, ""), digest.FromString(b).String())
	s.publish(6, map[string]string{first: a}) // it has to be asked for again
	s.eventually("the former one is staged", func() bool { return s.record().Phase == "staged" })
	s.reason(first, "waits for approval")
	s.made("apply 2.0.0", 0)
	s.made("apply 3.0.0", 0)
	expect.Equal(t, slices.Contains(s.runtime.running(), first+"-main 1.0.0"), true, "the former revision runs")

	s.approve(a)
	s.approve(a) // once more is no error, whenever it comes
	s.heard(first, append(installed, "pending@1", "installing@6", "installed@6")...)
	s.approve(a)
	answers := s.record().Answers
	expect.Equal(t, len(answers), 1, "answers")
	expect.Equal(t, answers[0].By, byHand.String(), "who answered")
}

// Who approves before all is fetched need not come again.
func TestAnApprovalInAdvance(t *testing.T) {
	s := newSite(t, ruled(policy.Rules{Approval: policy.ApproveAll}))
	release := s.publishUntil("fetch 1.0.0", 1, map[string]string{first: document(first, "1.0.0")})
	s.approve(document(first, "1.0.0"))
	release()
	s.heard(first, installed...)
	s.made("fetch 1.0.0", 1)
}

// What was rejected is reported, is not even fetched when it comes back, and
// stays so until somebody approves it.
func TestARejectionIsRemembered(t *testing.T) {
	s := installedSite(t, ruled(policy.Rules{Approval: policy.ApproveUpdates}))
	a, b := document(first, "2.0.0"), document(first, "3.0.0")
	s.publish(2, map[string]string{first: a})
	s.reason(first, "waits for approval")
	s.reject(a)
	s.reject(a)
	s.heard(first, append(installed, "pending@1", "failed@2")...)
	s.heardError(first, "REJECTED", byHand.String(), "not today")
	s.restart()
	s.publish(3, map[string]string{first: b})
	s.reason(first, "waits for approval")
	fetched := s.runtime.count("fetch 2.0.0")
	s.publish(4, map[string]string{first: a})
	s.heard(first, append(installed, "pending@1", "failed@2", "pending@2", "failed@4")...)
	s.made("fetch 2.0.0", fetched)
	s.untouched("1.0.0", "apply 2.0.0", "apply 3.0.0")
	s.approve(a)
	s.heard(first, append(installed, "pending@1", "failed@2", "pending@2", "failed@4", "pending@4", "installing@4", "installed@4")...)
	s.untouched("2.0.0")
}

// Who rejects what is being fetched ends that.
func TestARejectionEndsTheDownload(t *testing.T) {
	s := installedSite(t)
	s.publishUntil("fetch 2.0.0", 2, map[string]string{first: document(first, "2.0.0")})
	s.reject(document(first, "2.0.0"))
	s.heard(first, append(installed, "pending@1", "failed@2")...)
	s.untouched("1.0.0")
}

// What is being applied cannot be rejected any more, and an approval that is late
// is no error.
func TestAnswersThatComeLate(t *testing.T) {
	s := installedSite(t)
	release := s.publishUntil("apply 2.0.0", 2, map[string]string{first: document(first, "2.0.0")})
	s.approve(document(first, "2.0.0"))
	conflict(t, s.answer(s.agent.Reject, document(first, "2.0.0"), ""), "rollback")
	release()
	s.heard(first, append(installed, "pending@1", "installing@2", "installed@2")...)
	approves := func(deployment, doc string) error {
		return s.agent.Approve(t.Context(), control.AnswerRequest{Deployment: deployment, Revision: digest.FromString(doc).String(), Caller: byHand})
	}
	expect.Error(t, approves(first, document(first, "3.0.0")), control.ErrConflict, "approval where nothing waits")
	expect.Error(t, approves(second, document(first, "2.0.0")), control.ErrNotFound, "approval of no such deployment")
	expect.Error(t, approves("", ""), control.ErrNotFound, "approval of no deployment at all")
}

// A deployment that is no longer listed runs on until its removal is approved.
func TestARemovalWaitsForItsApproval(t *testing.T) {
	s := newSite(t, ruled(policy.Rules{Approval: policy.ApproveUpdates}))
	one := document(first, "1.0.0")
	s.installed()
	s.publish(2, nil)
	s.reason(first, "waits for approval")
	s.heard(first, append(installed, "pending@1")...)
	s.reboot()
	s.runtime.await(t, first+"-main 1.0.0")
	s.publish(3, map[string]string{second: document(second, "1.0.0")})
	s.heard(second, "pending@3", "installing@3", "installed@3")
	s.publish(4, nil)

	s.reject(one)
	s.heard(first, append(installed, "pending@1", "failed@1")...)
	s.publish(5, map[string]string{second: document(second, "1.0.0")})
	s.restart()
	s.eventually("it is kept", func() bool { return s.record().Phase == "leaving" })

	// Listed again it is as it was, and no container has noticed.
	applied := s.runtime.count("apply 1.0.0")
	s.publish(6, map[string]string{first: one, second: document(second, "1.0.0")})
	s.heard(first, append(installed, "pending@1", "failed@1", "installed@6")...)
	s.made("apply 1.0.0", applied)
	s.publish(7, map[string]string{second: document(second, "1.0.0")})
	s.heard(first, append(installed, "pending@1", "failed@1", "installed@6", "pending@6", "failed@6")...)
	s.approve(one)
	s.heard(first, append(installed, "pending@1", "failed@1", "installed@6", "pending@6", "failed@6", "pending@6", "removing@7", "removed@7")...)
	s.runtime.await(t, second+"-main 1.0.0")
}

// The approval of a removal is for that one alone.
func TestAnApprovedRemovalThatIsListedAgain(t *testing.T) {
	s := newSite(t, ruled(policy.Rules{Approval: policy.ApproveUpdates}))
	one := document(first, "1.0.0")
	s.installed()
	s.publish(2, nil)
	s.reason(first, "waits for approval")
	s.gate.close(true)
	s.approve(one)
	s.reason(first, "the gate is closed")
	s.publish(3, map[string]string{first: one})
	s.heard(first, append(installed, "pending@1", "installed@3")...)
	s.gate.close(false)
	s.publish(4, nil)
	s.reason(first, "waits for approval")
	s.untouched("1.0.0")
}

// While a removal waits, another revision may be published; the answer to the
// removal is none to that.
func TestAnotherRevisionInsteadOfARemoval(t *testing.T) {
	s := installedSite(t, ruled(policy.Rules{Approval: policy.ApproveUpdates}))
	s.publish(2, nil)
	s.reason(first, "waits for approval")
	s.publish(3, map[string]string{first: document(first, "2.0.0")})
	s.eventually("it is staged", func() bool { return s.record().Phase == "staged" })
	s.untouched("1.0.0", "apply 2.0.0")
	expect.Error(t, s.answer(s.agent.Approve, document(first, "1.0.0"), ""), control.ErrConflict, "approval of the removal")
	s.approve(document(first, "2.0.0"))
	s.heard(first, append(installed, "pending@1", "installing@3", "installed@3")...)
}

// What never ran needs no approval to go.
func TestWhatNeverRanGoesWithoutApproval(t *testing.T) {
	s := newSite(t, ruled(policy.Rules{Approval: policy.ApproveAll}))
	s.publish(1, map[string]string{first: document(first, "1.0.0")})
	s.reason(first, "waits for approval")
	s.publish(2, nil)
	s.heard(first, "pending@1", "removing@2", "removed@2")
}

// What runs without a record is not removed without approval either.
func TestWhatRunsWithoutARecordWaitsToo(t *testing.T) {
	s := installedSite(t)
	s.quiet()
	s.runtime.set(func() {
		stray := *s.runtime.projects[first+"-main"]
		stray.Name, stray.Labels = second+"-main", map[string]string{"io.margo.deployment": second, "io.margo.component": "main"}
		s.runtime.projects[stray.Name] = &stray
	})
	s.gate.rule(policy.Rules{Approval: policy.ApproveUpdates})
	s.publish(2, map[string]string{first: document(first, "1.0.0")})
	s.reason(second, "waits for approval")
	s.heard(second, "pending@2")
	revision := digest.FromString(second).String()
	check(t, s.agent.Approve(t.Context(), control.AnswerRequest{Deployment: second, Revision: revision, Caller: byHand}))
	s.heard(second, "pending@2", "removing@2", "removed@2")
	s.runtime.await(t, first+"-main 1.0.0")
}

// What waits tells so once, and writes nothing, however often it is woken.
func TestWaitingIsQuiet(t *testing.T) {
	s := installedSite(t, ruled(policy.Rules{Approval: policy.ApproveUpdates}))
	events, cancel := s.agent.Subscribe()
	defer cancel()
	s.publish(2, map[string]string{first: document(first, "2.0.0")})
	s.reason(first, "waits for approval")
	s.quiet()
	writes := s.store.Writes()
	for range 20 {
		s.looks()
	}
	s.wroteNothing(writes)
	told := 0
	for len(events) > 0 {
		if e := <-events; e.Kind == control.ChangeWaits {
			told++
			expect.Equal(t, e.Digest, digest.FromString(document(first, "2.0.0")).String(), "revision of the event")
			expect.Contains(t, e.Text, "approval", "event")
		}
	}
	expect.Equal(t, told, 1, "events")
}

// A window counts at the moment of acting, by the clock of the moment, and what
// was begun inside of it is finished.
func TestPOL07WindowsCountAtTheMomentOfActing(t *testing.T) {
	t.Parallel()
	simulated(t, func(s *site) { s.gate.rules.Windows = windows(t, "02:00-03:00") }, func(t *testing.T, s *site) {
		time.Sleep(2 * time.Hour)
		s.wfm.publish(1, map[string]string{first: document(first, "1.0.0")})
		s.heardWithin(5*time.Minute, first, installed...)

		time.Sleep(time.Until(time.Date(2000, 1, 1, 12, 0, 0, 0, time.UTC)))
		s.wfm.publish(2, map[string]string{first: document(first, "2.0.0")})
		asked := s.gate.count()
		time.Sleep(13 * time.Hour)
		synctest.Wait()
		s.untouched("1.0.0", "apply 2.0.0")
		within(t, s.gate.count()-asked, 0, 13*60*2+10, "questions to the gate within 13 hours")
		begun, release := s.runtime.hold("apply 2.0.0")
		<-begun
		within(t, time.Now().Hour()*60+time.Now().Minute(), 120, 121, "minute of the day at which it began")
		time.Sleep(5 * time.Minute)
		s.stop() // in the middle of it, and when the agent is back the window is closed
		time.Sleep(2 * time.Hour)
		s.start()
		s.heardWithin(2*time.Minute, first, append(installed, "pending@1", "installing@2", "installed@2")...)
		release()
		s.untouched("2.0.0")
	})
}

// An update that passed the gate and has to wait for its turn asks again.
func TestTheGateIsAskedAgainWhenTheTurnComes(t *testing.T) {
	simulated(t, func(*site) {}, func(t *testing.T, s *site) {
		var holds []func()
		all := map[string]string{}
		for n := range 8 { // as many as may have begun
			version := fmt.Sprintf("1.0.%d", n)
			all[numbered(n)] = document(numbered(n), version)
			_, release := s.runtime.hold("apply " + version)
			holds = append(holds, release)
		}
		s.wfm.publish(1, maps.Clone(all))
		time.Sleep(2 * time.Minute)
		all[first] = document(first, "3.0.0")
		s.wfm.publish(2, all)
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		s.gate.close(true)
		for _, release := range holds {
			release()
		}
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		s.made("apply 3.0.0", 0)
		s.gate.close(false)
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		s.heard(first, "pending@2", "installing@2", "installed@2")
	})
}

// A first installation that failed changes containers when it is tried again: the
// gate is asked each time.
func TestARetryAsksTheGate(t *testing.T) {
	simulated(t, func(*site) {}, func(t *testing.T, s *site) {
		s.runtime.fail("apply 1.0.0", runtime.Exited)
		s.wfm.publish(1, map[string]string{first: document(first, "1.0.0")})
		s.heardWithin(2*time.Minute, first, "pending@1", "installing@1", "failed@1")
		s.gate.close(true)
		tried := s.runtime.count("apply 1.0.0")
		time.Sleep(2 * time.Hour)
		synctest.Wait()
		within(t, s.runtime.count("apply 1.0.0")-tried, 0, 1, "tries although the gate was closed") // one may have begun
		s.runtime.fail("", "")
		s.gate.close(false)
		s.heardWithin(20*time.Minute, first, "pending@1", "installing@1", "failed@1", "installed@1")
	})
}

// A lock keeps changes away, removals as well, until it is released; what runs is
// kept, and what is fetched is fetched.
func TestChangesWaitForLocks(t *testing.T) {
	s := installedSite(t)
	hold := control.HoldRequest{Holder: "press 7", Reason: "a batch runs", Caller: byHand}
	release := control.ReleaseRequest{Holder: "press 7", Caller: byHand}
	check(t, expect.ErrorOf(s.agent.Hold(t.Context(), hold)))
	s.publish(2, map[string]string{first: document(first, "2.0.0")})
	s.reason(first, "press 7")
	s.untouched("1.0.0", "apply 2.0.0")
	s.reboot()
	s.runtime.await(t, first+"-main 1.0.0")
	s.reason(first, "press 7")
	check(t, expect.ErrorOf(s.agent.Release(t.Context(), release)))
	s.hears(first, "pending@1", "installing@2", "installed@2")
	check(t, expect.ErrorOf(s.agent.Hold(t.Context(), hold)))
	s.publish(3, nil)
	s.reason(first, "press 7")
	s.untouched("2.0.0")
	check(t, expect.ErrorOf(s.agent.Release(t.Context(), release)))
	s.hears(first, "pending@2", "removing@3", "removed@3")
}

// script is a program of the site, which writes down that it was asked.
func (s *site) script(code string) (policy.Hook, func() int) {
	s.t.Helper()
	dir := s.t.TempDir()
	path, asked := filepath.Join(dir, "hook"), filepath.Join(dir, "asked")
	text := "#!/bin/sh\necho \"$MARGOLITE_CHANGE\" >>" + asked + "\n" + code + "\n"
	check(s.t, os.WriteFile(path, []byte(text), 0o700))
	return policy.Hook{Command: []string{path}, Timeout: time.Minute}, func() int {
		said, _ := os.ReadFile(asked)
		return strings.Count(string(said), "\n")
	}
}

// What the site's hook says no to is refused for good, until somebody approves
// it; then the hook is asked again.
func TestAVetoIsForGood(t *testing.T) {
	s := installedSite(t)
	hook, asked := s.script("echo the line is full; exit 3")
	s.gate.rule(policy.Rules{Hook: hook})
	s.publish(2, map[string]string{first: document(first, "2.0.0")})
	s.hears(first, "pending@1", "failed@2")
	s.heardError(first, "VETOED", "the line is full")
	before := asked()
	s.restart()
	s.runtime.poke()
	s.publish(3, map[string]string{first: document(first, "2.0.0"), second: document(second, "1.0.0")})
	s.heard(second, "pending@3", "failed@3")
	expect.Equal(t, asked()-before, 1, "questions to the hook: about the new one")
	s.untouched("1.0.0", "apply 2.0.0")
	s.gate.rule(policy.Rules{})
	s.approve(document(first, "2.0.0"))
	s.hears(first, "pending@3", "installing@3", "installed@3")

	hook, _ = s.script("exit 3")
	s.gate.rule(policy.Rules{Hook: hook})
	s.publish(4, nil)
	s.hears(first, "pending@3", "failed@3")
	s.restart()
	s.runtime.poke()
	s.eventually("it stays", func() bool { return s.record().Phase == "leaving" })
	s.gate.rule(policy.Rules{})
	s.approve(document(first, "2.0.0"))
	s.hears(first, "pending@3", "removing@4", "removed@4")
}

// A hook that wants to be asked again is not asked by everything that happens, but
// when somebody approves, or the rules change.
func TestAHookIsAskedAgain(t *testing.T) {
	s := installedSite(t)
	hook, asked := s.script("exit 75")
	s.gate.rule(policy.Rules{Hook: hook})
	s.publish(2, map[string]string{first: document(first, "2.0.0")})
	s.reason(first, "asked to wait")
	for range 5 {
		s.looks()
	}
	before := asked()
	expect.Equal(t, before, 1, "questions to the hook")
	s.approve(document(first, "2.0.0"))
	s.eventually("it was asked again", func() bool { return asked() > before })
	s.gate.rule(policy.Rules{})
	s.configure()
	s.heard(first, append(installed, "pending@1", "installing@2", "installed@2")...)
}

// A manifest is accepted while the runtime takes long to say what runs: an
// approval does not wait for that.
func TestAnApprovalDoesNotWaitForTheRuntime(t *testing.T) {
	s := installedSite(t, ruled(policy.Rules{Approval: policy.ApproveUpdates}))
	update := document(first, "2.0.0")
	s.publish(2, map[string]string{first: update})
	s.reason(first, "waits for approval")
	s.quiet()
	begun, release := s.runtime.hold("observe")
	s.wfm.publish(3, map[string]string{first: update, second: document(second, "1.0.0")})
	synced := make(chan error, 1)
	go func() { synced <- s.agent.Sync(context.WithoutCancel(t.Context())) }()
	<-begun
	s.approve(update)
	m, _, err := s.store.Manifest()
	expect.OK(t, err)
	expect.Equal(t, m.Version, 2, "version accepted when the approval came")
	release()
	expect.OK(t, <-synced)
	s.runtime.await(t, first+"-main 2.0.0", second+"-main 1.0.0")
}
