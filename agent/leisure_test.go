package agent_test

import (
	"os"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/margolite/margolite/policy"
	"github.com/margolite/margolite/runtime"
	"github.com/margolite/margolite/test/expect"
)

const update, former = "apply 2.0.0", "1.0.0"

// failedUpdate has an update that failed with code, as do further steps, and is back.
func (s *site) failedUpdate(code runtime.Code, also ...string) {
	s.t.Helper()
	s.installed()
	s.runtime.fails(code, append(also, update)...)
	s.publish(2, map[string]string{first: document(first, "2.0.0")})
	told := []string{"pending@1", "installing@2", "failed@2"}
	if len(also) > 0 { // it is told that the former revision does not start either
		told = append(told, "failed@2")
	}
	s.hears(first, told...)
	s.pass(time.Minute)
}

// pass lets time pass, and returns what was done and written meanwhile.
func (s *site) pass(d time.Duration) (tries int, writes int64) {
	s.t.Helper()
	tries, writes = s.runtime.count(update), s.store.Writes()
	time.Sleep(d)
	synctest.Wait()
	return s.runtime.count(update) - tries, s.store.Writes() - writes
}

// An update whose fault may pass is tried again, ever more rarely, and what failed
// before in the same way is no news; one that does not work is not.
func TestAnUpdateIsTriedAgainWhereItsFaultMayPass(t *testing.T) {
	t.Parallel()
	const days = 24 * time.Hour
	for name, test := range map[string]struct {
		code  runtime.Code
		also  []string
		tries [4]int // least and most within a day, and within four more
	}{
		"a full device":   {runtime.NoSpace, nil, [4]int{5, 12, 3, 8}},
		"an inner fault":  {runtime.Internal, nil, [4]int{5, 12, 3, 8}},
		"runc is missing": {runtime.Internal, []string{"apply " + former}, [4]int{5, 12, 3, 8}},
		"it does not run": {code: runtime.Exited},
	} {
		t.Run(name, func(t *testing.T) {
			simulated(t, rarely, func(t *testing.T, s *site) {
				s.failedUpdate(test.code, test.also...)
				begun, written := s.pass(days)
				within(t, begun, test.tries[0], test.tries[1], "tries within a day")
				within(t, int(written), 0, (3+len(test.also))*begun, "transactions of %d tries", begun)
				later, _ := s.pass(4 * days)
				within(t, later, test.tries[2], test.tries[3], "tries within four more days")
				s.untouched(former)
				s.hears(first)
				s.runtime.fail("", "")
				s.pass(2 * days)
				if later > 0 {
					s.hears(first, "installing@2", "installed@2")
				}
				s.hears(first)
			})
		})
	}
}

// What a try shows is told when it is something else, and then decides.
func TestATryThatShowsThatAnUpdateDoesNotWork(t *testing.T) {
	simulated(t, rarely, func(t *testing.T, s *site) {
		s.failedUpdate(runtime.Internal)
		s.runtime.fail(update, runtime.Exited)
		tries, _ := s.pass(12 * time.Hour)
		expect.Equal(t, tries, 1, "tries")
		s.hears(first, "failed@2")
		s.heardError(first, "CONTAINER_EXITED", "back to revision")
		s.untouched(former)
	})
}

// An update that fails together with the device is tried again soon after the device has recovered.
// While the device is full, it is not tried at all; space that comes free is not taken for more than one try.
func TestAnUpdateIsTriedAgainOnceTheDeviceHasRecovered(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		code  runtime.Code
		step  string   // that fails as well
		told  []string // besides
		lasts time.Duration
	}{
		"there is space":     {runtime.NoSpace, "spare", nil, 12 * time.Hour},
		"containerd is back": {runtime.Internal, "observe", []string{"failed@2"}, time.Minute}, // it is told that the former revision fails, too
	} {
		t.Run(name, func(t *testing.T) {
			simulated(t, rarely, func(t *testing.T, s *site) {
				s.installed()
				s.runtime.fail(update, test.code)
				release := s.publishUntil(update, 2, map[string]string{first: document(first, "2.0.0")})
				s.runtime.fails(test.code, update, test.step)
				release()
				told := slices.Concat(installed, []string{"pending@1", "installing@2", "failed@2"}, test.told)
				s.heardWithin(time.Minute, first, told...)
				tries, writes := s.pass(test.lasts)
				within(t, tries, 0, 0, "tries meanwhile")
				within(t, int(writes), 0, 3, "transactions meanwhile")
				s.runtime.fail("", "")
				s.heardWithin(2*time.Minute, first, append(told, "installing@2", "installed@2")...)
			})
		})
	}
	t.Run("space comes and goes", func(t *testing.T) {
		simulated(t, rarely, func(t *testing.T, s *site) {
			s.failedUpdate(runtime.NoSpace)
			tries := 0
			for range 240 { // a medium that is full every other minute
				s.runtime.fails(runtime.NoSpace, update, "spare")
				n, _ := s.pass(time.Minute)
				s.runtime.fails(runtime.NoSpace, update)
				more, _ := s.pass(time.Minute)
				tries += n + more
			}
			within(t, tries, 5, 25, "tries within eight hours")
		})
	})
}

// Another try of an update changes containers: the gate is asked, and everything
// has to be there first.
func TestATryOfAnUpdateAsksTheGate(t *testing.T) {
	t.Parallel()
	simulated(t, rarely, func(t *testing.T, s *site) {
		s.failedUpdate(runtime.Internal)
		s.gate.close(true)
		s.runtime.fail("", "")
		tries, _ := s.pass(6 * time.Hour)
		s.untouched(former)
		s.gate.close(false)
		s.runtime.fail("stage 2.0.0", runtime.Unreachable)
		more, _ := s.pass(2 * time.Hour)
		expect.Equal(t, tries, 0, "tries while the gate was closed")
		expect.Equal(t, more, 0, "tries without images")
		s.untouched(former)
		s.runtime.fail("", "")
		s.heardWithin(12*time.Hour, first, append(s.known[first], "installing@2", "installed@2")...)
	})
}

// Where the site says no meanwhile, or goes back by hand, there is no other try.
func TestASiteEndsTheTriesOfAnUpdate(t *testing.T) {
	for name, test := range map[string]struct {
		rules policy.Rules
		says  func(s *site)
	}{
		"it rejects":     {says: func(s *site) { s.reject(document(first, "2.0.0")) }},
		"it leaves them": {rules: policy.Rules{Rollback: policy.RollbackManual}},
	} {
		t.Run(name, func(t *testing.T) {
			simulated(t, func(s *site) {
				rarely(s)
				s.gate.rules = test.rules
			}, func(t *testing.T, s *site) {
				s.failedUpdate(runtime.Internal)
				if test.says != nil {
					test.says(s)
				}
				tries, _ := s.pass(48 * time.Hour)
				expect.Equal(t, tries, 0, "tries")
			})
		})
	}
}

// moments makes a film of what a site does, from its next start on.
func (s *site) moments(does func()) []moment {
	s.t.Helper()
	s.stop()
	film := &camera{s: s}
	s.onCommit, s.runtime.camera = film.commit, film.step
	s.start()
	does()
	s.stop()
	film.off = true
	within(s.t, len(film.moments), 4, 1000, "moments")
	return film.moments
}

// after is a site whose device was killed at a moment, and started again.
func (m moment) after(t *testing.T, version uint64, listed map[string]string, prepare func(*site)) *site {
	t.Helper()
	s := newSite(t, func(s *site) {
		s.set.Poll.Interval = time.Minute
		check(t, os.WriteFile(s.database(), m.store, 0o600))
		s.runtime.projects = m.projects
		s.wfm.publish(version, listed)
		prepare(s)
	})
	return s
}

// Wherever the agent is killed in another try of an update, the old or the new
// revision runs in the end, as a whole.
func TestAKillInATryOfAnUpdate(t *testing.T) {
	if testing.Short() {
		t.Skip("in make test-all: kills at every point")
	}
	listed := map[string]string{first: document(first, "2.0.0")}
	simulated(t, func(*site) {}, func(t *testing.T, s *site) {
		s.failedUpdate(runtime.Internal)
		film := s.moments(func() {
			tries, _ := s.pass(8 * time.Minute)
			within(t, tries, 1, 100, "tries")
			s.runtime.fail("", "")
			s.pass(2 * time.Hour)
		})
		for _, m := range film {
			for _, fails := range []bool{false, true} {
				after := m.after(t, 2, listed, func(s *site) {
					if fails {
						s.runtime.fail(update, runtime.Internal)
					}
				})
				end := ending{"active", "", []string{first + "-main 2.0.0"}}
				also := end
				if fails {
					also = ending{"failed", "DEVICE_ERROR", []string{first + "-main " + former}}
				}
				after.pass(time.Hour)
				after.endsAs("killed after "+m.what, also, end)
				after.stop()
			}
		}
	})
}

// Of a first installation that failed nothing runs until it is tried again; what
// it said is told. Where people decide about the way back it is left to them.
func TestNothingRunsBetweenTheTriesOfAnInstallation(t *testing.T) {
	for rule, running := range map[policy.Rollback][]string{
		"": nil, policy.RollbackManual: {first + "-main 1.0.0"}, policy.RollbackOff: {first + "-main 1.0.0"},
	} {
		t.Run("rollback "+string(rule), func(t *testing.T) {
			simulated(t, ruled(policy.Rules{Rollback: rule}), func(t *testing.T, s *site) {
				s.runtime.fail("apply 1.0.0", runtime.Exited)
				s.wfm.publish(1, map[string]string{first: document(first, "1.0.0")})
				s.heardWithin(2*time.Minute, first, "pending@1", "installing@1", "failed@1")
				for range 20 {
					synctest.Wait()
					s.runs(running...)
					time.Sleep(7 * time.Second)
				}
				within(t, s.runtime.count("apply 1.0.0"), 3, 1000, "tries")
				expect.Contains(t, s.wfm.last(first).Error.Message, "apply 1.0.0 fails", "message")
				expect.Equal(t, slices.Contains(s.agent.Fragile(), first+"-main"), running == nil, "not to be brought back at a start")
				s.runtime.fail("", "")
				s.heardWithin(20*time.Minute, first, "pending@1", "installing@1", "failed@1", "installed@1")
				s.runtime.await(t, first+"-main 1.0.0")
			})
		})
	}
}

// What was begun and never worked goes, also when the WFM wants something else
// meanwhile that cannot be had.
func TestNothingRunsOfWhatWasBegunAndIsNotWantedAnyMore(t *testing.T) {
	for name, meanwhile := range map[string]func(s *site){
		"another revision": func(*site) {},
		"another revision in the middle of the removal": func(s *site) {
			s.publishUntil("remove "+first+"-main", 2, nil)
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			s.publishUntil("apply 1.0.0", 1, map[string]string{first: document(first, "1.0.0")})
			meanwhile(s)
			s.runtime.fail("stage 2.0.0", runtime.NotFound)
			s.publish(3, map[string]string{first: document(first, "2.0.0")})
			s.eventually("it has failed", func() bool { return s.record().Phase == "failed" })
			s.runtime.await(t)
			s.runtime.fail("", "")
			s.restart()
			s.runtime.await(t, first+"-main 2.0.0")
		})
	}
}

// Wherever the agent is killed in a first installation that fails, nothing runs in
// the end.
func TestAKillInAnInstallationThatFails(t *testing.T) {
	if testing.Short() {
		t.Skip("in make test-all: kills at every point")
	}
	listed := map[string]string{first: documentOf(first, map[string]string{"a": "1.0.0", "b": "1.0.0-b"})}
	simulated(t, func(*site) {}, func(t *testing.T, s *site) {
		s.runtime.fail("apply 1.0.0-b", runtime.Exited)
		film := s.moments(func() {
			s.wfm.publish(1, listed)
			s.pass(3 * time.Minute)
		})
		for _, m := range film {
			after := m.after(t, 1, listed, func(s *site) { s.runtime.fail("apply 1.0.0-b", runtime.Exited) })
			after.pass(10 * time.Minute)
			expect.Equal(t, len(after.runtime.running()), 0, "projects that run, killed after %q", m.what)
			expect.Equal(t, after.record().Phase, "failed", "phase, killed after %q", m.what)
			after.stop()
		}
	})
}
