package compose

import (
	"encoding/json"
	"strings"

	"github.com/compose-spec/compose-go/v2/interpolation"
	"github.com/compose-spec/compose-go/v2/template"
	"github.com/compose-spec/compose-go/v2/types"
	"go.yaml.in/yaml/v4"
)

// YAML is the project in the words of the Compose specification, with everything
// resolved that its files leave to others: variables, files of variables, relative
// paths. Loaded again, it is the same project: $ is written as $$.
func (p *Project) YAML() ([]byte, error) {
	tree, err := p.tree()
	if err != nil {
		return nil, err
	}
	return yaml.Dump(tree, yaml.WithV3Defaults(), yaml.WithIndent(2))
}

// JSON is what YAML is, in JSON. compose-go's own MarshalJSON has keys in places
// that Compose files cannot have.
func (p *Project) JSON() ([]byte, error) {
	tree, err := p.tree()
	if err != nil {
		return nil, err
	}
	return json.Marshal(tree)
}

func (p *Project) tree() (tree map[string]any, err error) {
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
	text, err := c.MarshalYAML()
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
