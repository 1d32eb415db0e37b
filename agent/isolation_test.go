package agent_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/margolite/margolite/agent"
	"github.com/margolite/margolite/agent/control"
	"github.com/margolite/margolite/policy"
	"github.com/margolite/margolite/runtime"
	"github.com/margolite/margolite/test/expect"
)

// numbered is the id of the n-th deployment of a test.
func numbered(n int) string { return fmt.Sprintf("ad9b614e-8912-45f4-a523-%012d", n) }

// hanging is the id of the n-th deployment that hang begins.
func hanging(n int) string { return numbered(90 + n) }

// hang adds two deployments to documents whose installations never end, and
// publishes them one after the other, the first with this version.
func (s *site) hang(documents map[string]string, version uint64) {
	s.t.Helper()
	for n := range 2 {
		revision := fmt.Sprintf("9.0.%d", n)
		begun := s.runtime.block("apply " + revision)
		documents[hanging(n)] = timeout(document(hanging(n), revision), "999999m0s")
		s.publish(version+uint64(n), documents)
		<-begun
	}
}

// Installations that hang hold up nobody else: neither a rollback nor a removal
// nor what keeps a deployment running, and other installations only for a while, in
// which status says behind whom they wait.
func TestInstallationsThatHangHoldUpNobody(t *testing.T) {
	simulated(t, rarely, func(t *testing.T, s *site) {
		documents := many(4, "1.0.0")
		s.publish(1, documents)
		for id := range documents {
			s.heard(id, installed...)
		}
		documents[numbered(0)] = document(numbered(0), "2.0.0")
		s.publish(2, documents)
		s.heard(numbered(0), append(slices.Clone(installed), "pending@1", "installing@2", "installed@2")...)

		s.hang(documents, 3)
		runs := func(more ...string) {
			t.Helper()
			s.runtime.await(t, append(more, hanging(0)+"-main 9.0.0", hanging(1)+"-main 9.0.1")...)
		}

		check(t, s.agent.Rollback(t.Context(), control.ReturnRequest{Deployment: numbered(0)}))
		runs(numbered(0)+"-main 1.0.0", numbered(1)+"-main 1.0.0", numbered(2)+"-main 1.0.0", numbered(3)+"-main 1.0.0")

		delete(documents, numbered(1)) // a removal
		s.publish(5, documents)
		s.heard(numbered(1), append(slices.Clone(installed), "removing@5", "removed@5")...)

		s.runtime.set(func() { delete(s.runtime.projects, numbered(2)+"-main") }) // what is brought back
		s.runtime.poke()
		runs(numbered(0)+"-main 1.0.0", numbered(2)+"-main 1.0.0", numbered(3)+"-main 1.0.0")

		documents[numbered(3)] = document(numbered(3), "2.0.0") // an update
		s.publish(6, documents)
		s.reason(numbered(3), "waits for its turn: "+hanging(0)+", "+hanging(1)+" being installed or updated")
		runs(numbered(0)+"-main 1.0.0", numbered(2)+"-main 1.0.0", numbered(3)+"-main 2.0.0")

		delete(documents, hanging(0)) // the removal of what hangs
		s.publish(7, documents)
		s.heard(hanging(0), "pending@3", "installing@3", "removing@7", "removed@7")
	})
}

// reasonOf is why a deployment waits, as status tells.
func (s *site) reasonOf(id string) string {
	s.t.Helper()
	all := s.fullStatus().Deployments
	return all[slices.IndexFunc(all, func(d control.Deployment) bool { return d.ID == id })].Reason
}

// Deployments that wait for a slow registry hold up nobody else, and say what they
// wait for.
func TestASlowRegistryHoldsUpNobody(t *testing.T) {
	const why = "registry slow.example sends 41 bytes a minute, less than the minimum of 16384"
	simulated(t, rarely, func(t *testing.T, s *site) {
		s.runtime.slow = map[string]string{"9.0.0": why}
		documents := many(8, "9.0.0")
		s.publish(1, documents)
		told := func(text string) (n int) {
			for i := range 8 {
				if strings.Contains(s.reasonOf(numbered(i)), text) {
					n++
				}
			}
			return n
		}
		s.eventually("those that download say why it does not get on", func() bool { return told(why) >= 2 })
		s.eventually("those that wait say behind whom", func() bool { return told("waits to download, behind ad9b614e") >= 4 })

		documents[first] = document(first, "1.0.0")
		s.publish(2, documents)
		s.heard(first, "pending@2", "installing@2", "installed@2")

		// They come when their registry does.
		s.publish(3, many(8, "9.0.1"))
		for n := range 8 {
			s.heard(numbered(n), "pending@1", "installing@3", "installed@3")
		}
	})
}

// What is on the device waits for nobody's download.
func TestWhatIsOnTheDeviceWaitsForNoDownload(t *testing.T) {
	s := newSite(t)
	s.runtime.complete = map[string]bool{"1.0.0": true}
	documents := map[string]string{}
	var downloads []<-chan struct{}
	for n := range 5 {
		revision := fmt.Sprintf("9.0.%d", n)
		downloads = append(downloads, s.runtime.block("stage "+revision))
		documents[hanging(n)] = document(hanging(n), revision)
	}
	s.publish(1, documents)
	s.eventually("as many download as may", func() bool {
		begun, waits := 0, 0
		for n, download := range downloads {
			select {
			case <-download:
				begun++
			default:
				if strings.Contains(s.reasonOf(hanging(n)), "waits to download, behind ") {
					waits++
				}
			}
		}
		return begun == 4 && waits == 1
	})
	documents[first] = document(first, "1.0.0")
	s.publish(2, documents)
	s.heard(first, "pending@2", "installing@2", "installed@2")
}

// A prune, and room for what does not fit, does not wait for a slow registry.
func TestASlowRegistryDoesNotKeepWhatNobodyNeeds(t *testing.T) {
	s := newSite(t)
	s.tidied()
	s.installed()
	s.runtime.set(func() { s.runtime.slow = map[string]string{"9.0.0": "registry slow.example gives 41 bytes a minute"} })
	s.publish(2, map[string]string{first: document(first, "1.0.0"), second: document(second, "9.0.0")})
	s.reason(second, "41 bytes a minute")
	pruned := s.runtime.count("prune")
	s.publish(3, map[string]string{second: document(second, "9.0.0")})
	s.eventually("what the removed deployment needed is dropped", func() bool { return s.runtime.count("prune") > pruned })
	s.reason(second, "41 bytes a minute") // it goes on
}

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
		s.set.Reports = agent.Reports{Reasons: true}
	}, func(t *testing.T, s *site) {
		s.runtime.fail("fetch 1.0.0", runtime.Unreachable) // that of the first one alone
		s.publish(1, map[string]string{early: document(early, "1.0.0"), middle: document(middle, "2.0.0"), late: document(late, "3.0.0")})
		s.reason(middle, "after deployment "+early)
		s.reason(late, "after deployment "+middle)
		s.runs()
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

// timeout gives a document's only component a timeout.
func timeout(doc, timeout string) string {
	return strings.Replace(doc, "revision:", "timeout: "+timeout+", revision:", 1)
}

// What the WFM gives as timeout is bounded by the device, which says so.
func TestAD08TheTimeoutIsBoundedByTheDevice(t *testing.T) {
	var l log
	s := newSite(t, func(s *site) {
		s.set.MaxTimeout = 100 * time.Millisecond
		logged(&l)(s)
	})
	s.runtime.block("apply 1.0.0")
	s.publish(1, map[string]string{first: timeout(document(first, "1.0.0"), "999999m")})
	s.heard(first, "pending@1", "installing@1", "failed@1")
	s.heardError(first, "TIMEOUT")
	expect.Equal(t, len(l.with("timeout shortened", "timeout=16666h39m0s", "maxTimeout=100ms")), 1, "lines of log")
}
