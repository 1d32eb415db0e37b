package wfmsim

import (
	"bytes"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"go.yaml.in/yaml/v4"
	"golang.org/x/text/language"
	"golang.org/x/text/message"

	"github.com/margolite/margolite/agent/margo"
)

// The schemas of request bodies: those of rc.2 and rc.3 as the OpenAPI files
// have them, that of rc.1 from the text of that revision, as is that of deployments.
//
//go:embed schema/*.json
var schemaFiles embed.FS

// schemas are the bodies of one revision.
type schemas struct {
	status, capabilities, onboarding *jsonschema.Schema

	deployment *jsonschema.Schema // that of rc.3 in any revision
}

func loadSchemas(revision margo.Revision) (schemas, error) {
	var s schemas
	file := strings.TrimPrefix(revision.String(), "1.0.0-") + ".json"
	for _, load := range []struct {
		file, name string
		to         **jsonschema.Schema
	}{
		{file, "DeploymentStatusManifest", &s.status},
		{file, "DeviceCapabilitiesManifest", &s.capabilities},
		{file, "OnboardingRequest", &s.onboarding},
		{"deployment.json", "ApplicationDeployment", &s.deployment},
	} {
		if revision == margo.RC3 && load.to == &s.onboarding {
			continue // there is none
		}
		var err error
		if *load.to, err = loadSchema(load.file, load.name); err != nil {
			return schemas{}, fmt.Errorf("cannot read schema %s of %s: %w", load.name, load.file, err)
		}
	}
	return s, nil
}

func loadSchema(file, name string) (*jsonschema.Schema, error) {
	text, err := schemaFiles.ReadFile("schema/" + file)
	if err != nil {
		return nil, err
	}
	document, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		return nil, err
	}
	compiler := jsonschema.NewCompiler()
	if err := compiler.AddResource(file, document); err != nil {
		return nil, err
	}
	return compiler.Compile(file + "#/$defs/" + name)
}

// departures tells how an ApplicationDeployment, in YAML, departs from 1.0.0-rc.3.
func (s schemas) departures(body []byte) (all []string, err error) {
	var value any
	if err := yaml.Unmarshal(body, &value); err != nil {
		return nil, err
	}
	inJSON, err := json.Marshal(value)
	if err != nil {
		return nil, err
	}
	if problem := conform(s.deployment, inJSON); problem != nil {
		for _, e := range problem.errors {
			all = append(all, e.Field+": "+e.Message)
		}
	}
	return all, nil
}

// conform holds a body against a schema.
func conform(schema *jsonschema.Schema, body []byte) *problem {
	value, err := jsonschema.UnmarshalJSON(bytes.NewReader(body))
	if err != nil {
		return invalid(fmt.Sprintf("The body is not JSON: %v.", err))
	}
	if _, isObject := value.(map[string]any); !isObject {
		return invalid("The body is not a JSON object.")
	}
	var violated *jsonschema.ValidationError
	if err := schema.Validate(value); errors.As(err, &violated) {
		p := semantic("", "")
		p.errors = violations(nil, violated)
		return p
	}
	return nil
}

// violations appends what is wrong, without what follows from it.
func violations(all []margo.FieldError, err *jsonschema.ValidationError) []margo.FieldError {
	if len(err.Causes) == 0 {
		text := err.ErrorKind.LocalizedString(message.NewPrinter(language.English))
		return append(all, margo.FieldError{Field: strings.Join(err.InstanceLocation, "."), Message: text + " [schema]"})
	}
	for _, cause := range err.Causes {
		all = violations(all, cause)
	}
	return all
}

// members takes a JSON object apart.
func members(body []byte) (map[string]json.RawMessage, error) {
	var m map[string]json.RawMessage
	err := json.Unmarshal(body, &m)
	return m, err
}

// parseStatus reads a report of the revision, as rc.3 would have it. A report
// of the earlier ones names no manifest version: there it is 0.
func (s *Server) parseStatus(body []byte) (*margo.Status, *problem) {
	if s.options.Revision == margo.RC3 {
		status, err := margo.ParseStatus(body)
		if err != nil {
			return nil, unacceptable(err)
		}
		return status, conform(s.schemas.status, body)
	}
	if refusal := conform(s.schemas.status, body); refusal != nil {
		return nil, refusal
	}
	m, err := members(body)
	if err != nil {
		return nil, invalid(err.Error())
	}
	m["adoptedManifestVersion"] = json.RawMessage("1") // to have the rest checked
	if s.options.Revision == margo.RC1 {
		if m, err = withSources(m); err != nil {
			return nil, invalid(err.Error())
		}
	}
	neutral, err := json.Marshal(m)
	if err != nil {
		return nil, invalid(err.Error())
	}
	status, err := margo.ParseStatus(neutral)
	if err != nil {
		return nil, unacceptable(err)
	}
	status.AdoptedVersion = 0
	return status, nil
}

// withSources gives errors the source that rc.1 does not know.
func withSources(m map[string]json.RawMessage) (map[string]json.RawMessage, error) {
	type part map[string]any
	var status part
	var components []part
	if err := errors.Join(json.Unmarshal(m["status"], &status), json.Unmarshal(m["components"], &components)); err != nil {
		return nil, err
	}
	for _, p := range append([]part{status}, components...) {
		if failure, ok := p["error"].(map[string]any); ok && failure["source"] == nil {
			failure["source"] = "rc.1"
		}
	}
	var err, err2 error
	m["status"], err = json.Marshal(status)
	m["components"], err2 = json.Marshal(components)
	return m, errors.Join(err, err2)
}

// parseCapabilities reads a capabilities document of the revision, and gives the id of the
// device. Of the forms in which rc.2 devices tell their processors the WFM reads one.
func (s *Server) parseCapabilities(body []byte) (device string, refusal *problem) {
	if s.options.Revision == margo.RC3 {
		parsed, err := margo.ParseCapabilities(body)
		if err != nil {
			return "", unacceptable(err)
		}
		return parsed.Properties.ID, conform(s.schemas.capabilities, body)
	}
	if refusal := conform(s.schemas.capabilities, body); refusal != nil {
		return "", refusal
	}
	var document struct {
		Properties struct {
			ID        string          `json:"id"`
			CPU, CPUs json.RawMessage // names of JSON go by any case
		} `json:"properties"`
	}
	if err := json.Unmarshal(body, &document); err != nil {
		return "", invalid(err.Error())
	}
	read := document.Properties.CPUs
	if s.options.Quirks.FlatCPU {
		read = document.Properties.CPU
	}
	if s.options.Revision == margo.RC2 && read == nil {
		return "", semantic("properties", "tells of no processors that this WFM can read")
	}
	return document.Properties.ID, nil
}
