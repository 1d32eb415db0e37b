package agent_test

import (
	"testing"

	"github.com/margolite/margolite/agent"
	"github.com/margolite/margolite/policy"
	"github.com/margolite/margolite/runtime"
)

// ids in the order in which fakeWFM lists them.
const (
	early  = "00000000-0000-4000-8000-000000000001"
	middle = "00000000-0000-4000-8000-000000000002"
	late   = "00000000-0000-4000-8000-000000000003"
)

func byManifest(s *site) { s.gate.order = policy.OrderManifest }

// Deployments are changed in the order of the manifest; one that failed holds nobody
// up, and one that waits says for whom.
func TestDeploymentsAreChangedInTheOrderOfTheManifest(t *testing.T) {
	simulated(t, func(s *site) {
		rarely(s)
		byManifest(s)
		s.reports = agent.Reports{Reasons: true}
	}, func(t *testing.T, s *site) {
		s.runtime.fail("fetch 1.0.0", runtime.Unreachable) // that of the first one alone
		s.publish(1, map[string]string{early: document(early, "1.0.0"), middle: document(middle, "2.0.0"), late: document(late, "3.0.0")})
		s.reason(middle, "after deployment "+early)
		s.reason(late, "after deployment "+middle)
		if running := s.runtime.running(); len(running) > 0 {
			t.Errorf("running is %q", running)
		}
		s.restart() // the order is that of the records
		s.reason(late, "after deployment "+middle)
		s.heardError(late, "WAITS_FOR_TURN")

		s.runtime.fail("fetch 1.0.0", runtime.InvalidPackage)
		s.sync()
		s.heard(middle, "pending@1", "pending@1", "installing@1", "installed@1")
		s.heard(late, "pending@1", "pending@1", "installing@1", "installed@1")
		s.heardError(early, "INVALID_PACKAGE")
	})
}

// A new manifest has a new order also for what waits since the one before.
func TestTheOrderIsThatOfTheNewestManifest(t *testing.T) {
	s := newSite(t, byManifest)
	s.runtime.fail("fetch 2.0.0", runtime.Unreachable)
	s.publish(1, map[string]string{middle: document(middle, "2.0.0")})
	s.reason(middle, "2.0.0")
	s.publish(2, map[string]string{early: document(early, "1.0.0"), middle: document(middle, "2.0.0"), late: document(late, "3.0.0")})
	s.heard(early, "pending@2", "installing@2", "installed@2")
	s.reason(late, "after deployment "+middle)
	s.publish(3, map[string]string{late: document(late, "3.0.0")}) // nobody waits for a removal
	s.heard(late, "pending@2", "installing@3", "installed@3")
}
