package wfmsim

import (
	"cmp"
	"fmt"
	"strings"

	"go.yaml.in/yaml/v4"
)

// Deployment describes an ApplicationDeployment of Compose components, for
// tests and for the command line. Name, namespace and application id have
// defaults; the rest is needed.
type Deployment struct {
	ID            string // UUID
	Name          string // default: the name of the first component
	Namespace     string // default: margo
	DeviceID      string
	ApplicationID string // default: Name
	Labels        map[string]string
	Components    []Component
	Parameters    map[string]any // environment variable to value, for every component
}

// Component is one Compose component of a Deployment.
type Component struct {
	Name       string
	Repository string // registry/repository, with or without oci://
	Revision   string
	Wait       *bool
	Timeout    string // as 5m0s
}

// The document in the order in which people read it.
type (
	documentYAML struct {
		ID       string       `yaml:"id"`
		Metadata metadataYAML `yaml:"metadata"`
		Spec     specYAML     `yaml:"spec"`
	}
	metadataYAML struct {
		Name      string            `yaml:"name"`
		Namespace string            `yaml:"namespace"`
		Labels    map[string]string `yaml:"labels,omitempty"`
		DeviceID  string            `yaml:"deviceId"`
	}
	specYAML struct {
		ApplicationID string                   `yaml:"applicationId"`
		Profile       profileYAML              `yaml:"deploymentProfile"`
		Parameters    map[string]parameterYAML `yaml:"parameters,omitempty"`
	}
	profileYAML struct {
		Type       string          `yaml:"type"`
		Components []componentYAML `yaml:"components"`
	}
	componentYAML struct {
		Name       string         `yaml:"name"`
		Properties propertiesYAML `yaml:"properties"`
	}
	propertiesYAML struct {
		Repository string `yaml:"repository"`
		Revision   string `yaml:"revision"`
		Wait       *bool  `yaml:"wait,omitempty"`
		Timeout    string `yaml:"timeout,omitempty"`
	}
	parameterYAML struct {
		Value   any          `yaml:"value"`
		Targets []targetYAML `yaml:"targets"`
	}
	targetYAML struct {
		Pointer    string   `yaml:"pointer"`
		Components []string `yaml:"components"`
	}
)

// Document writes the deployment as Publish takes it. The same deployment gives
// the same bytes.
func (d Deployment) Document() ([]byte, error) {
	doc := documentYAML{ID: d.ID, Spec: specYAML{Parameters: map[string]parameterYAML{}}}
	doc.Spec.Profile.Type = "compose"
	var names []string
	for _, c := range d.Components {
		c.Repository = "oci://" + strings.TrimPrefix(c.Repository, "oci://")
		names = append(names, c.Name)
		doc.Spec.Profile.Components = append(doc.Spec.Profile.Components, componentYAML{
			Name:       c.Name,
			Properties: propertiesYAML{Repository: c.Repository, Revision: c.Revision, Wait: c.Wait, Timeout: c.Timeout},
		})
	}
	if len(names) == 0 {
		return nil, fmt.Errorf("cannot write deployment %s: it has no component", d.ID)
	}
	doc.Metadata = metadataYAML{Name: cmp.Or(d.Name, names[0]), Namespace: cmp.Or(d.Namespace, "margo"), Labels: d.Labels, DeviceID: d.DeviceID}
	doc.Spec.ApplicationID = cmp.Or(d.ApplicationID, doc.Metadata.Name)
	for name, value := range d.Parameters {
		doc.Spec.Parameters[name] = parameterYAML{
			Value:   value,
			Targets: []targetYAML{{Pointer: name, Components: names}},
		}
	}
	text, err := yaml.Marshal(doc)
	if err != nil {
		return nil, fmt.Errorf("cannot write deployment %s: %w", d.ID, err)
	}
	return text, nil
}
