package wfmsim

import (
	"cmp"
	"fmt"
	"strings"

	"go.yaml.in/yaml/v4"
)

// Deployment describes an ApplicationDeployment of Compose components, for
// tests and for the command line. Name and application id have
// defaults; the rest is needed.
type Deployment struct {
	ID            string // UUID
	Name          string // default: the name of the first component
	DeviceID      string
	ApplicationID string // default: Name
	Components    []Component
	Parameters    map[string]any // environment variable to value, for every component
}

// Component is one Compose component of a Deployment.
type Component struct {
	Name       string
	Repository string // registry/repository, with or without oci://
	Revision   string
	Timeout    string // as 5m0s
}

// Document writes the deployment as Publish takes it. The same deployment gives
// the same bytes.
func (d Deployment) Document() ([]byte, error) {
	if len(d.Components) == 0 {
		return nil, fmt.Errorf("cannot write deployment %s: it has no component", d.ID)
	}
	type object map[string]any
	var names []string
	var components []object
	for _, c := range d.Components {
		properties := object{"repository": "oci://" + strings.TrimPrefix(c.Repository, "oci://"), "revision": c.Revision}
		if c.Timeout != "" {
			properties["timeout"] = c.Timeout
		}
		names = append(names, c.Name)
		components = append(components, object{"name": c.Name, "properties": properties})
	}
	parameters := object{}
	for name, value := range d.Parameters {
		parameters[name] = object{"value": value, "targets": []object{{"pointer": name, "components": names}}}
	}
	name := cmp.Or(d.Name, names[0])
	text, err := yaml.Marshal(object{"id": d.ID, "metadata": object{"name": name, "namespace": "margo", "deviceId": d.DeviceID}, "spec": object{
		"applicationId":     cmp.Or(d.ApplicationID, name),
		"deploymentProfile": object{"type": "compose", "components": components},
		"parameters":        parameters,
	}})
	if err != nil {
		return nil, fmt.Errorf("cannot write deployment %s: %w", d.ID, err)
	}
	return text, nil
}
