package compose

import (
	"maps"
	"slices"
	"strings"
)

// Select keeps the named services and their dependencies, with their networks and volumes.
func (p *Project) Select(names ...string) error {
	for _, name := range names {
		if p.Services[name] == nil {
			return invalid("unknown service %.80q; known: %s", name, strings.Join(p.names(), ", "))
		}
	}
	selected, _ := p.order(names)
	p.Services = maps.Clone(p.Services)
	maps.DeleteFunc(p.Services, func(name string, _ *Service) bool { return !slices.Contains(selected, name) })

	networks, volumes := map[string]bool{}, map[string]bool{}
	for _, s := range p.Services {
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
