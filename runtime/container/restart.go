package container

import (
	"cmp"
	"time"

	"github.com/margolite/margolite/runtime/compose"
)

// Restart is when a container is started again after it ended by itself.
type Restart struct {
	Policy compose.RestartMode `json:"policy"`
	Max    int                 `json:"max,omitempty"`    // attempts in a row with on-failure; 0: without end
	Delay  time.Duration       `json:"delay,omitempty"`  // the least delay before an attempt; 0: chosen
	Window time.Duration       `json:"window,omitempty"` // what ran that long starts with a clean record; 0: chosen
}

// RestartOf is the restart policy of a service.
func RestartOf(s *compose.Service) Restart {
	r := s.Restart
	return Restart{Policy: cmp.Or(r.Mode, compose.RestartNo), Max: r.MaxRetries, Delay: r.Delay, Window: r.Window}
}

// OneShot tells whether a container that ends with 0 is done, and not to be started again.
func (r Restart) OneShot() bool {
	return r.Policy == compose.RestartNo || r.Policy == compose.RestartOnFailure
}

// After tells whether a container that ended with code is to be started again,
// when it already was failures times in a row.
func (r Restart) After(code, failures int) bool {
	switch r.Policy {
	case compose.RestartAlways, compose.RestartUnlessStopped: // what is stopped here is also deleted
		return true
	case compose.RestartOnFailure:
		return code != 0 && (r.Max == 0 || failures < r.Max)
	default:
		return false
	}
}
