package health

import (
	"cmp"
	"time"

	"github.com/margolite/margolite/runtime/compose"
)

// CheckOf completes a service's health check with the image's; nil: no check.
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

func isOff(c compose.Healthcheck) bool { return len(c.Test) == 0 || c.Test[0] == "NONE" }

// commandOf accepts CMD and arguments, or CMD-SHELL and a line; nil: neither.
func commandOf(c compose.Healthcheck) []string {
	switch {
	case c.Test[0] == "CMD":
		return c.Test[1:]
	case c.Test[0] == "CMD-SHELL" && len(c.Test) == 2:
		return []string{"/bin/sh", "-c", c.Test[1]}
	}
	return nil
}

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

func docker() compose.Healthcheck {
	return compose.Healthcheck{Interval: 30 * time.Second, Timeout: 30 * time.Second, StartInterval: 5 * time.Second, Retries: 3}
}

// State is the health of a container.
type State string

// The states; a container without a check has none.
const (
	Starting  State = "starting"
	Healthy   State = "healthy"
	Unhealthy State = "unhealthy"
)

// Status is what is known of a container's health.
type Status struct {
	State    State
	Failures int // failed probes in a row that counted
	// The last probe: its end, exit code (-1: not run, or too late) and output, cut off.
	Probed time.Time
	Code   int
	Output string
	// Skipped says why the latest probe was not run; the rest is older then.
	Skipped string
}

// after returns the status after one more probe. A failure counts unless the container may
// still be starting. A probe that was not run changes only Skipped.
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
