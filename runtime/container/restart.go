package container

import (
	"cmp"
	"time"

	"github.com/margolite/margolite/runtime/compose"
)

// Restart is when a container is started again after it ended by itself.
type Restart struct {
	Policy RestartPolicy `json:"policy"`
	Max    int           `json:"max,omitempty"`    // attempts in a row with OnFailure; 0: without end
	Delay  time.Duration `json:"delay,omitempty"`  // the least delay before an attempt; 0: chosen
	Window time.Duration `json:"window,omitempty"` // what ran that long starts with a clean record; 0: chosen
}

// RestartPolicy is the kind of a Restart.
type RestartPolicy string

// The restart policies of Compose.
const (
	Never         RestartPolicy = "no"
	OnFailure     RestartPolicy = "on-failure"
	Always        RestartPolicy = "always"
	UnlessStopped RestartPolicy = "unless-stopped" // as Always: what is stopped here is also deleted
)

// RestartOf is the restart policy of a service.
func RestartOf(s *compose.Service) Restart {
	r := s.Restart
	return Restart{Policy: cmp.Or(RestartPolicy(r.Mode), Never), Max: r.MaxRetries, Delay: r.Delay, Window: r.Window}
}

// OneShot tells whether a container that ends with 0 is done, and not to be started again.
func (r Restart) OneShot() bool { return r.Policy == Never || r.Policy == OnFailure }

// After tells whether a container that ended with code is to be started again,
// when it already was failures times in a row.
func (r Restart) After(code, failures int) bool {
	switch r.Policy {
	case Always, UnlessStopped:
		return true
	case OnFailure:
		return code != 0 && (r.Max == 0 || failures < r.Max)
	default:
		return false
	}
}
