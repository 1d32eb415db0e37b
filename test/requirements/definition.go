package main

import (
	"bytes"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"

	"go.yaml.in/yaml/v4"
)

//go:embed requirements.yaml
var definitions []byte

// requirement is one line of the checklist.
type requirement struct {
	ID        string `yaml:"id"`
	Text      string `yaml:"text"`
	Level     string `yaml:"level"`
	Revisions string `yaml:"revisions"`
	Untested  string `yaml:"untested"` // the reason to have no test
	Note      string `yaml:"note"`     // how far the tests go
}

// areas are the parts of the checklist, in its order, and their headings.
var areas = []struct{ id, heading string }{
	{"DS", "Desired state"},
	{"ST", "Status"},
	{"CAP", "Capabilities"},
	{"ID", "Identity (rc.3)"},
	{"AUTH", "Onboarding and authentication (before rc.3)"},
	{"AD", "Deployments"},
	{"PKG", "Packages"},
	{"OBS", "Observability"},
	{"GW", "Gateways"},
	{"POL", "Polling and policy"},
	{"DEV", "Devices"},
	{"ERR", "Problems and retries"},
	{"EXT", "Extensions"},
}

// area is the part of the checklist that an id belongs to.
func area(id string) string {
	a, _, _ := strings.Cut(id, "-")
	return a
}

// areaPattern matches an area; longer names come first, so that none is taken
// for the beginning of another.
var areaPattern = `(?:AUTH|CAP|PKG|OBS|POL|DEV|ERR|EXT|DS|ST|ID|AD|GW)`

var wholeID = regexp.MustCompile(`^` + areaPattern + `-\d\d$`)

// load reads the checklist and looks whether it is one.
func load(data []byte) ([]requirement, error) {
	d := yaml.NewDecoder(bytes.NewReader(data))
	d.KnownFields(true)
	var all []requirement
	if err := d.Decode(&all); err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("cannot read requirements.yaml: %w", err)
	}
	seen := make(map[string]bool)
	for _, r := range all {
		problem := ""
		switch {
		case !wholeID.MatchString(r.ID):
			problem = "is no id"
		case seen[r.ID]:
			problem = "is there twice"
		case r.Text == "" || r.Level == "" || r.Revisions == "":
			problem = "lacks its text, level or revisions"
		case r.Untested != "" && r.Note != "":
			problem = "has no tests for a note to be about"
		}
		if problem != "" {
			return nil, fmt.Errorf("requirements.yaml: %q %s", r.ID, problem)
		}
		seen[r.ID] = true
	}
	return all, nil
}
