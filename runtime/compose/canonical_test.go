package compose_test

import (
	"encoding/json"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	yamllib "go.yaml.in/yaml/v4"

	"github.com/margolite/margolite/runtime/compose"
	"github.com/margolite/margolite/test/expect"
)

// What config prints is loaded again and means the same, in both forms.
func TestProjectIsWrittenToBeLoadedAgain(t *testing.T) {
	projects := allProjects(t)
	projects["dollars"] = loaded(t, map[string]string{".env": "V='a$b'\nG='$g'\n", "compose.yaml": `
x-$a: {$b: [$$c, "$${d}"]}
services:
  web:
    image: nginx
    command: [sh, -c, "echo $$HOME $${X:-y} $$$$"]
    environment: {A: "$$a", B: "yes", C: "1e3", D: "line\nline\n", E: " x ", F: "é\u2028", G: }
    labels: {"$a": "$$b", "c:d": "- e", "0x1f": "# f"}
    cpus: 0.5
    mem_limit: 64m
    healthcheck: {test: ["CMD", "$$a"], interval: 1m30s}
    ports: ["127.0.0.1:8080-8090:80/udp"]
    configs: [one]
    secrets: [two]
configs: {one: {content: "$$x ${V}"}}
secrets: {two: {environment: V}}
`}, nil)
	expect.True(t, len(projects) >= 80, "%d projects were written", len(projects))
	for name, p := range projects {
		for form, marshal := range map[string]func(any) ([]byte, error){"YAML": yamlOf, "JSON": json.Marshal} {
			t.Run(name+" as "+form, func(t *testing.T) { expectLoadedAgain(t, p, realProjects[name], marshal) })
		}
	}
}

func expectLoadedAgain(t *testing.T, p *compose.Project, env map[string]string, marshal func(any) ([]byte, error)) {
	text := printed(t, p, marshal)
	file := filepath.Join(write(t, map[string]string{"compose.yaml": text}), "compose.yaml")
	again, err := compose.Load(t.Context(), compose.Options{
		ProjectName: p.Name, Files: []string{file}, WorkingDir: p.WorkingDir, Environment: env,
		Profiles: []string{"*"}, // those that were active are no longer known
	})
	expect.Require(t, err == nil, "%v\n%s", err, text)
	for service := range p.Services {
		want := expect.Value(p.ConfigHash(service, imageDigest))(t)
		if got, err := again.ConfigHash(service, imageDigest); got != want {
			t.Errorf("service %s is another one, %v (-want +got):\n%s", service, err, cmp.Diff(string(readable(t, p)), string(readable(t, again))))
		}
	}
	expect.Equal(t, printed(t, again, marshal), text, "written again")
}

func yamlOf(tree any) ([]byte, error) {
	return yamllib.Dump(tree, yamllib.WithV3Defaults(), yamllib.WithIndent(2))
}

func printed(t *testing.T, p *compose.Project, marshal func(any) ([]byte, error)) string {
	t.Helper()
	tree := expect.Value(p.Tree())(t)
	text := expect.Value(marshal(tree))(t)
	return string(text)
}
