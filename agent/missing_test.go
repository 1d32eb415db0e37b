package agent_test

import (
	"slices"
	"testing"
	"time"

	"github.com/margolite/margolite/runtime"
)

// While runc is missing an update fails, and so does going back to what ran before. When runc is installed again, nobody has
// to order anything.
func TestAnUpdateIsRetriedWhenRuncIsBack(t *testing.T) {
	t.Parallel()
	simulated(t, func(*site) {}, func(t *testing.T, s *site) {
		s.wfm.publish(1, map[string]string{first: document(first, former)})
		s.heardWithin(2*time.Minute, first, installed...)
		s.runtime.fails(runtime.Internal, update, "apply "+former)
		s.wfm.publish(2, map[string]string{first: document(first, "2.0.0")})
		// The second failure says that the former revision does not start either.
		told := append(slices.Clone(installed), "pending@1", "installing@2", "failed@2", "failed@2")
		s.heardWithin(24*time.Hour, first, told...)
		s.heardError(first, "DEVICE_ERROR")
		if tries, _ := s.pass(24 * time.Hour); tries == 0 {
			t.Error("it was not retried while runc was missing")
		}
		s.heard(first, told...)

		s.runtime.fail("", "")
		s.heardWithin(24*time.Hour, first, append(told, "installing@2", "installed@2")...)
		if got := s.runtime.running(); !slices.Equal(got, []string{first + "-main 2.0.0"}) {
			t.Errorf("running is %v", got)
		}
	})
}
