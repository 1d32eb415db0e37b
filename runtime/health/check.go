package health

import (
	"cmp"
	"time"

	"github.com/margolite/margolite/runtime/compose"
)

// CheckOf is the health check of a service: its own, with that of the image for what it
// does not say. Either may be nil; the result is nil if there is no check.
func CheckOf(service, image *compose.Healthcheck) *compose.Healthcheck {
	var check compose.Healthcheck
	for _, given := range []*compose.Healthcheck{service, image} {
		if given != nil {
			check = filled(check, *given)
		}
	}
	if isOff(check) {
		return nil
	}
	return &check
}

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

// filled is c, with the fields that it leaves empty taken from other.
func filled(c, other compose.Healthcheck) compose.Healthcheck {
	if len(c.Test) == 0 {
		c.Test = other.Test
	}
	c.Interval = cmp.Or(c.Interval, other.Interval)
	c.Timeout = cmp.Or(c.Timeout, other.Timeout)
	c.StartPeriod = cmp.Or(c.StartPeriod, other.StartPeriod)
	c.StartInterval = cmp.Or(c.StartInterval, other.StartInterval)
	c.Retries = cmp.Or(c.Retries, other.Retries)
	return c
}

// docker has the values that Docker takes where a check does not say them.
func docker() compose.Healthcheck {
	return compose.Healthcheck{Interval: 30 * time.Second, Timeout: 30 * time.Second, StartInterval: 5 * time.Second, Retries: 3}
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
func (s Status) after(c compose.Healthcheck, counts bool, probe Status) Status {
	if s.Skipped = probe.Skipped; s.Skipped != "" {
		return s
	}
	s.Probed, s.Code, s.Output = probe.Probed, probe.Code, probe.Output
	switch {
	case probe.Code == 0:
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
