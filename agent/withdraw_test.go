package agent_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/margolite/margolite/agent"
	"github.com/margolite/margolite/test/expect"
)

// withdrawals are the requests that take capabilities back, and what the journal says
// about them.
func (s *site) withdrawals() (requests, journal []string) {
	s.t.Helper()
	for _, call := range s.wfm.calls() {
		if strings.HasPrefix(call, "delete ") {
			requests = append(requests, call)
		}
	}
	for _, e := range s.history("capabilities.withdrawn", "capabilities.notwithdrawn") {
		journal = append(journal, e.Kind)
	}
	return requests, journal
}

// A device that is renamed takes back what was reported of it, once, and
// whatever becomes of that keeps nothing up.
func TestCAP06ARenamedDeviceTakesItsCapabilitiesBack(t *testing.T) {
	for name, c := range map[string]struct {
		err     error
		journal string
	}{
		"the WFM hears it": {nil, "capabilities.withdrawn"},
		"the WFM does not": {errors.New("no network"), "capabilities.notwithdrawn"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			s.wfm.fail("delete "+deviceID, c.err)
			s.installed()
			s.set.Device.ID = "edge-02"
			s.configure()
			s.sync()
			s.sync()
			requests, journal := s.withdrawals()
			expect.Equal(t, requests, []string{"delete " + deviceID}, "requests")
			expect.Equal(t, journal, []string{c.journal}, "journal")
			calls := s.wfm.calls()
			last := slices.Index(calls, "delete "+deviceID)
			expect.Equal(t, slices.Contains(calls[:last], "capabilities"), true, "the new id was known before: %q", calls)
		})
	}
}

// A device that moves to another WFM leaves the former one while it knows the way.
func TestCAP06ADeviceThatMovesTakesItsCapabilitiesBack(t *testing.T) {
	s := newSite(t)
	s.sync()
	s.agent.Withdraw(t.Context())
	s.wfm.set(func() { s.wfm.audience = "another WFM" })
	s.sync()
	requests, journal := s.withdrawals()
	expect.Equal(t, requests, []string{"delete " + deviceID}, "requests")
	expect.Equal(t, journal, []string{"capabilities.withdrawn"}, "journal")

	// While the agent did not run: nobody knows the way any more.
	s.restart(func() { s.wfm.set(func() { s.wfm.audience = "a third WFM" }) })
	s.sync()
	requests, journal = s.withdrawals()
	expect.Equal(t, len(requests), 1, "requests")
	expect.Equal(t, journal, []string{"capabilities.withdrawn", "capabilities.notwithdrawn"}, "journal")
}

// A device that is given up does so without an agent.
func TestCAP06ADeviceThatIsGivenUpTakesItsCapabilitiesBack(t *testing.T) {
	s := newSite(t)
	s.sync()
	for range 2 { // the second time there is nothing to take back
		told := expect.Value(agent.Withdraw(t.Context(), s.store, s.wfm, time.Now()))(t)
		requests, _ := s.withdrawals()
		expect.Equal(t, requests, []string{"delete " + deviceID}, "requests, told %t", told)
	}
}
