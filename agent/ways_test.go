package agent_test

import (
	"errors"
	"testing"
	"time"

	"github.com/margolite/margolite/agent/wfm"
	"github.com/margolite/margolite/test/expect"
)

// A poll does not mix what two WFMs say: when the WFM became another one
// between the question who it is and the answer, nothing is compared, accepted
// or taken for an attack. Another WFM begins another scope of versions, and is told of
// what runs.
func TestDS06AnotherWFMStartsItsOwnVersions(t *testing.T) {
	s := newSite(t)
	s.updates(10, "1.0.0", "pending@10", "installing@10", "installed@10")
	s.quiet()
	for _, version := range []uint64{3, 20} {
		s.wfm.publish(version, map[string]string{first: document(first, "2.0.0")})
		reached, release := s.wfm.hold("manifest")
		done := make(chan error)
		go func() { done <- s.agent.Sync(t.Context()) }()
		<-reached
		s.wfm.set(func() { s.wfm.identity = "spiffe://factory.example/margo/wfm/other" })
		release()
		expect.ErrorWith(t, <-done, "requested again", "poll of version %d", version)
		expect.Equal(t, s.status().Refused, "", "refusal of version %d", version)
		s.accepted(0, 10)
		s.wfm.set(func() { s.wfm.identity = "spiffe://factory.example/margo/wfm/one" })
	}
	s.wfm.set(func() { s.wfm.identity = "spiffe://factory.example/margo/wfm/other" })
	s.updates(3, "1.0.0", "pending@10", "installing@10", "installed@10", "installed@3")
	s.accepted(0, 3)
	s.made("apply 1.0.0", 1)
}

// besideError is that of a WFM that only hears reports.
type besideError struct{ error }

func (besideError) Beside() bool { return true }

func (e besideError) Unwrap() error { return e.error }

// A WFM that only hears reports keeps nobody from the desired state, which comes
// from elsewhere; it is told the capabilities when it can be, and whoever takes
// its place is told them as well.
func TestAudienceBesideTheDesiredState(t *testing.T) {
	s := newSite(t)
	s.wfm.fail("capabilities", besideError{errors.New("no route to host")})
	s.installed()
	s.wfm.fail("", nil)
	s.sync()
	before := s.wfm.count("capabilities")
	s.wfm.set(func() { s.wfm.audience = "https://reports.example" })
	s.sync()
	s.sync()
	expect.Equal(t, s.wfm.count("capabilities")-before, 1, "times that a new audience was told")
}

// A device that waits to be let in polls as soon as somebody asks it to; the
// silence that the WFM asks for while it does so is kept (ERR-04).
func TestERR04SilenceWhileBeingLetIn(t *testing.T) {
	s := newSite(t)
	s.sync()
	s.wfm.set(func() { s.wfm.closed = answered(403, "") })
	for range 2 {
		s.refuses()
		expect.Equal(t, s.status().SilentUntil, time.Time{}, "end of the silence after a refusal")
	}
	s.wfm.set(func() { s.wfm.closed = nil })
	s.sync()
	s.wfm.set(func() { s.wfm.closed = unavailable(2 * time.Minute) })
	s.refuses()
	expect.Equal(t, s.status().SilentUntil.IsZero(), false, "nobody asked for silence")
	s.wfm.set(func() { s.wfm.closed = nil })
	var known *wfm.Error
	err := s.agent.Sync(t.Context())
	expect.Equal(t, err != nil && !errors.As(err, &known), true, "a poll during silence asks nobody: %v", err)
}
