package compose

import "github.com/compose-spec/compose-go/v2/types"

// Canonical is the project in the words of the Compose specification, with
// everything resolved that its files leave to others: variables, files of
// variables, relative paths.
func (p *Project) Canonical() *types.Project {
	c := *p.Compose
	c.Services = types.Services{}
	for name, resolved := range p.Services {
		s := p.Compose.Services[name]
		s.EnvFiles = nil
		s.Environment = types.MappingWithEquals{}
		for key, value := range resolved.Environment {
			s.Environment[key] = &value
		}
		c.Services[name] = s
	}
	c.DisabledServices = nil
	return &c
}
