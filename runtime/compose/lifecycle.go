package compose

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/compose-spec/compose-go/v2/types"
	"github.com/moby/sys/signal"
	"golang.org/x/sys/unix"
)

func (r *resolver) lifecycle(s *Service, c types.ServiceConfig) {
	s.Restart = r.restart(c)
	s.StopSignal = strings.ToUpper(strings.TrimSpace(c.StopSignal))
	if _, err := ParseSignal(s.StopSignal); err != nil {
		r.refuse("stop_signal", "%.40q is not a signal", c.StopSignal)
	}
	if c.StopGracePeriod != nil {
		grace := time.Duration(*c.StopGracePeriod)
		s.StopGrace = &grace
	}
	s.Healthcheck = r.healthcheck(c.HealthCheck)
	s.PostStart = r.hooks("post_start", c.PostStart)
	s.PreStop = r.hooks("pre_stop", c.PreStop)
}

func (r *resolver) replicas(c types.ServiceConfig) int {
	replicas := cmp.Or(c.Scale, c.Deploy.Replicas)
	switch n := c.Deploy.Replicas; {
	case n == nil:
	case *n != *replicas:
		r.refuse("scale", "differs from deploy.replicas")
	case c.Deploy.Mode == "global":
		r.refuse("deploy.replicas", "cannot be combined with deploy.mode: global")
	}
	if asked, ok := r.scale[r.service]; ok {
		return asked
	}
	if replicas == nil {
		return 1
	}
	return *replicas
}

// restart reads deploy.restart_policy, else restart.
func (r *resolver) restart(c types.ServiceConfig) Restart {
	if c.Deploy.RestartPolicy != nil {
		return r.restartPolicy(*c.Deploy.RestartPolicy)
	}
	mode, retries, _ := strings.Cut(cmp.Or(c.Restart, string(RestartNo)), ":")
	n, _ := strconv.Atoi(retries)
	return Restart{Mode: RestartMode(mode), MaxRetries: n}
}

func (r *resolver) restartPolicy(c types.RestartPolicy) Restart {
	restart := Restart{Mode: RestartAlways}
	switch c.Condition {
	case "none":
		restart.Mode = RestartNo
	case "no", "on-failure", "unless-stopped":
		restart.Mode = RestartMode(c.Condition)
	}
	if c.MaxAttempts != nil && *c.MaxAttempts > 0 {
		if restart.Mode != RestartOnFailure {
			r.refuse("deploy.restart_policy.max_attempts", "applies only to condition: on-failure")
		}
		restart.MaxRetries = int(*c.MaxAttempts)
	}
	restart.Delay, restart.Window = duration(c.Delay), duration(c.Window)
	return restart
}

func duration(written *types.Duration) time.Duration {
	if written == nil {
		return 0
	}
	return time.Duration(*written)
}

// ParseSignal parses SIGTERM, TERM, 15, SIGRTMIN+3 and the like. "" is SIGTERM.
func ParseSignal(s string) (unix.Signal, error) {
	const last = 64
	n, err := signal.ParseSignal(cmp.Or(strings.TrimSpace(s), "SIGTERM"))
	if err != nil || n < 1 || n > last { // the library takes any number
		return 0, fmt.Errorf("%.40q is not a signal", s)
	}
	return n, nil
}

func (r *resolver) healthcheck(c *types.HealthCheckConfig) *Healthcheck {
	if c == nil {
		return nil
	}
	if c.Disable {
		return &Healthcheck{Test: []string{"NONE"}}
	}
	h := &Healthcheck{
		Test:          c.Test,
		Interval:      duration(c.Interval),
		Timeout:       duration(c.Timeout),
		StartPeriod:   duration(c.StartPeriod),
		StartInterval: duration(c.StartInterval),
	}
	if c.Retries != nil {
		h.Retries = int(*c.Retries)
	}
	if len(c.Test) == 0 {
		return h
	}
	switch form := c.Test[0]; {
	case form == "NONE" && len(c.Test) == 1:
	case form == "CMD" && len(c.Test) > 1, form == "CMD-SHELL" && len(c.Test) == 2:
	default:
		r.refuse("healthcheck.test", "must be NONE, CMD with a command, or CMD-SHELL with one line")
	}
	return h
}

func (r *resolver) hooks(key string, written []types.ServiceHook) []Hook {
	var hooks []Hook
	for _, w := range written {
		if len(w.Command) == 0 {
			r.refuse(key, "has no command")
		}
		h := Hook{Command: w.Command, User: w.User, Privileged: w.Privileged, WorkingDir: w.WorkingDir, Environment: r.given(key, w.Environment)}
		r.checkEnvironment(key+".environment", h.Environment)
		hooks = append(hooks, h)
	}
	return hooks
}

func (r *resolver) logging(s *Service, c *types.LoggingConfig) {
	if c == nil {
		return
	}
	s.Logging.None = c.Driver == "none"
	for _, name := range slices.Sorted(maps.Keys(c.Options)) {
		value, key := c.Options[name], "logging.options."+name
		switch {
		case name == "max-size" && value == "-1":
			r.note(key, "-1 is ignored: a device limits the size of logs")
		case name == "max-size":
			var size types.UnitBytes
			if err := size.DecodeMapstructure(value); err != nil || size < 1024 {
				r.refuse(key, "%.40q is not a size of at least 1k", value)
			}
			s.Logging.MaxSize = int64(size)
			if most := r.logs.MaxSize; most > 0 && s.Logging.MaxSize > most {
				r.note(key, "%s is reduced to the %d bytes of runtime.logs.maxSize in the device's configuration", value, most)
			}
		case name == "max-file":
			s.Logging.MaxFile, _ = strconv.Atoi(value)
			if most := r.logs.MaxFile; most > 0 && s.Logging.MaxFile > most {
				r.note(key, "%s is reduced to the %d of runtime.logs.maxFile in the device's configuration", value, most)
			}
		}
	}
}
