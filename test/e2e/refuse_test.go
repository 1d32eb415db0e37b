package e2e

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/margolite/margolite/test/ociimage"
)

// compose makes a component of one Compose file.
func compose(name, version, file string) ociimage.Component {
	return ociimage.Component{Name: name, Version: version, Files: ociimage.Files{"compose.yaml": []byte(file)}}
}

func containsAll(s string, parts ...string) bool {
	for _, part := range parts {
		if !strings.Contains(s, part) {
			return false
		}
	}
	return true
}

// decode reads JSON that the command line printed.
func decode[T any](t *testing.T, text string) T {
	t.Helper()
	var v T
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Fatalf("cannot read %q: %v", text, err)
	}
	return v
}
