package compose_test

import (
	"path/filepath"
	"testing"

	"github.com/margolite/margolite/runtime/compose"
	"github.com/margolite/margolite/test/expect"
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
			file := filepath.Join(write(t, map[string]string{"My_App/compose.yaml": c.file}), "My_App/compose.yaml")
			expect.Equal(t, compose.ProjectName(compose.Options{Files: []string{file}, Environment: c.env}), c.want, "name")
		})
	}
}
