package compose

import (
	"maps"
	"slices"

	"github.com/compose-spec/compose-go/v2/types"
)

func (r *resolver) process(s *Service, c types.ServiceConfig) {
	s.TTY, s.StdinOpen = c.Tty, c.StdinOpen
	s.Init = c.Init != nil && *c.Init
	s.Groups = c.GroupAdd
	s.Hostname = r.hostname("hostname", c.Hostname)
	s.Domainname = r.hostname("domainname", c.DomainName)
	s.Ulimits = r.ulimits(c.Ulimits)
	if c.OomScoreAdj != 0 {
		adjust := int(c.OomScoreAdj)
		s.OOMScoreAdj = &adjust
	}
}

func (r *resolver) hostname(key, written string) string {
	if written == "" {
		return ""
	}
	name := r.hostName(key, written)
	if len(name) > MaxHostname {
		r.refuse(key, "%.80q has more than %d bytes", name, MaxHostname)
	}
	return name
}

func (r *resolver) ulimits(written map[string]*types.UlimitsConfig) []Ulimit {
	var limits []Ulimit
	for _, name := range slices.Sorted(maps.Keys(written)) {
		w := written[name]
		limit := Ulimit{Name: name, Soft: int64(w.Soft), Hard: int64(w.Hard)}
		if w.Single != 0 {
			limit.Soft, limit.Hard = int64(w.Single), int64(w.Single)
		}
		key := "ulimits." + name
		switch {
		case limit.Soft < -1 || limit.Hard < -1:
			r.refuse(key, "is negative; only -1, no limit, may be")
		case limit.Hard != -1 && (limit.Soft == -1 || limit.Soft > limit.Hard):
			r.refuse(key, "has a soft limit of %d above its hard limit of %d", limit.Soft, limit.Hard)
		}
		limits = append(limits, limit)
	}
	return limits
}
