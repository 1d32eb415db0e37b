package build_test

import (
	"encoding/json"
	"os/exec"
	"testing"

	"github.com/margolite/margolite/test/expect"
)

// A replace directive would break `go install` of a version, give importers and
// vendored builds a program other than the tested one, and hide linked modules from
// scanners.
func TestNoModuleIsReplaced(t *testing.T) {
	cmd := exec.Command("go", "mod", "edit", "-json")
	cmd.Dir = ".."
	out := expect.Value(cmd.Output())(t)
	var file struct{ Replace []any }
	check(t, json.Unmarshal(out, &file))
	expect.True(t, len(file.Replace) == 0, "go.mod has %d replace directives: %v", len(file.Replace), file.Replace)
}
