package compose_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/margolite/margolite/runtime/compose"
)

func TestProjectNameComesFrom(t *testing.T) {
	for name, c := range map[string]struct {
		file string
		env  map[string]string
		want string
	}{
		"the environment first":   {"name: in-file\n", map[string]string{"COMPOSE_PROJECT_NAME": "Given One"}, "givenone"},
		"the file":                {"name: in-file\n", nil, "in-file"},
		"the directory":           {"services: {}\n", nil, "my_app"},
		"the directory at last":   {"name: [", map[string]string{"COMPOSE_PROJECT_NAME": "!"}, "my_app"},
		"the directory otherwise": {"name: 5\n", nil, "my_app"},
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "My_App", "compose.yaml")
			if err := os.Mkdir(filepath.Dir(file), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(file, []byte(c.file), 0o600); err != nil {
				t.Fatal(err)
			}
			if got := compose.ProjectName(compose.Options{Files: []string{file}, Environment: c.env}); got != c.want {
				t.Errorf("name %q, want %q", got, c.want)
			}
		})
	}
}
