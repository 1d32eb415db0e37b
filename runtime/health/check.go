package health

import (
	"cmp"
	"time"

	"github.com/margolite/margolite/runtime/compose"
)

// The values of Docker.
const (
	defaultInterval      = 30 * time.Second
	defaultTimeout       = 30 * time.Second
	defaultStartInterval = 5 * time.Second
	defaultRetries       = 3
)

// isOff says that a check is switched off.
func isOff(c compose.Healthcheck) bool { return len(c.Test) == 0 || c.Test[0] == "NONE" }

// commandOf is what a probe runs: CMD and the arguments, or CMD-SHELL and a line for the shell; nil: it is no command.
func commandOf(c compose.Healthcheck) []string {
	switch {
	case c.Test[0] == "CMD":
		return c.Test[1:]
	case c.Test[0] == "CMD-SHELL" && len(c.Test) == 2:
		return []string{"/bin/sh", "-c", c.Test[1]}
	}
	return nil
}

// filled has the values of Docker for what a check does not say.
func filled(c compose.Healthcheck) compose.Healthcheck {
	c.Interval = cmp.Or(c.Interval, defaultInterval)
	c.Timeout = cmp.Or(c.Timeout, defaultTimeout)
	c.StartInterval = cmp.Or(c.StartInterval, defaultStartInterval)
	c.Retries = cmp.Or(c.Retries, defaultRetries)
	return c
}

// State is how a container fares.
type State string

// The states; a container without a check has none.
const (
	Starting  State = "starting"
	Healthy   State = "healthy"
	Unhealthy State = "unhealthy"
)

// Status is what is known of a container.
type Status struct {
	State    State
	Failures int // probes in a row that failed and counted
	// The last probe: when it ended, with which code (-1: it could not be run or
	// did not end in time), and the beginning of its output, as text.
	Probed time.Time
	Code   int
	Output string
	// Skipped says why the latest probe was not run: what is known is older then.
	Skipped string
}

// after is the status after one more probe. A failure counts, unless it may be
// that the container has not come that far. One that was not tried changes nothing.
func (s Status) after(c compose.Healthcheck, counts bool, p probe) Status {
	if s.Skipped = p.skipped; p.skipped != "" {
		return s
	}
	s.Probed, s.Code, s.Output = p.ended, p.code, p.output
	switch {
	case p.code == 0:
		s.State, s.Failures = Healthy, 0
	case s.State == Starting && !counts:
	default:
		s.Failures = min(s.Failures+1, c.Retries)
		if s.Failures >= c.Retries {
			s.State = Unhealthy
		}
	}
	return s
}

func (s Status) pause(c compose.Healthcheck, started, now time.Time) time.Duration {
	if s.State != Starting {
		return c.Interval
	}
	if left := c.StartPeriod - now.Sub(started); left > 0 {
		return min(c.StartInterval, max(left, time.Millisecond))
	}
	return c.Interval
}
