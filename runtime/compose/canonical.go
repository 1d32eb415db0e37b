package compose

import (
	"encoding"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"strconv"
	"strings"

	"github.com/compose-spec/compose-go/v2/types"
	"go.yaml.in/yaml/v4"
)

// YAML is the project in the words of the Compose specification, with everything
// resolved that its files leave to others: variables, files of variables,
// relative paths.
//
// MarshalYAML and MarshalJSON of compose-go do the same; with them come a copy
// of every field, for secrets whose content is to be shown, and a writer of all
// the YAML there is.
func (p *Project) YAML() ([]byte, error) {
	root, err := yamlOf(reflect.ValueOf(p.canonical()))
	if err != nil {
		return nil, err
	}
	return writeYAML(root), nil
}

// yamlOf is a value of compose-go's types as YAML, by the tags of their fields.
func yamlOf(v reflect.Value) (*yaml.Node, error) {
	if v.IsValid() && !(v.Kind() == reflect.Pointer && v.IsNil()) {
		switch m := v.Interface().(type) {
		case yaml.Marshaler:
			made, err := m.MarshalYAML()
			if err != nil {
				return nil, err
			}
			if now := reflect.ValueOf(made); !now.IsValid() || now.Type() != v.Type() {
				return yamlOf(now)
			}
		case encoding.TextMarshaler:
			text, err := m.MarshalText()
			return textNode(string(text)), err
		}
	}
	n := &yaml.Node{Kind: yaml.ScalarNode}
	switch v.Kind() {
	case reflect.Invalid:
		n.Tag, n.Value = "!!null", "null"
	case reflect.Pointer, reflect.Interface:
		return yamlOf(v.Elem())
	case reflect.String:
		return textNode(v.String()), nil
	case reflect.Bool:
		n.Tag, n.Value = "!!bool", strconv.FormatBool(v.Bool())
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		n.Tag, n.Value = "!!int", strconv.FormatInt(v.Int(), 10)
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		n.Tag, n.Value = "!!int", strconv.FormatUint(v.Uint(), 10)
	case reflect.Float32, reflect.Float64:
		n.Tag, n.Value = "!!float", strconv.FormatFloat(v.Float(), 'g', -1, v.Type().Bits())
	case reflect.Slice, reflect.Array:
		n.Kind = yaml.SequenceNode
		for i := range v.Len() {
			if err := add(n, v.Index(i)); err != nil {
				return nil, err
			}
		}
	case reflect.Map:
		n.Kind = yaml.MappingNode
		keys := v.MapKeys()
		sortBy(keys, func(a, b reflect.Value) int { return strings.Compare(a.String(), b.String()) })
		for _, key := range keys {
			if err := add(n, key, v.MapIndex(key)); err != nil {
				return nil, err
			}
		}
	case reflect.Struct:
		n.Kind = yaml.MappingNode
		return n, addFields(n, v)
	default:
		return nil, fmt.Errorf("no YAML for %v", v.Type())
	}
	return n, nil
}

// addFields adds the fields of a struct.
func addFields(n *yaml.Node, v reflect.Value) error {
	for i := range v.NumField() {
		field := v.Type().Field(i)
		name, options, _ := strings.Cut(field.Tag.Get("yaml"), ",")
		value := v.Field(i)
		var err error
		switch {
		case !field.IsExported() || name == "-":
		case strings.Contains(options, "inline"):
			var inline *yaml.Node
			if inline, err = yamlOf(value); err == nil {
				n.Content = append(n.Content, inline.Content...)
			}
		case strings.Contains(options, "omitempty") && isEmpty(value):
		case name == "":
			err = add(n, reflect.ValueOf(strings.ToLower(field.Name)), value)
		default:
			err = add(n, reflect.ValueOf(name), value)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func add(n *yaml.Node, values ...reflect.Value) error {
	for _, v := range values {
		child, err := yamlOf(v)
		if err != nil {
			return err
		}
		n.Content = append(n.Content, child)
	}
	return nil
}

// isEmpty says whether a field with omitempty is left out.
func isEmpty(v reflect.Value) bool {
	if z, is := v.Interface().(yaml.IsZeroer); is && !(v.Kind() == reflect.Pointer && v.IsNil()) {
		return z.IsZero()
	}
	switch v.Kind() {
	case reflect.Slice, reflect.Map:
		return v.Len() == 0
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() && !isEmpty(v.Field(i)) {
				return false
			}
		}
		return true
	}
	return v.IsZero()
}

func textNode(text string) *yaml.Node {
	return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: text}
}

// JSON is what YAML is, in JSON.
func (p *Project) JSON() ([]byte, error) {
	c := p.canonical()
	all := map[string]any{"name": c.Name, "services": c.Services}
	if len(c.Networks) > 0 {
		all["networks"] = c.Networks
	}
	if len(c.Volumes) > 0 {
		all["volumes"] = c.Volumes
	}
	if len(c.Secrets) > 0 {
		all["secrets"] = c.Secrets
	}
	if len(c.Configs) > 0 {
		all["configs"] = c.Configs
	}
	maps.Copy(all, c.Extensions)
	return json.Marshal(all)
}

func (p *Project) canonical() *types.Project {
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
