package agent_test

import (
	"testing"
	"time"

	"github.com/margolite/margolite/agent"
	"github.com/margolite/margolite/agent/margo"
	"github.com/margolite/margolite/runtime"
	"github.com/margolite/margolite/runtime/container"
	"github.com/margolite/margolite/runtime/health"
	"github.com/margolite/margolite/test/expect"
)

// becomes gives the container of a project another state.
func (f *fakeRuntime) becomes(project string, change func(*runtime.ObservedContainer)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	c := &f.projects[project].Containers[0]
	*c = runtime.ObservedContainer{
		Container: container.Container{Image: c.Image, State: runtime.Running, Labels: container.Labels{Service: c.Service, Number: 1}},
		Started:   time.Now(),
	}
	change(c)
	f.ended = append(f.ended, project)
	f.poke()
}

// The WFM hears what is wrong with a service that was installed, and when it is well
// again.
func TestST10WhatRunsIsReported(t *testing.T) {
	for code, ill := range map[string]func(*runtime.ObservedContainer){
		"SERVICE_EXITED":         func(c *runtime.ObservedContainer) { c.State, c.ExitCode = runtime.Stopped, 3 },
		"SERVICE_RESTARTING":     func(c *runtime.ObservedContainer) { c.State, c.ExitCode, c.Restarting = runtime.Stopped, 3, true },
		"SERVICE_UNHEALTHY":      func(c *runtime.ObservedContainer) { c.Health = health.Status{State: health.Unhealthy, Code: 3} },
		"SERVICE_NOT_STARTED":    func(c *runtime.ObservedContainer) { c.State, c.Waiting = runtime.Created, "db to complete, code 3" },
		"SERVICE_NOT_RESPONDING": func(c *runtime.ObservedContainer) { c.State = runtime.Unresponsive },
	} {
		t.Run(code, func(t *testing.T) {
			s := newSite(t, func(s *site) {
				s.set.Reports, s.set.Settle = agent.Reports{Running: true, Grace: 50 * time.Millisecond}, 20*time.Millisecond
			})
			s.installed()
			s.runtime.becomes(first+"-main", ill)
			s.heard(first, "pending@1", "installing@1", "installed@1", "failed@1")
			last := s.wfm.last(first)
			for _, f := range []*margo.Fault{last.Error, last.Components[0].Error} {
				expect.Equal(t, f.Code, code, "code")
				expect.Contains(t, f.Message, "since "+time.Now().UTC().Format("2006-01-02"), "message")
			}
			if code != "SERVICE_NOT_RESPONDING" {
				expect.Contains(t, last.Error.Message, "code 3", "message")
			}
			s.restart() // it is known what was told
			changes := s.runtime.sum("apply", "remove")
			s.runtime.becomes(first+"-main", func(*runtime.ObservedContainer) {})
			s.heard(first, "pending@1", "installing@1", "installed@1", "failed@1", "installed@1")
			expect.Equal(t, s.runtime.sum("apply", "remove"), changes, "changes of containers")
			expect.Equal(t, s.wfm.last(first).Error, nil, "error of what is well")
			expect.Equal(t, s.wfm.last(first).Components[0].Error, nil, "error of the component")
		})
	}
}

// A shim that responds again says nothing of it: it is looked at again.
func TestST10AShimThatRespondsAgain(t *testing.T) {
	simulated(t, func(s *site) {
		s.set.Reports, s.set.Settle = agent.Reports{Running: true, Grace: time.Minute}, time.Second
	}, func(t *testing.T, s *site) {
		s.publish(1, map[string]string{first: document(first, "1.0.0")})
		s.heardWithin(time.Hour, first, "pending@1", "installing@1", "installed@1")
		s.runtime.becomes(first+"-main", func(c *runtime.ObservedContainer) { c.State = runtime.Unresponsive })
		s.heardWithin(time.Hour, first, "pending@1", "installing@1", "installed@1", "failed@1")
		s.runtime.set(func() { s.runtime.projects[first+"-main"].Containers[0].State = runtime.Running })
		s.heardWithin(time.Minute, first, "pending@1", "installing@1", "installed@1", "failed@1", "installed@1")
	})
}

// A one-shot service that ended well is well, as is one that waits for another whose
// health is not decided, e.g. after a power cut; and nothing is told where the device is
// told to tell nothing.
func TestWhatIsWellIsNotReported(t *testing.T) {
	for name, test := range map[string]struct {
		tell   bool
		change func(*runtime.ObservedContainer)
	}{
		"a one-shot service": {true, func(c *runtime.ObservedContainer) { c.State = runtime.Done }},
		"one that waits for a health check": {true, func(c *runtime.ObservedContainer) {
			c.State, c.Waiting, c.Undecided = runtime.Created, "db-1 to be healthy", true
		}},
		"switched off": {false, func(c *runtime.ObservedContainer) { c.State, c.ExitCode = runtime.Stopped, 3 }},
	} {
		t.Run(name, func(t *testing.T) {
			s := installedSite(t, func(s *site) { s.set.Reports = agent.Reports{Running: test.tell} })
			s.quiet()
			writes := s.store.Writes()
			for range 20 { // however often
				looked := s.runtime.looks()
				s.runtime.becomes(first+"-main", test.change)
				s.eventually("the agent looks at it", func() bool { return s.runtime.looks() > looked })
			}
			s.stop()
			s.wroteNothing(writes)
		})
	}
}

// The state of every deployment is told again at the rate that the site has chosen, with
// the polls and nothing written: later where the WFM does not hear it, and not by what
// waits in the outbox, which says the same.
func TestST10TheCurrentStateIsToldAgain(t *testing.T) {
	simulated(t, func(s *site) {
		s.set.Poll.Interval, s.set.Reports = 10*time.Minute, agent.Reports{Interval: 24 * time.Hour}
		s.random = func(n time.Duration) time.Duration { return n - 1 } // a day after the start, and from then on a tenth early
	}, func(t *testing.T, s *site) {
		s.bothInstalled()
		s.quiet()
		writes := s.store.Writes()
		time.Sleep(23*time.Hour + 30*time.Minute)
		s.hears(first)
		time.Sleep(time.Hour)
		s.hears(first, "installed@1")
		s.hears(second, "installed@1")

		s.wfm.answer(first, answered(503, ""))
		time.Sleep(24 * time.Hour)
		s.hears(first)
		s.wfm.answer(first, nil)
		time.Sleep(time.Hour)
		s.hears(first, "installed@1")
		s.hears(second, "installed@1")
		s.wroteNothing(writes)

		s.wfm.answer(first, answered(404, ""))
		s.publish(2, map[string]string{first: document(first, "2.0.0"), second: document(second, "1.0.0")})
		time.Sleep(48 * time.Hour)
		s.wfm.answer(first, nil)
		time.Sleep(12 * time.Hour)
		s.hears(first, "pending@1", "installing@2", "installed@2")
	})
}

// A deployment that is pending says what it waits for, where the site wants it.
func TestST11PendingSaysWhy(t *testing.T) {
	closed := func(s *site) { s.gate.close(true) }
	for code, lacks := range map[string]func(s *site){
		"WAITS_FOR_REGISTRY": func(s *site) { s.runtime.fail("fetch 1.0.0", runtime.Unreachable) },
		"WAITS_FOR_SPACE":    func(s *site) { s.runtime.fail("spare", runtime.NoSpace) },
		"WAITS_FOR_CLOSED":   closed,
		"":                   closed, // where the site does not want it
	} {
		t.Run(code, func(t *testing.T) {
			simulated(t, func(s *site) { s.set.Reports = agent.Reports{Reasons: code != ""} }, func(t *testing.T, s *site) {
				lacks(s)
				told := []string{"installing@1", "installed@1"}
				s.publish(1, map[string]string{first: document(first, "1.0.0")})
				if code == "" {
					s.reason(first, "the gate is closed")
					s.hears(first, "pending@1")
				} else {
					s.hears(first, "pending@1", "pending@1")
					s.heardError(first, code)
				}
				s.runtime.fail("", "")
				s.gate.close(false)
				s.configure()
				if code == "WAITS_FOR_REGISTRY" {
					told = append([]string{"pending@1"}, told...) // it is staged, and waits for nothing
				}
				s.hears(first, told...)
				expect.Equal(t, s.wfm.last(first).Error, nil, "error of what is installed")
			})
		})
	}
}
