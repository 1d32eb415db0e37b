package agent_test

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/margolite/margolite/agent/control"
	"github.com/margolite/margolite/agent/margo"
	"github.com/margolite/margolite/agent/wfm"
	"github.com/margolite/margolite/policy"
	"github.com/margolite/margolite/test/expect"
)

// In a bubble of synctest every test begins on Saturday, 1 January 2000, at
// midnight UTC, and time passes only while everybody waits for it.

// simulated runs a test of a site on simulated time.
func simulated(t *testing.T, prepare func(*site), test func(t *testing.T, s *site)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		test(t, newSite(t, func(s *site) {
			s.set.Poll.Interval = time.Minute
			prepare(s)
		}))
	})
}

// rarely lets a site poll every hour, where the test says when besides.
func rarely(s *site) { s.set.Poll.Interval = time.Hour }

func windows(t *testing.T, texts ...string) policy.Windows {
	t.Helper()
	var all policy.Windows
	for _, text := range texts {
		all = append(all, expect.Value(policy.ParseWindow(text, time.UTC))(t))
	}
	return all
}

// during returns which calls came within the next time, and when, since then.
func (s *site) during(d time.Duration) (calls []string, times []time.Duration) {
	s.t.Helper()
	synctest.Wait()
	began, before := time.Now(), s.wfm.asked()
	time.Sleep(d)
	synctest.Wait()
	s.wfm.mu.Lock()
	defer s.wfm.mu.Unlock()
	for _, at := range s.wfm.times[before:] {
		times = append(times, at.Sub(began))
	}
	return slices.Clone(s.wfm.log[before:]), times
}

// count is how often there is a call among calls.
func count(calls []string, call string) (n int) {
	for _, c := range calls {
		if c == call {
			n++
		}
	}
	return n
}

// status is what the agent tells about the WFM.
func (s *site) status() control.WFMStatus { return s.fullStatus().WFM }

// failAll lets every call fail, or with nil succeed again.
func (f *fakeWFM) failAll(err error) {
	f.set(func() {
		f.failures = map[string]error{"capabilities": err, "manifest": err, "documents": err, "status": err}
	})
}

// unavailable is a WFM that asks not to be called for a while.
func unavailable(after time.Duration) error {
	return &wfm.Error{Op: "get state manifest", Status: 503, RetryAfter: after, Problem: margo.ParseProblem("", 503, nil)}
}

// The device asks, at the rate that it is told. A new one asks at once; one that has an
// accepted manifest does not, as the rest of a plant that just got power again would.
func TestDS01TheDeviceAsksAtItsRate(t *testing.T) {
	simulated(t, func(*site) {}, func(t *testing.T, s *site) {
		synctest.Wait()
		expect.Equal(t, s.wfm.count("manifest") > 0, true, "a new device polls")
		s.installed()
		s.quiet()
		s.stop()
		before := s.wfm.asked()
		s.start()
		synctest.Wait()
		expect.Equal(t, s.wfm.asked()-before, 0, "calls at the start")
		calls, _ := s.during(time.Hour)
		within(t, count(calls, "manifest"), 59, 68, "polls within an hour")
		expect.Equal(t, s.status().Waiting, "interval", "what is waited for")
		within(t, int(time.Until(s.status().NextPoll)), 0, int(time.Minute), "nanoseconds until the next poll")
	})
}

// What the WFM answers to one request holds for all of them: the poller's, the
// reporter's, those by hand, and those after a restart.
func TestERR04SilenceHoldsForEverybody(t *testing.T) {
	for call, heard := range map[string][]string{
		"manifest": {"pending@1", "installing@1", "installed@1", "pending@1", "installing@2", "installed@2"},
		"status":   {"pending@1", "installing@1", "installed@1", "installed@2"}, // the rest piled up
	} {
		t.Run("ERR-04 asked of "+call, func(t *testing.T) {
			simulated(t, func(*site) {}, func(t *testing.T, s *site) {
				s.installed()
				s.quiet()
				s.wfm.fail(call, unavailable(time.Hour))
				s.wfm.publish(2, map[string]string{first: document(first, "2.0.0")})
				for s.status().SilentUntil.IsZero() {
					time.Sleep(time.Second)
				}
				expect.Equal(t, s.wfm.calls()[s.wfm.asked()-1], call, "last call")
				s.wfm.fail("", nil)
				silent := s.status().SilentUntil
				expect.Equal(t, s.status().Waiting, "silence", "what is waited for")
				expect.Equal(t, s.status().NextPoll.Before(silent), false, "the next poll is in the silence")
				s.runtime.poke()
				s.agent.Wake()
				expect.Error(t, s.agent.Sync(t.Context()), control.ErrConflict, "sync")
				s.stop()
				time.Sleep(20 * time.Minute)
				s.runDir = t.TempDir() // memory is lost in a reboot
				s.start()
				s.configure()
				calls, _ := s.during(time.Until(silent) - time.Second)
				expect.Equal(t, len(calls), 0, "calls during the silence")
				s.heardWithin(5*time.Minute, first, heard...)
				within(t, int(time.Since(silent)), 0, int(3*time.Minute), "nanoseconds after the silence")
				time.Sleep(2 * time.Minute)
				synctest.Wait()
				_, set, err := s.store.Setting("silence")
				expect.OK(t, err)
				expect.Equal(t, set, false, "silence is still recorded")
			})
		})
	}
}

// In downtime nothing is sent, by anybody, and nothing is said about it.
func TestPOL01NothingIsSentInDowntime(t *testing.T) {
	simulated(t, func(s *site) { s.set.Poll.Downtime = windows(t, "02:00-06:00") }, func(t *testing.T, s *site) {
		s.installed()
		s.gate.close(true)
		s.publish(2, map[string]string{first: document(first, "2.0.0")})
		time.Sleep(2*time.Hour - time.Since(time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)))
		s.gate.close(false) // there will be something to report
		s.runtime.poke()
		calls, _ := s.during(4*time.Hour - time.Second)
		expect.Equal(t, len(calls), 0, "calls in downtime")
		s.runtime.await(t, first+"-main 2.0.0")
		conflict(t, s.agent.Sync(t.Context()), "downtime")
		st := s.status()
		expect.Equal(t, st.Waiting, "downtime", "what is waited for")
		expect.Equal(t, st.DowntimeUntil.Hour() == 6 && !st.NextPoll.Before(st.DowntimeUntil), true, "the next poll is after downtime: %+v", st)
		calls, times := s.during(6 * time.Minute)
		expect.Equal(t, count(calls, "manifest") > 0, true, "polls after downtime in %v at %v", calls, times)
		expect.Equal(t, count(calls, "status") > 0, true, "reports after downtime in %v at %v", calls, times)
	})
}

// An error that comes in downtime, of a poll or a report that was under way, is neither
// told nor counted.
func TestPOL02ErrorsInDowntimeAreIgnored(t *testing.T) {
	var l log
	simulated(t, func(s *site) {
		logged(&l)(s)
		s.set.Poll.Downtime = windows(t, "02:00-06:00")
	}, func(t *testing.T, s *site) {
		s.installed()
		time.Sleep(time.Until(time.Date(2000, 1, 1, 1, 55, 0, 0, time.UTC)))
		s.wfm.set(func() { s.wfm.pause = 15 * time.Minute })
		s.publish(2, map[string]string{first: document(first, "2.0.0")})
		began, release := s.wfm.hold("manifest")
		<-began
		time.Sleep(10 * time.Minute)
		s.wfm.failAll(errUnreachable)
		before := s.status()
		release()
		time.Sleep(time.Hour)
		expect.Equal(t, s.status().Reachable, true, "reachable in downtime")
		expect.Equal(t, s.status().LastPoll, before.LastPoll, "last poll")
		expect.Equal(t, len(l.with(errUnreachable.Error())), 0, "lines of log in downtime")
		time.Sleep(time.Until(time.Date(2000, 1, 1, 6, 0, 0, 0, time.UTC)))
		synctest.Wait()
		expect.Equal(t, s.status().Waiting, "interval", "what is waited for after downtime")
		time.Sleep(time.Hour) // and after downtime it is a failure
		synctest.Wait()
		expect.Equal(t, len(l.with(errUnreachable.Error(), "cannot deliver")), 1, "failures of reports in the log after downtime")
		expect.Equal(t, len(l.with(errUnreachable.Error())), 2, "failures in the log after downtime")
		expect.Equal(t, s.status().Reachable, false, "reachable after downtime")
		expect.Equal(t, s.status().Waiting, "backoff", "what is waited for")
	})
}

// The desired state is asked for in windows only; reports and capabilities go
// out at any time, and so does what a person asks for.
func TestPOL03POL07PollsKeepToTheirWindows(t *testing.T) {
	simulated(t, func(s *site) { s.set.Poll.Windows = windows(t, "12:00-13:00") }, func(t *testing.T, s *site) {
		expect.Equal(t, s.wfm.count("manifest"), 0, "polls out of the window")
		s.publish(1, map[string]string{first: document(first, "1.0.0")}) // by hand
		s.heard(first, "pending@1", "installing@1", "installed@1")
		s.wfm.publish(2, map[string]string{first: document(first, "2.0.0")})

		s.set.Poll.Interval = 2 * time.Minute
		s.set.Device.Vendor = "another"
		s.configure()
		calls, _ := s.during(12*time.Hour - time.Minute)
		expect.Equal(t, count(calls, "manifest"), 0, "polls before the window")
		expect.Equal(t, count(calls, "capabilities"), 1, "capabilities before the window")
		st := s.status()
		expect.Equal(t, st.Waiting, "window", "what is waited for")
		expect.Equal(t, st.ClosedUntil.Hour() == 12 && st.NextPoll.Equal(st.ClosedUntil), true, "the next poll is in the window: %+v", st)
		calls, _ = s.during(time.Hour)
		within(t, count(calls, "manifest"), 27, 36, "polls in a window of an hour")
		s.heard(first, "pending@1", "installing@1", "installed@1", "pending@1", "installing@2", "installed@2")
		calls, _ = s.during(20 * time.Hour)
		within(t, count(calls, "manifest"), 0, 2, "polls after the window")
	})
}

// Settings take effect while the agent runs, without touching what runs.
func TestSettingsChangeWhileTheAgentRuns(t *testing.T) {
	simulated(t, func(s *site) { s.set.Poll.Interval = time.Hour }, func(t *testing.T, s *site) {
		s.installed()
		s.quiet()
		s.gate.close(true)
		s.updates(2, "2.0.0", "pending@1", "installing@1", "installed@1", "pending@1")
		applied := s.runtime.count("apply 1.0.0")

		s.gate, s.set.Poll.Interval = &fakeGate{}, time.Minute // an open one
		s.set.Device.ModelNumber, s.set.URL = "another", "https://other.example"
		s.configure()
		s.heard(first, "pending@1", "installing@1", "installed@1", "pending@1", "installing@2", "installed@2")
		calls, _ := s.during(time.Hour)
		within(t, count(calls, "manifest"), 55, 70, "polls within an hour")
		all := s.wfm.calls()
		expect.Equal(t, count(all, "capabilities"), 2, "capabilities told")
		expect.Equal(t, s.status().URL, "https://other.example", "URL")
		s.made("apply 1.0.0", applied)
	})
}

// A WFM whose content does not match its digest is still asked for its manifest at
// every poll, but not for megabytes each time. After another manifest, or when a user
// asks, it is fetched at once.
func TestWhatIsRefusedIsFetchedEverMoreRarely(t *testing.T) {
	simulated(t, func(*site) {}, func(t *testing.T, s *site) {
		s.installed()
		s.wfm.fail("documents", fmt.Errorf("fetch bundle: %w", wfm.ErrDigestMismatch))
		s.wfm.publish(2, map[string]string{first: document(first, "2.0.0")})
		calls, _ := s.during(2 * time.Hour)
		// With the shortest of all random waits, ten fetches fit into two hours.
		within(t, count(calls, "manifest"), 119, 1000, "polls within two hours")
		within(t, count(calls, "documents"), 5, 10, "times documents within two hours")
		expect.Contains(t, s.status().Refused, "digest", "refused")
		before := s.wfm.count("documents")
		s.refuses()
		expect.Equal(t, s.wfm.count("documents"), before+1, "times documents")
		time.Sleep(30 * time.Minute)
		s.wfm.fail("", nil)
		s.wfm.publish(3, map[string]string{first: document(first, "3.0.0")})
		s.heardWithin(2*time.Minute, first, "pending@1", "installing@1", "installed@1", "pending@1", "installing@3", "installed@3")
	})
}

// A brief silence is not worth a write to the flash: it is known after a restart, and not
// after a reboot (ERR-04).
func TestERR04ABriefSilenceOutlivesARestart(t *testing.T) {
	s := newSite(t)
	s.sync()
	s.quiet()
	writes := s.store.Writes()
	s.wfm.fail("manifest", unavailable(time.Minute))
	s.refuses()
	s.wroteNothing(writes)
	s.wfm.fail("", nil)
	asked := s.wfm.asked()
	s.restart()
	within(t, int(time.Until(s.status().SilentUntil)/time.Second), 30, 60, "seconds of silence after a restart")
	s.stop()
	expect.Equal(t, s.wfm.asked(), asked, "calls")
	s.runDir = t.TempDir()
	s.start()
	expect.Equal(t, s.status().SilentUntil, time.Time{}, "end of the silence after a reboot")
}
