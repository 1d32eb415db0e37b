package agent_test

import (
	"testing"
	"time"
)

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
