package compose

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/compose-spec/compose-go/v2/types"
)

type mention struct {
	key string // where
	Dependency
}

func mentions(c types.ServiceConfig) []mention {
	var all []mention
	for name, d := range c.DependsOn {
		all = append(all, mention{"depends_on", Dependency{Service: name, Condition: Condition(d.Condition), Required: d.Required, Restart: d.Restart}})
	}
	also := func(key, service string, restart bool) {
		all = append(all, mention{key, Dependency{Service: service, Condition: ConditionStarted, Required: true, Restart: restart}})
	}
	for _, link := range c.Links {
		service, _, _ := strings.Cut(link, ":")
		also("links", service, true)
	}
	for key, mode := range map[string]string{"network_mode": c.NetworkMode, "pid": c.Pid, "ipc": c.Ipc} {
		if service, ok := strings.CutPrefix(mode, types.ServicePrefix); ok {
			also(key, service, true)
		}
	}
	for _, from := range c.VolumesFrom {
		if service, _, _ := strings.Cut(from, ":"); service != "container" {
			also("volumes_from", service, false)
		}
	}
	return all
}

func (r *resolver) dependsOn(c types.ServiceConfig) []Dependency {
	project := r.project.Compose
	dependencies := map[string]Dependency{}
	for _, m := range mentions(c) {
		_, active := project.Services[m.Service]
		disabled, defined := project.DisabledServices[m.Service]
		_, known := dependencies[m.Service]
		switch {
		case active && !known: // depends_on comes first, and says more
			dependencies[m.Service] = m.Dependency
		case active || !m.Required:
		case defined:
			r.refuse(m.key, "names %q, whose profiles %s are not active", m.Service, strings.Join(disabled.Profiles, ", "))
		default:
			r.refuse(m.key, "names %q, which is not a service", m.Service)
		}
	}
	sorted := slices.Collect(maps.Values(dependencies))
	sortBy(sorted, func(a, b Dependency) int { return cmp.Compare(a.Service, b.Service) })
	return sorted
}
