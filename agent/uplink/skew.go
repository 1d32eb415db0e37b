package uplink

import (
	"fmt"
	"time"

	"github.com/margolite/margolite/agent/wfm"
)

// tolerance is how far the clocks of the device and of the WFM may differ without a
// word: some WFMs take no signature from more than half a minute in the future.
const tolerance = 20 * time.Second

// skewOf says how far the device's clock, which shows now, is off the WFM's; empty: it
// does not matter.
func skewOf(c *wfm.Client, now time.Time) string {
	behind, _ := c.ServerLag(now)
	if behind.Abs() <= tolerance {
		return ""
	}
	how, step := "behind", time.Second // which is as exactly as a WFM tells it
	if behind < 0 {
		how = "ahead of"
	}
	if behind.Abs() > 5*time.Minute {
		step = time.Minute
	}
	return fmt.Sprintf("this device's clock is %s %s the WFM's", behind.Abs().Round(step), how)
}

// mendClock is what to do about it. Which of the two clocks is right is not
// known; the device's is the one at hand.
const mendClock = "set this device's clock"

// clockError is a refusal for which the device's clock is probably the reason.
type clockError struct {
	err  error
	skew string
}

func (e *clockError) Error() string { return e.err.Error() + "; " + e.skew }

func (e *clockError) Unwrap() error { return e.err }

// Mend says what to do about it, for people.
func (e *clockError) Mend() string { return mendClock }
