package uplink

import (
	"fmt"
	"time"

	"github.com/margolite/margolite/agent/wfm"
)

// tolerance is the clock difference to the WFM that is not reported: some WFMs reject signatures
// from more than half a minute in the future.
const tolerance = 20 * time.Second

// skewOf compares the device's clock, which shows now, with the WFM's; empty: no matter.
func skewOf(c *wfm.Client, now time.Time) string {
	behind, _ := c.ServerLag(now)
	if behind.Abs() <= tolerance {
		return ""
	}
	how, step := "behind", time.Second // the precision of a WFM's time
	if behind < 0 {
		how = "ahead of"
	}
	if behind.Abs() > 5*time.Minute {
		step = time.Minute
	}
	return fmt.Sprintf("this device's clock is %s %s the WFM's", behind.Abs().Round(step), how)
}

// mendClock is the fix. Which clock is right is unknown; the device's is the one at hand.
const mendClock = "set this device's clock"

type clockError struct {
	err  error
	skew string
}

func (e *clockError) Error() string { return e.err.Error() + "; " + e.skew }

func (e *clockError) Unwrap() error { return e.err }

// Mend returns how to fix it, for people.
func (e *clockError) Mend() string { return mendClock }
