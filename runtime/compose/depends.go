package compose

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/compose-spec/compose-go/v2/types"
)

type mention struct {
	key     string // where
	service string
	restart bool // the one that names it starts again when it is replaced
}

// mentions are the services that a service cannot be without, beside those in
// depends_on.
func mentions(c types.ServiceConfig) []mention {
	var all []mention
	for _, link := range c.Links {
		service, _, _ := strings.Cut(link, ":")
		all = append(all, mention{"links", service, true})
	}
	for key, mode := range map[string]string{"network_mode": c.NetworkMode, "pid": c.Pid, "ipc": c.Ipc} {
		if service, ok := strings.CutPrefix(mode, types.ServicePrefix); ok {
			all = append(all, mention{key, service, true})
		}
	}
	for _, from := range c.VolumesFrom {
		if service, _, _ := strings.Cut(from, ":"); service != "container" {
			all = append(all, mention{"volumes_from", service, false})
		}
	}
	return all
}

func (r *resolver) dependsOn(c types.ServiceConfig) []Dependency {
	dependencies := map[string]Dependency{}
	for name, d := range c.DependsOn {
		if _, active := r.project.Compose.Services[name]; !active && !d.Required {
			continue // of a profile that is not active, or nowhere at all
		}
		dependencies[name] = Dependency{Service: name, Condition: Condition(d.Condition), Required: d.Required, Restart: d.Restart}
	}
	for _, ref := range mentions(c) {
		if _, written := dependencies[ref.service]; !written {
			dependencies[ref.service] = Dependency{Service: ref.service, Condition: ConditionStarted, Required: true, Restart: ref.restart}
		}
	}
	sorted := slices.Collect(maps.Values(dependencies))
	sortBy(sorted, func(a, b Dependency) int { return cmp.Compare(a.Service, b.Service) })
	return sorted
}

func (l *loading) checkMentions(p *Project) {
	for _, name := range p.names() {
		s, c := p.Services[name], p.Compose.Services[name]
		refs := mentions(c)
		for dependency := range c.DependsOn {
			if c.DependsOn[dependency].Required {
				refs = append(refs, mention{key: "depends_on", service: dependency})
			}
		}
		for _, ref := range refs {
			if p.Services[ref.service] != nil {
				continue
			}
			if disabled, ok := p.Compose.DisabledServices[ref.service]; ok {
				l.findings.add(name, ref.key, "names %q, whose profiles %s are not active", ref.service, strings.Join(disabled.Profiles, ", "))
			} else {
				l.findings.add(name, ref.key, "names %q, which is not a service", ref.service)
			}
		}
		s.DependsOn = slices.DeleteFunc(s.DependsOn, func(d Dependency) bool { return p.Services[d.Service] == nil })
	}
}

func (l *loading) checkCircles(p *Project) {
	_, circles := p.order()
	for _, circle := range circles {
		l.findings.add(circle[0], "depends_on", "is circular: %s", strings.Join(circle, " -> "))
	}
}
