package compose

import (
	"maps"
	"slices"
	"strings"

	"github.com/compose-spec/compose-go/v2/types"
)

func (r *resolver) process(s *Service, c types.ServiceConfig) {
	s.TTY, s.StdinOpen = c.Tty, c.StdinOpen
	s.Init = c.Init != nil && *c.Init
	s.Groups = c.GroupAdd
	s.Hostname, s.Domainname = strings.TrimSuffix(c.Hostname, "."), strings.TrimSuffix(c.DomainName, ".")
	s.Ulimits = r.ulimits(c.Ulimits)
	if c.OomScoreAdj != 0 {
		adjust := int(c.OomScoreAdj)
		s.OOMScoreAdj = &adjust
	}
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
