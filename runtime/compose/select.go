package compose

import (
	"maps"
	"strings"
)

// Select leaves the named services and those that they depend on, with the
// networks and volumes that these use.
func (p *Project) Select(names ...string) error {
	selected := make(map[string]*Service, len(names))
	var visit func(name string)
	visit = func(name string) {
		s := p.Services[name]
		if s == nil || selected[name] != nil { // nil: a dependency that is not required
			return
		}
		selected[name] = s
		for _, d := range s.DependsOn {
			visit(d.Service)
		}
	}
	for _, name := range names {
		if p.Services[name] == nil {
			return invalid("unknown service %.80q; known: %s", name, strings.Join(p.names(), ", "))
		}
		visit(name)
	}
	p.Services = selected

	networks, volumes := map[string]bool{}, map[string]bool{}
	for _, s := range selected {
		for _, a := range s.Attached {
			networks[a.Network] = true
		}
		for _, m := range s.Mounts {
			volumes[m.Volume] = true
		}
	}
	p.Networks, p.Volumes = maps.Clone(p.Networks), maps.Clone(p.Volumes)
	maps.DeleteFunc(p.Networks, func(key string, _ *Network) bool { return !networks[key] })
	maps.DeleteFunc(p.Volumes, func(name string, _ *Volume) bool { return !volumes[name] })
	return nil
}
