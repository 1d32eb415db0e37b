package container

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
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

// ParseRestart reads the form that Compose files use; "" is Never.
func ParseRestart(s string) (Restart, error) {
	policy, max, limited := strings.Cut(s, ":")
	r := Restart{Policy: RestartPolicy(policy)}
	switch r.Policy {
	case "":
		r.Policy = Never
	case Never, Always, UnlessStopped, OnFailure:
	default:
		return Restart{}, fmt.Errorf("%.40q is no restart policy: want no, always, unless-stopped or on-failure[:attempts]", s)
	}
	if !limited {
		return r, nil
	}
	n, err := strconv.ParseUint(max, 10, 31)
	if err != nil || r.Policy != OnFailure {
		return Restart{}, fmt.Errorf("%.40q is no restart policy: only on-failure takes a number of attempts", s)
	}
	r.Max = int(n)
	return r, nil
}

func (r Restart) String() string {
	if r.Max > 0 {
		return string(r.Policy) + ":" + strconv.Itoa(r.Max)
	}
	return string(r.Policy)
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
