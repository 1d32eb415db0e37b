package compose

import (
	"strings"

	"github.com/compose-spec/compose-go/v2/interpolation"
	"github.com/compose-spec/compose-go/v2/template"
	"github.com/compose-spec/compose-go/v2/types"
	"go.yaml.in/yaml/v4"
)

// Tree is the resolved project in Compose form, with $ as $$. Loaded again, it is the same project.
func (p *Project) Tree() (tree map[string]any, err error) {
	c := *p.Compose
	c.Services, c.DisabledServices = types.Services{}, nil
	for name, resolved := range p.Services {
		s := p.Compose.Services[name]
		s.EnvFiles = nil
		s.Environment = types.MappingWithEquals{}
		for key, value := range resolved.Environment {
			s.Environment[key] = &value
		}
		c.Services[name] = s
	}
	text, err := c.MarshalYAML() // MarshalJSON has keys in places that Compose files cannot have
	if err != nil {
		return nil, err
	}
	if err := yaml.Unmarshal(text, &tree); err != nil {
		return nil, err
	}
	for name, service := range mappings(tree["services"]) {
		if swappiness := p.Services[name].Resources.Swappiness; swappiness != nil {
			service["mem_swappiness"] = *swappiness // compose-go leaves 0 out
		}
	}
	return interpolation.Interpolate(tree, interpolation.Options{
		Substitute: func(s string, _ template.Mapping) (string, error) { return strings.ReplaceAll(s, "$", "$$"), nil },
	})
}
