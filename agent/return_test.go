package agent_test

import (
	"fmt"
	"os"
	"reflect"
	"slices"
	"testing"

	"github.com/opencontainers/go-digest"

	"github.com/margolite/margolite/agent/control"
	"github.com/margolite/margolite/policy"
	"github.com/margolite/margolite/runtime"
	"github.com/margolite/margolite/test/expect"
)

func revisionOf(doc string) digest.Digest { return digest.FromString(doc) }

// goBack asks for the revision before; to, if not empty, is its document.
func (s *site) goBack(to string) error {
	r := control.ReturnRequest{Deployment: first, Reason: "the press stands still", Caller: byHand}
	if to != "" {
		r.Revision = revisionOf(to).String()
	}
	return s.agent.Rollback(s.t.Context(), r)
}

// refusedToGoBack fails the test unless going back is refused for a reason.
func (s *site) refusedToGoBack(to, why string) {
	s.t.Helper()
	conflict(s.t, s.goBack(to), why)
}

// A rollback by hand brings the revision before back, is told, and holds over
// restarts and newer manifests until they list another revision.
func TestRollbackByHandHolds(t *testing.T) {
	one, two, three := document(first, "1.0.0"), document(first, "2.0.0"), document(first, "3.0.0")
	s := installedSite(t)
	s.refusedToGoBack("", "no longer kept")
	s.publish(2, map[string]string{first: two})
	s.hears(first, "pending@1", "installing@2", "installed@2")
	s.gate.close(true) // it waits for nobody
	s.refusedToGoBack(three, "it can go back to "+revisionOf(one).String())
	check(t, s.goBack(""))
	s.runtime.await(t, first+"-main 1.0.0")
	s.hears(first, "failed@2")
	s.heardError(first, "ROLLED_BACK", byHand.String(), "stands still", revisionOf(one).String())
	s.gate.close(false)
	s.refusedToGoBack("", "already")
	s.refusedToGoBack(two, "no longer kept")
	s.reboot()
	s.runtime.await(t, first+"-main 1.0.0")
	s.publish(3, map[string]string{first: two, second: document(second, "1.0.0")})
	s.heard(second, "pending@3", "installing@3", "installed@3")
	s.configure()
	s.publish(4, map[string]string{first: two})
	s.heard(second, "pending@3", "installing@3", "installed@3", "removing@4", "removed@4")
	s.untouched("1.0.0")
	s.publish(5, map[string]string{first: three})
	s.hears(first, "pending@4", "installing@5", "installed@5")
	expect.Equal(t, s.record().Former.Digest, revisionOf(one), "revision before")
}

// What is being applied gives way at once.
func TestRollbackInTheMiddleOfAnUpdate(t *testing.T) {
	s := installedSite(t)
	s.publishUntil("apply 2.0.0", 2, map[string]string{first: document(first, "2.0.0")})
	check(t, s.goBack(document(first, "1.0.0")))
	s.runtime.await(t, first+"-main 1.0.0")
	s.heard(first, append(installed, "pending@1", "installing@2", "failed@2")...)
	s.eventually("it is done with", func() bool { return s.record().Return == "" })
}

// A rollback that meets the end of the update is not lost.
func TestRollbackWhenTheUpdateHasJustWorked(t *testing.T) {
	s := installedSite(t)
	s.quiet()
	s.runtime.set(func() {
		s.runtime.camera = func(what string) {
			if what == "apply 2.0.0" { // and this step succeeds
				expect.OK(t, s.goBack(""))
			}
		}
	})
	s.updates(2, "2.0.0", append(installed, "pending@1", "installing@2", "failed@2")...)
	s.endsAs("", ending{"failed", "ROLLED_BACK", []string{first + "-main 1.0.0"}})
}

// Where there is nothing to go back to, or nothing has begun, it is said so.
func TestRollbacksThatCannotBe(t *testing.T) {
	s := newSite(t, ruled(policy.Rules{Approval: policy.ApproveUpdates}))
	expect.Error(t, s.goBack(""), control.ErrNotFound, "rollback without a deployment")
	release := s.publishUntil("apply 1.0.0", 1, map[string]string{first: document(first, "1.0.0")})
	s.refusedToGoBack("", "no revision of it has worked")
	release()
	s.heard(first, installed...)
	s.publish(2, map[string]string{first: document(first, "2.0.0")})
	s.reason(first, "approval")
	s.refusedToGoBack("", "reject")
	s.reject(document(first, "2.0.0"))
	s.refusedToGoBack("", "already")
	s.publish(3, nil)
	s.reason(first, "approval")
	s.refusedToGoBack("", "no longer lists")
}

// The revision before is gone from the store.
func TestRollbackToWhatIsGone(t *testing.T) {
	s := installedSite(t)
	s.updates(2, "2.0.0", append(installed, "pending@1", "installing@2", "installed@2")...)
	s.change(s.lose(revisionOf(document(first, "1.0.0"))))
	s.refusedToGoBack("", "no longer kept on this device")
	s.untouched("2.0.0")
}

// The revision before is kept, whole; the one before that is not. With the way
// back switched off none is, also where it was switched off later.
func TestOneStepIsKept(t *testing.T) {
	s := installedSite(t)
	for i, revision := range []string{"2.0.0", "3.0.0"} {
		s.publish(uint64(i+2), map[string]string{first: document(first, revision)})
		now, before := string(rune('2'+i)), string(rune('1'+i))
		s.hears(first, "pending@"+before, "installing@"+now, "installed@"+now)
	}
	s.eventually("the first one is gone", func() bool { return !s.store.HasArtifact(revisionOf(document(first, "1.0.0"))) })
	for _, part := range []string{document(first, "2.0.0"), "2.0.0"} {
		expect.Equal(t, s.store.HasArtifact(revisionOf(part)), true, "the revision before is kept")
	}
	s.gate.rule(policy.Rules{Rollback: policy.RollbackOff})
	s.configure()
	s.eventually("the one before is gone", func() bool { return !s.store.HasArtifact(digest.FromString("2.0.0")) })
	s.refusedToGoBack("", "no longer kept")
	s.publish(4, map[string]string{first: document(first, "4.0.0")})
	s.hears(first, "pending@3", "installing@4", "installed@4")
	expect.Equal(t, s.record().Former, nil, "revision before")
}

// Where people decide about the way back, an update that failed is left as it is:
// over restarts, and while the next one waits.
func TestAFailedUpdateIsLeftToPeople(t *testing.T) {
	for _, rule := range []policy.Rollback{policy.RollbackManual, policy.RollbackOff} {
		t.Run(string(rule), func(t *testing.T) {
			s := installedSite(t, ruled(policy.Rules{Rollback: rule}))
			s.runtime.fail("apply 2.0.0", runtime.Unhealthy)
			s.publish(2, map[string]string{first: document(first, "2.0.0")})
			s.hears(first, "pending@1", "installing@2", "failed@2")
			s.heardError(first, "CONTAINER_UNHEALTHY", "left as it is", "apply 2.0.0 fails")
			tried := s.runtime.count("apply 2.0.0")
			s.restart()
			s.runtime.poke()
			s.gate.close(true)
			s.publish(3, map[string]string{first: document(first, "3.0.0")})
			s.reason(first, "the gate is closed")
			s.runtime.poke()
			s.untouched("2.0.0", "apply 3.0.0")
			s.made("apply 2.0.0", tried)
			check(t, s.goBack(""))
			s.runtime.await(t, first+"-main 1.0.0")
			s.gate.close(false)
			s.runtime.poke()
			s.hears(first, "pending@2", "installing@3", "installed@3")
		})
	}
	t.Run("until somebody asks", func(t *testing.T) {
		s := installedSite(t, ruled(policy.Rules{Rollback: policy.RollbackManual}))
		s.runtime.fail("apply 2.0.0", runtime.Unhealthy)
		s.updates(2, "2.0.0", append(installed, "pending@1", "installing@2", "failed@2")...)
		check(t, s.goBack(""))
		s.runtime.await(t, first+"-main 1.0.0")
		s.heard(first, append(installed, "pending@1", "installing@2", "failed@2", "failed@2")...)
	})
	t.Run("or the rules change", func(t *testing.T) {
		s := installedSite(t, ruled(policy.Rules{Rollback: policy.RollbackManual}))
		s.runtime.fail("apply 2.0.0", runtime.Unhealthy)
		s.updates(2, "2.0.0", append(installed, "pending@1", "installing@2", "failed@2")...)
		s.gate.rule(policy.Rules{})
		s.configure()
		s.runtime.await(t, first+"-main 1.0.0")
		s.gate.rule(policy.Rules{Rollback: policy.RollbackManual})
		s.configure()
		s.runtime.reset() // what came back is kept like any other
		s.runtime.poke()
		s.runtime.await(t, first+"-main 1.0.0")
	})
	t.Run("the revision before published again is an update", func(t *testing.T) {
		s := installedSite(t, ruled(policy.Rules{Rollback: policy.RollbackManual, Approval: policy.ApproveUpdates}))
		s.runtime.fail("apply 2.0.0", runtime.Unhealthy)
		s.publish(2, map[string]string{first: document(first, "2.0.0")})
		s.reason(first, "approval")
		s.approve(document(first, "2.0.0"))
		s.heard(first, append(installed, "pending@1", "installing@2", "failed@2")...)
		s.publish(3, map[string]string{first: document(first, "1.0.0")})
		s.reason(first, "approval")
		s.untouched("2.0.0")
		s.approve(document(first, "1.0.0"))
		s.heard(first, append(installed, "pending@1", "installing@2", "failed@2", "pending@2", "installing@3", "installed@3")...)
		s.untouched("1.0.0")
	})
}

// A failed update is told with what becomes of it, and once more when the
// revision before cannot be had back.
func TestAFailedUpdateWhoseFormerRevisionFails(t *testing.T) {
	s := installedSite(t)
	s.runtime.set(func() {
		s.runtime.failures["apply 2.0.0"], s.runtime.failures["apply 1.0.0"] = runtime.Exited, runtime.Exited
	})
	s.updates(2, "2.0.0", append(installed, "pending@1", "installing@2", "failed@2", "failed@2")...)
	one := revisionOf(document(first, "1.0.0")).String()
	expect.Contains(t, s.wfm.told(first)[5].Error.Message, "back to revision "+one, "message before")
	expect.Contains(t, s.wfm.told(first)[5].Error.Message, "apply 2.0.0 fails", "message before")
	s.heardError(first, "CONTAINER_EXITED", "does not run either", "apply 1.0.0 fails", "apply 2.0.0 fails")
}

// A revision that the agent does not survive is given up after three times, and
// the former one comes back; without one nothing runs. It is not tried again.
func TestARevisionThatIsInterruptedTimeAndAgain(t *testing.T) {
	for name, test := range map[string]struct {
		former  bool
		pending string
		runs    []string
	}{
		"an update":       {true, "pending@1", []string{first + "-main 1.0.0"}},
		"an installation": {false, "pending@2", nil},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			if test.former {
				s.installed()
			}
			begun := s.runtime.block("apply 2.0.0")
			s.publish(2, map[string]string{first: document(first, "2.0.0")})
			for range 2 {
				<-begun
				s.restart(func() { begun = s.runtime.block("apply 2.0.0") })
			}
			<-begun
			s.restart()
			s.eventually("it is given up", func() bool { d := s.record(); return d.Phase == "failed" && d.Return != "due" })
			s.runtime.await(t, test.runs...)
			s.hears(first, test.pending, "installing@2", "failed@2")
			s.heardError(first, "INTERRUPTED")
			var observed int
			s.restart(func() { observed = s.runtime.looks() })
			s.eventually("the agent looked", func() bool { return s.runtime.looks() > observed })
			s.quiet()
			s.made("apply 2.0.0", 3)
		})
	}
}

// A revision that fails in order is not one that was interrupted, however often
// the agent is restarted.
func TestAFailureIsNoInterruption(t *testing.T) {
	s := newSite(t)
	s.runtime.fail("apply 1.0.0", runtime.Exited)
	s.updates(1, "1.0.0", "pending@1", "installing@1", "failed@1")
	for i := range 6 {
		s.restart()
		s.eventually("it was tried again", func() bool { return s.runtime.count("apply 1.0.0") > i+1 })
		s.eventually("it ended", func() bool { return s.record().Attempts == 0 })
	}
	s.runtime.fail("", "")
	s.restart()
	s.heard(first, "pending@1", "installing@1", "failed@1", "installed@1")
}

// A moment is what a power cut leaves: the store as it is on the medium, and the
// containers.
type moment struct {
	what     string // was done last
	store    []byte
	projects map[string]*runtime.ObservedProject
}

// camera keeps every moment at which the agent can be killed: after each
// transaction, and before and after each step that changes containers. Between
// two of these nothing changes that survives.
type camera struct {
	s       *site
	moments []moment
	off     bool
}

func (c *camera) commit(verb string) {
	data, err := os.ReadFile(c.s.database())
	expect.OK(c.s.t, err)
	c.s.runtime.mu.Lock()
	defer c.s.runtime.mu.Unlock()
	c.take("commit "+verb, data)
}

// step is called with the runtime's mutex held.
func (c *camera) step(what string) {
	if len(c.moments) > 0 {
		c.take(what, c.moments[len(c.moments)-1].store)
	}
}

func (c *camera) take(what string, data []byte) {
	if c.off {
		return
	}
	m := moment{what: what, store: data, projects: map[string]*runtime.ObservedProject{}}
	for name, p := range c.s.runtime.projects {
		own := *p
		own.Containers = slices.Clone(p.Containers)
		m.projects[name] = &own
	}
	c.moments = append(c.moments, m)
}

// ending is what a deployment comes to.
type ending struct {
	phase, code string // empty: it is forgotten
	running     []string
}

// endsAs waits until the deployment is as one of these says, after what has happened.
func (s *site) endsAs(after string, endings ...ending) {
	s.t.Helper()
	s.eventually(fmt.Sprintf("%s the deployment ends as one of %+v", after, endings), func() bool {
		d, _ := s.store.Deployment(first) // none where it is forgotten
		is := ending{phase: d.Phase, running: s.runtime.running()}
		if d.Fault != nil {
			is.code = d.Fault.Code
		}
		return d.Return == "" && slices.ContainsFunc(endings, func(e ending) bool { return reflect.DeepEqual(is, e) })
	})
}

// Wherever the agent is killed, in the end the old or the new revision runs, as a
// whole, and the record says which. Every point is tried.
func TestAKillAtAnyPointEndsInOneRevision(t *testing.T) {
	if testing.Short() {
		t.Skip("in make test-all: kills at every point")
	}
	of := func(revision string) string {
		return documentOf(first, map[string]string{"a": revision, "b": revision + "-b"})
	}
	runs := func(revision string) []string {
		return []string{first + "-a " + revision, first + "-b " + revision + "-b"}
	}
	works := ending{"active", "", runs("2.0.0")}
	for name, test := range map[string]struct {
		rules   policy.Rules
		fails   string // the step that fails
		does    func(s *site)
		end     ending
		another []ending // where a power cut may lead as well
		lists   bool     // the WFM lists it still
	}{
		"an update": {end: works, lists: true},
		"an update that fails": {
			fails: "apply 2.0.0-b", lists: true,
			end: ending{"failed", "CONTAINER_EXITED", runs("1.0.0")},
		},
		"a rollback by hand": {
			does: func(s *site) {
				s.eventually("it works", func() bool { return s.record().Phase == "active" })
				check(s.t, s.goBack(""))
			},
			end: ending{"failed", "ROLLED_BACK", runs("1.0.0")}, another: []ending{works}, lists: true,
		},
		"a rejection": {
			rules: policy.Rules{Approval: policy.ApproveUpdates},
			does: func(s *site) {
				s.eventually("it waits", func() bool { return s.record().Phase == "staged" })
				check(s.t, s.answer(s.agent.Reject, of("2.0.0"), ""))
			},
			end: ending{"failed", "REJECTED", runs("1.0.0")}, another: []ending{{"staged", "", runs("1.0.0")}}, lists: true,
		},
		"an approval": {
			rules: policy.Rules{Approval: policy.ApproveUpdates},
			does: func(s *site) {
				s.eventually("it waits", func() bool { return s.record().Phase == "staged" })
				check(s.t, s.answer(s.agent.Approve, of("2.0.0"), ""))
			},
			end: works, another: []ending{{"staged", "", runs("1.0.0")}}, lists: true,
		},
		"a removal": {
			rules: policy.Rules{Approval: policy.ApproveUpdates},
			does: func(s *site) {
				s.eventually("it waits", func() bool { return s.record().Phase == "leaving" })
				check(s.t, s.answer(s.agent.Approve, of("1.0.0"), ""))
			},
			end: ending{}, another: []ending{{"leaving", "", runs("1.0.0")}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t, ruled(test.rules))
			s.publish(1, map[string]string{first: of("1.0.0")})
			s.eventually("it is installed", func() bool { return s.record().Phase == "active" })
			s.quiet()
			listed := map[string]string{}
			if test.lists {
				listed[first] = of("2.0.0")
			}
			film := s.moments(func() {
				s.eventually("it is up", func() bool { return s.runtime.count("observe") > 0 })
				if test.fails != "" {
					s.runtime.fail(test.fails, runtime.Exited)
				}
				s.publish(2, listed)
				if test.does != nil {
					test.does(s)
				}
				s.endsAs("", test.end)
				s.quiet()
			})
			for _, m := range film {
				after := m.after(t, 2, listed, func(after *site) {
					after.gate.rules = test.rules
					if test.fails != "" {
						after.runtime.fail(test.fails, runtime.Exited)
					}
				})
				after.sync()
				after.endsAs("killed after "+m.what, append(test.another, test.end)...)
				after.stop()
			}
		})
	}
}
