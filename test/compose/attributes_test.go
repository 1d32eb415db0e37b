package compose

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/margolite/margolite/test/containerdtest"
	"github.com/margolite/margolite/test/expect"
	"github.com/margolite/margolite/test/leftovers"
)

// TestAttributes plays testdata/attributes: one Compose file per attribute of
// the specification, or more. The table in runtime/README.md names them.
func TestAttributes(t *testing.T) {
	if testing.Short() {
		t.Skip("in make test-all: each attribute")
	}
	files, err := filepath.Glob("testdata/attributes/*")
	expect.Require(t, err == nil && len(files) != 0, "no scenarios: %v", err)
	for _, backend := range containerdtest.Backends() {
		t.Run(backend.Name, func(t *testing.T) {
			d := newDevice(t, backend)
			before := leftovers.Take(t, d.look)
			for _, file := range files {
				name := strings.TrimSuffix(filepath.Base(file), ".yaml")
				t.Run(name, func(t *testing.T) {
					d.playFile(t, file, projectName(name), before)
				})
			}
		})
	}
}

// TestProject plays testdata/project, one Compose file of much that Compose has:
// what make test shows of Compose.
func TestProject(t *testing.T) {
	containerdtest.OnEach(t, func(t *testing.T, backend containerdtest.Backend) {
		d := newDevice(t, backend)
		d.playFile(t, "testdata/project", "project", leftovers.Take(t, d.look))
	})
}

// projectName makes a project's name of a scenario's.
func projectName(scenario string) string {
	return strings.ToLower(strings.NewReplacer(".", "-").Replace(scenario))
}
