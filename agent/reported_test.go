package agent_test

import (
	"errors"
	"testing"
	"time"

	"github.com/margolite/margolite/agent/control"
)

// status says what the WFM was told last, and whether it knows the present state.
func TestStatusSaysWhatWasReported(t *testing.T) {
	s := newSite(t)
	reported := func(what string, want func(r *control.Reported) bool) {
		t.Helper()
		s.eventually("status says of what was reported: "+what, func() bool { return want(s.fullStatus().Deployments[0].Reported) })
	}
	s.publish(1, map[string]string{first: document(first, "1.0.0")})
	reported("installed", func(r *control.Reported) bool {
		return r.State == "installed" && r.At != nil && time.Since(*r.At) < time.Minute && r.Waiting == 0
	})
	s.wfm.fail("status", errors.New("no network"))
	s.publish(2, map[string]string{first: document(first, "2.0.0")})
	reported("nobody hears it", func(r *control.Reported) bool { return r.State == "installed" && r.Waiting > 0 })
	s.restart()
	reported("after a restart", func(r *control.Reported) bool { return r.At == nil && r.Waiting > 0 })
	s.wfm.fail("status", nil)
	s.sync()
	reported("heard again", func(r *control.Reported) bool { return r.At != nil && r.Waiting == 0 })
}
