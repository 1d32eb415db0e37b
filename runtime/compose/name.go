package compose

import (
	"cmp"
	"path/filepath"
	"slices"

	"github.com/compose-spec/compose-go/v2/loader"
)

// ProjectName is the default name of a project: COMPOSE_PROJECT_NAME of the Environment given,
// the last top-level name in its Files, or the name of its directory, normalised.
func ProjectName(o Options) string {
	candidates := []string{o.Environment["COMPOSE_PROJECT_NAME"]}
	for _, file := range slices.Backward(o.Files) {
		candidates = append(candidates, nameIn(file, o.Contents))
	}
	if abs, err := filepath.Abs(cmp.Or(o.WorkingDir, filepath.Dir(o.Files[0]))); err == nil {
		candidates = append(candidates, filepath.Base(abs))
	}
	for _, candidate := range candidates {
		if name := loader.NormalizeProjectName(candidate); isProjectName(name) {
			return name
		}
	}
	return "default"
}

// nameIn is the top-level name in a Compose file, "" if unreadable, which loading reports.
func nameIn(file string, given map[string][]byte) string {
	content, err := (&files{given: given}).read(file, MaxFile)
	if err != nil {
		return ""
	}
	written := func(_ []string, value string) (string, error) { return value, nil }
	documents, _, err := (&reading{size: &size{}, value: written}).parse(content)
	if err != nil {
		return ""
	}
	var last string
	for _, d := range documents {
		if name, _ := d.Name.(string); name != "" {
			last = name
		}
	}
	return last
}
