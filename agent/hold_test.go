package agent_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/margolite/margolite/agent/control"
)

// A lock of a deployment names it as everything else on the command line does,
// and is part of the status until it is released.
func TestADeploymentIsHeldByItsName(t *testing.T) {
	s := installedSite(t)
	who := control.Caller{UID: 1000, User: "operator"}
	if _, err := s.agent.Hold(t.Context(), control.HoldRequest{Deployment: "nobody's", Caller: who}); !errors.Is(err, control.ErrNotFound) {
		t.Errorf("the error is %v", err)
	}
	for _, name := range []string{"app", strings.ToUpper(first[:8]), first} {
		lock, err := s.agent.Hold(t.Context(), control.HoldRequest{Deployment: name, Reason: "bearings", Caller: who})
		if err != nil || lock.Deployment != first || lock.Holder != "operator" {
			t.Errorf("%q is held by %+v, %v", name, lock, err)
		}
	}
	locks := func() []control.Lock {
		return s.fullStatus().Locks
	}
	s.restart()
	if got := locks(); len(got) != 1 || got[0].Deployment != first || got[0].Reason != "bearings" {
		t.Errorf("the locks are %+v", got)
	}
	if released, err := s.agent.Release(t.Context(), control.ReleaseRequest{Caller: who}); err != nil || len(released) != 1 {
		t.Errorf("released are %+v, %v", released, err)
	}
	if got := locks(); len(got) != 0 {
		t.Errorf("the locks are %+v", got)
	}
}
