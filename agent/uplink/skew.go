package uplink

import (
	"fmt"
	"time"

	"github.com/margolite/margolite/agent/wfm"
)

// lag is how far the device's clock is behind the WFM's; negative: ahead of it.
type lag time.Duration

// tolerance is how far the clocks may differ without a word: some WFMs take no
// signature from more than half a minute in the future.
const tolerance = lag(20 * time.Second)

// lagOf compares the device's clock with that of the WFM.
func lagOf(c *wfm.Client, now time.Time) lag {
	behind, _ := c.ServerLag(now)
	return lag(behind)
}

func (l lag) matters() bool { return l > tolerance || l < -tolerance }

func (l lag) String() string {
	behind, how := time.Duration(l), "behind"
	if behind < 0 {
		behind, how = -behind, "ahead of"
	}
	step := time.Second // which is as exactly as a WFM tells it
	if behind > 5*time.Minute {
		step = time.Minute
	}
	return fmt.Sprintf("this device's clock is %s %s the WFM's", behind.Round(step), how)
}

// mendClock is what to do about it. Which of the two clocks is right is not
// known; the device's is the one at hand.
const mendClock = "set this device's clock"

// clockError is a refusal for which the device's clock is probably the reason.
type clockError struct {
	err error
	lag lag
}

func (e *clockError) Error() string { return e.err.Error() + "; " + e.lag.String() }

func (e *clockError) Unwrap() error { return e.err }

// Mend says what to do about it, for people.
func (e *clockError) Mend() string { return mendClock }
