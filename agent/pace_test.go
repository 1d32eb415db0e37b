package agent_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/margolite/margolite/agent/control"
	"github.com/margolite/margolite/agent/margo"
	"github.com/margolite/margolite/agent/wfm"
	"github.com/margolite/margolite/policy"
)

// In a bubble of synctest every test begins on Saturday, 1 January 2000, at
// midnight UTC, and time passes only while everybody waits for it.

// simulated runs a test of a site on simulated time.
func simulated(t *testing.T, prepare func(*site), test func(t *testing.T, s *site)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		test(t, newSite(t, func(s *site) {
			s.poll.Interval = time.Minute
			prepare(s)
		}))
	})
}

// rarely lets a site poll every hour, where the test says when besides.
func rarely(s *site) { s.poll.Interval = time.Hour }

func windows(t *testing.T, texts ...string) policy.Windows {
	t.Helper()
	var all policy.Windows
	for _, text := range texts {
		w, err := policy.ParseWindow(text, time.UTC)
		check(t, err)
		all = append(all, w)
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
func (s *site) status() control.WFMStatus {
	return s.fullStatus().WFM
}

// failAll lets every call fail, or with nil succeed again.
func (f *fakeWFM) failAll(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	clear(f.failures)
	for _, call := range []string{"capabilities", "manifest", "documents", "status"} {
		if err != nil {
			f.failures[call] = err
		}
	}
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
		if calls := s.wfm.calls(); !slices.Contains(calls, "manifest") {
			t.Errorf("a new device called %v", calls)
		}
		s.installed()
		s.quiet()
		s.stop()
		before := s.wfm.asked()
		s.start()
		synctest.Wait()
		if n := s.wfm.asked() - before; n > 0 {
			t.Errorf("%d calls at the start", n)
		}
		calls, _ := s.during(time.Hour)
		if n := count(calls, "manifest"); n < 59 || n > 68 {
			t.Errorf("%d polls within an hour", n)
		}
		if st := s.status(); st.Waiting != "interval" || st.NextPoll == nil || time.Until(*st.NextPoll) > time.Minute {
			t.Errorf("status is %+v", st)
		}
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
				for s.status().SilentUntil == nil {
					time.Sleep(time.Second)
				}
				if s.wfm.calls()[s.wfm.asked()-1] != call {
					t.Fatalf("calls were %v", s.wfm.calls())
				}
				s.wfm.fail("", nil)
				silent := *s.status().SilentUntil
				if st := s.status(); st.Waiting != "silence" || st.NextPoll.Before(silent) {
					t.Errorf("status is %+v", st)
				}
				s.runtime.poke()
				s.agent.Wake()
				if err := s.agent.Sync(t.Context()); !errors.Is(err, control.ErrConflict) {
					t.Errorf("sync: %v", err)
				}
				s.stop()
				time.Sleep(20 * time.Minute)
				s.start()
				s.agent.Configure(s.settings())
				calls, _ := s.during(time.Until(silent) - time.Second)
				if len(calls) > 0 {
					t.Errorf("during the silence there were %v", calls)
				}
				s.heardWithin(5*time.Minute, first, heard...)
				if over := time.Since(silent); over > 3*time.Minute {
					t.Errorf("it went on %v after the silence", over)
				}
				time.Sleep(2 * time.Minute)
				synctest.Wait()
				if value, set, err := s.store.Setting("silence"); set || err != nil {
					t.Errorf("the record is still %q, %v", value, err)
				}
			})
		})
	}
}

// In downtime nothing is sent, by anybody, and nothing is said about it.
func TestPOL01NothingIsSentInDowntime(t *testing.T) {
	simulated(t, func(s *site) { s.poll.Downtime = windows(t, "02:00-06:00") }, func(t *testing.T, s *site) {
		s.installed()
		s.gate.close(true)
		s.publish(2, map[string]string{first: document(first, "2.0.0")})
		time.Sleep(2*time.Hour - time.Since(time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)))
		s.gate.close(false) // there will be something to report
		s.runtime.poke()
		calls, _ := s.during(4*time.Hour - time.Second)
		if len(calls) > 0 {
			t.Errorf("in downtime there were %v", calls)
		}
		s.runtime.await(t, first+"-main 2.0.0")
		if err := s.agent.Sync(t.Context()); !errors.Is(err, control.ErrConflict) || !strings.Contains(err.Error(), "downtime") {
			t.Errorf("sync: %v", err)
		}
		st := s.status()
		if st.Waiting != "downtime" || st.DowntimeUntil == nil || st.DowntimeUntil.Hour() != 6 || st.NextPoll.Before(*st.DowntimeUntil) {
			t.Errorf("status is %+v", st)
		}
		calls, times := s.during(6 * time.Minute)
		if count(calls, "manifest") == 0 || count(calls, "status") == 0 {
			t.Errorf("after downtime there were %v at %v", calls, times)
		}
	})
}

// An error that comes in downtime, of a request that was under way, is neither
// told nor counted.
func TestPOL02ErrorsInDowntimeAreIgnored(t *testing.T) {
	var l log
	simulated(t, func(s *site) {
		logged(&l)(s)
		s.poll.Downtime = windows(t, "02:00-06:00")
	}, func(t *testing.T, s *site) {
		s.installed()
		time.Sleep(2*time.Hour - 2*time.Minute - time.Since(time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)))
		began, release := s.wfm.hold("manifest")
		<-began
		time.Sleep(10 * time.Minute)
		s.wfm.failAll(errUnreachable)
		before := s.status()
		release()
		synctest.Wait()
		if st := s.status(); !st.Reachable || st.LastError != "" || !st.LastPoll.Equal(*before.LastPoll) {
			t.Errorf("status is %+v", st)
		}
		if strings.Contains(l.String(), errUnreachable.Error()) {
			t.Errorf("the log says %s", &l)
		}
		time.Sleep(6*time.Hour - time.Since(time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)))
		synctest.Wait()
		if st := s.status(); st.Waiting != "interval" {
			t.Errorf("the device waits for the %s after downtime", st.Waiting)
		}
		time.Sleep(time.Hour) // and after downtime it is a failure
		synctest.Wait()
		if st := s.status(); st.Reachable || st.Waiting != "backoff" || strings.Count(l.String(), errUnreachable.Error()) != 1 {
			t.Errorf("after downtime the status is %+v and the log %s", st, &l)
		}
	})
}

// The desired state is asked for in windows only; reports and capabilities go
// out at any time, and so does what a person asks for.
func TestPOL03POL07PollsKeepToTheirWindows(t *testing.T) {
	simulated(t, func(s *site) { s.poll.Windows = windows(t, "12:00-13:00") }, func(t *testing.T, s *site) {
		if calls := s.wfm.calls(); count(calls, "manifest") > 0 {
			t.Fatalf("calls were %v", calls)
		}
		s.publish(1, map[string]string{first: document(first, "1.0.0")}) // by hand
		s.heard(first, "pending@1", "installing@1", "installed@1")
		s.wfm.publish(2, map[string]string{first: document(first, "2.0.0")})

		s.poll.Interval = 2 * time.Minute
		set := s.settings()
		set.Device.Vendor = "another"
		s.agent.Configure(set)
		calls, _ := s.during(12*time.Hour - time.Minute)
		if count(calls, "manifest") > 0 || count(calls, "capabilities") != 1 {
			t.Errorf("while no window was open there were %v", calls)
		}
		if st := s.status(); st.Waiting != "window" || st.ClosedUntil == nil || st.ClosedUntil.Hour() != 12 || !st.NextPoll.Equal(*st.ClosedUntil) {
			t.Errorf("status is %+v", st)
		}
		calls, _ = s.during(time.Hour)
		if n := count(calls, "manifest"); n < 27 || n > 36 {
			t.Errorf("%d polls in a window of an hour", n)
		}
		s.heard(first, "pending@1", "installing@1", "installed@1", "pending@1", "installing@2", "installed@2")
		if calls, _ = s.during(20 * time.Hour); count(calls, "manifest") > 2 {
			t.Errorf("after the window there were %d polls", count(calls, "manifest"))
		}
	})
}

// Settings take effect while the agent runs, without touching what runs.
func TestSettingsChangeWhileTheAgentRuns(t *testing.T) {
	simulated(t, func(s *site) { s.poll.Interval = time.Hour }, func(t *testing.T, s *site) {
		s.installed()
		s.quiet()
		s.gate.close(true)
		s.updates(2, "2.0.0", "pending@1", "installing@1", "installed@1", "pending@1")
		applied := s.runtime.count("apply 1.0.0")

		s.gate, s.poll.Interval = &fakeGate{}, time.Minute // an open one
		set := s.settings()
		set.Device.ModelNumber, set.URL = "another", "https://other.example"
		s.agent.Configure(set)
		s.heard(first, "pending@1", "installing@1", "installed@1", "pending@1", "installing@2", "installed@2")
		calls, _ := s.during(time.Hour)
		if n := count(calls, "manifest"); n < 55 || n > 70 {
			t.Errorf("%d polls within an hour", n)
		}
		all := s.wfm.calls()
		if n := count(all, "capabilities"); n != 2 {
			t.Errorf("capabilities were reported %d times, want again after the change", n)
		}
		if st := s.status(); st.URL != "https://other.example" {
			t.Errorf("status is %+v", st)
		}
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
		if polls, fetches := count(calls, "manifest"), count(calls, "documents"); polls < 119 || fetches < 5 || fetches > 10 {
			t.Errorf("within two hours %d polls, %d times documents", polls, fetches)
		}
		if st := s.status(); !strings.Contains(st.Refused, "digest") {
			t.Errorf("status is %+v", st)
		}
		before := s.wfm.count("documents")
		if err := s.agent.Sync(t.Context()); err == nil || s.wfm.count("documents") != before+1 {
			t.Errorf("sync: %v, and %d times documents", err, s.wfm.count("documents")-before)
		}
		time.Sleep(30 * time.Minute)
		s.wfm.fail("", nil)
		s.wfm.publish(3, map[string]string{first: document(first, "3.0.0")})
		s.heardWithin(2*time.Minute, first, "pending@1", "installing@1", "installed@1", "pending@1", "installing@3", "installed@3")
	})
}

// How long the WFM is to be left alone is known after a restart (ERR-04). Only a long
// silence is worth a write to the flash, and is known after a reboot.
func TestERR04SilenceOutlivesARestart(t *testing.T) {
	for name, test := range map[string]struct {
		asked  time.Duration
		writes bool
	}{
		"brief": {time.Minute, false},
		"long":  {time.Hour, true},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			s.sync()
			s.quiet()
			before := s.store.Writes()
			s.wfm.fail("manifest", unavailable(test.asked))
			s.refuses()
			if wrote := s.store.Writes() != before; wrote != test.writes {
				t.Errorf("written to the store: %t", wrote)
			}
			s.stop()
			s.wfm.fail("", nil)
			asked := s.wfm.asked()
			silent := func() time.Duration {
				s.start()
				defer s.stop()
				status := s.fullStatus()
				if status.WFM.SilentUntil == nil {
					return 0
				}
				return time.Until(*status.WFM.SilentUntil)
			}
			if left := silent(); left < test.asked/2 || left > test.asked+time.Second || s.wfm.asked() != asked {
				t.Errorf("after a restart it is silent for %s, and called %d times", left, s.wfm.asked()-asked)
			}
			s.runDir = t.TempDir() // memory is lost in a reboot
			if left := silent(); left > 0 != test.writes {
				t.Errorf("after a reboot it is silent for %s", left)
			}
		})
	}
}
