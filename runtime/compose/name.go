package compose

import (
	"path/filepath"

	"github.com/compose-spec/compose-go/v2/loader"
)

// ProjectName is the name that a Compose file has when its caller gives none:
// COMPOSE_PROJECT_NAME, the file's own top-level name, or the name of its
// directory, brought into the form that names have.
func ProjectName(file string, environment map[string]string) string {
	candidates := []string{environment["COMPOSE_PROJECT_NAME"], nameIn(file)}
	if abs, err := filepath.Abs(file); err == nil {
		candidates = append(candidates, filepath.Base(filepath.Dir(abs)))
	}
	for _, candidate := range candidates {
		if name := loader.NormalizeProjectName(candidate); isProjectName(name) {
			return name
		}
	}
	return "default"
}

// nameIn is the top-level name of a Compose file, or "" where it cannot be
// read: what is wrong with the file is found out when it is loaded.
func nameIn(file string) string {
	content, err := (&files{}).read(file, maxComposeFile)
	if err != nil {
		return ""
	}
	documents, err := parse(content, &size{})
	if err != nil {
		return ""
	}
	var last string
	for _, d := range documents {
		if name, _ := d.tree["name"].(string); name != "" {
			last = name
		}
	}
	return last
}
