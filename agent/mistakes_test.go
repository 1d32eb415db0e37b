package agent_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/margolite/margolite/agent/control"
	"github.com/margolite/margolite/test/expect"
)

// A panic while one deployment is worked on is that deployment's failure, and
// keeps no other from being worked on: its turn and its place go to the next.
func TestAPanicIsOneFailedDeployment(t *testing.T) {
	t.Parallel()
	pending, installing := "pending@1", "installing@1"
	for name, c := range map[string]struct {
		at    string
		heard []string
	}{
		"while its images are staged":   {"stage 6.6.6", []string{pending, "failed@1"}},
		"while its containers are made": {"apply 6.6.6", []string{pending, installing, "failed@1"}},
	} {
		t.Run(name, func(t *testing.T) {
			var l log
			s := newSite(t, logged(&l))
			s.runtime.fail(c.at, panics)
			s.updates(1, "6.6.6", c.heard...)
			s.heardError(first, "DEVICE_ERROR", c.at+" panics")

			// The others are installed, as many as there are turns and more.
			documents := many(5, "1.0.0")
			documents[first] = document(first, "6.6.6")
			s.publish(2, documents)
			for n := range 5 {
				s.heard(numbered(n), "pending@2", "installing@2", "installed@2")
			}
			expect.Equal(t, strings.Count(l.String(), "stack="), 1, "stacks in the log")
			st := s.fullStatus()
			expect.Contains(t, st.SelfCheck.LastPanic.Object, first, "last panic")
			expect.Contains(t, st.SelfCheck.LastPanic.Text, c.at+" panics", "last panic")
			tells := func(e control.Entry) bool { return e.Deployment == first && strings.Contains(e.Text, "panics") }
			expect.Equal(t, slices.ContainsFunc(s.history(), tells), true, "the journal tells of it")

			failed := func(p string) bool { return strings.HasPrefix(p, first) }
			expect.Equal(t, slices.ContainsFunc(s.runtime.running(), failed), false, "what has failed runs")

			// Once it does not panic any more the WFM can have it.
			s.runtime.fail("", "")
			s.publish(3, map[string]string{first: document(first, "7.0.0")})
			s.runtime.await(t, first+"-main 7.0.0")
		})
	}
}

// What is removed with a panic is reported as failed, and tried again.
func TestAPanicInARemoval(t *testing.T) {
	simulated(t, rarely, func(t *testing.T, s *site) {
		s.bothInstalled()
		s.runtime.fail("remove "+first+"-main", panics)
		s.publish(2, nil)
		s.heard(second, append(slices.Clone(installed), "removing@2", "removed@2")...)
		s.heard(first, append(slices.Clone(installed), "removing@2", "failed@2")...)
		s.runtime.fail("", "")
		s.runtime.await(t)
	})
}

// What the WFM answers may bring about a panic: that poll failed, and the next one
// is made. The reporter goes on, too.
func TestAPanicInAPollIsAFailedPoll(t *testing.T) {
	s := newSite(t)
	s.wfm.publish(1, map[string]string{first: document(first, "1.0.0")})
	s.wfm.fail("manifest", errPanics)
	expect.ErrorWith(t, s.agent.Sync(t.Context()), "manifest panics", "poll")
	st := s.fullStatus()
	expect.Equal(t, st.WFM.LastError != "", true, "status tells the error")
	expect.Equal(t, st.SelfCheck.Panics > 0, true, "status counts the panic")
	s.wfm.fail("", nil)
	s.sync()
	s.heard(first, "pending@1", "installing@1", "installed@1")
}

// The agent is alive as long as its loops get on, however long they wait.
func TestAliveUnlessALoopIsStuck(t *testing.T) {
	s := installedSite(t)
	expect.OK(t, s.agent.Alive())
	begun, release := s.wfm.hold("manifest")
	asked := make(chan error, 1)
	go func() { asked <- s.agent.Sync(t.Context()) }()
	<-begun
	busy := func() float64 {
		loops := s.fullStatus().SelfCheck.Loops
		return loops[slices.IndexFunc(loops, func(l control.Loop) bool { return l.Name == "poller" })].Busy
	}
	expect.Equal(t, busy() > 0, true, "the poller is busy while it polls")
	expect.OK(t, s.agent.Alive()) // a poll that takes a moment is no reason to restart
	release()
	check(t, <-asked)
	s.eventually("the poller is said to wait after its poll", func() bool { return busy() == 0 })
}

// String is all that was logged.
func (l *log) String() string { return strings.Join(l.with(), "") }
