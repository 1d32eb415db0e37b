package runtime_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/margolite/margolite/runtime"
	"github.com/margolite/margolite/test/expect"
	"github.com/margolite/margolite/test/ociimage"
)

// archive is a component package with the given files in its one directory.
func archive(t *testing.T, files map[string]string) []byte {
	t.Helper()
	var entries []ociimage.Entry
	for name, text := range files {
		entries = append(entries, ociimage.Entry{Name: name, Data: []byte(text)})
	}
	return expect.Value(ociimage.TarGzip(entries))(t)
}

func TestLoadSaysWhatIsWrong(t *testing.T) {
	r := newRig(t, embeddedBackend())
	e := r.engine()
	tests := []struct {
		name   string
		source runtime.Source
		code   runtime.Code
		text   string
	}{
		{"a key that is not supported", runtime.Source{Project: "p", Package: []byte("services: {web: {image: x, use_api_socket: true}}")}, runtime.Unsupported, "use_api_socket"},
		{"an archive without Compose file", runtime.Source{Project: "p", Strict: true, Package: archive(t, map[string]string{"app/x": "y"})}, runtime.InvalidPackage, "compose.yaml"},
		{"a project name that is a path", runtime.Source{Project: "../p", Package: []byte("services: {web: {image: x}}")}, runtime.InvalidPackage, "name"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			_, err := e.Load(t.Context(), test.source)
			if runtime.CodeOf(err) != test.code || !strings.Contains(err.Error(), test.text) {
				t.Errorf("got code %q, %v", runtime.CodeOf(err), err)
			}
		})
	}
}

// A name of a volume is one for the whole device with Docker, and here for each
// project alone: who has it twice is told.
func TestVolumesOfTheSameNameAreToldOf(t *testing.T) {
	r := newRig(t, embeddedBackend())
	e := r.engine()
	told := func(project, volumes string) []string {
		return r.load(e, project, "services: {web: {image: BUSYBOX, volumes: ['data:/data']}}\nvolumes: {data: "+volumes+"}").Warnings()
	}
	expect.Equal(t, told("first", "{name: recipes}"), nil, "told of a volume that nobody else has")
	for _, project := range []string{"first", "second"} {
		expect.Check(t, os.MkdirAll(filepath.Join(r.state, "volumes", project, "recipes"), 0o755))
	}
	if got := told("first", "{name: recipes}"); len(got) != 1 || !strings.HasPrefix(got[0], "volumes.data.name: "+filepath.Join(r.state, "volumes/second/recipes")+" is another volume") {
		t.Errorf("told is %q", got)
	}
	for _, other := range []string{"{name: others}", "{}", "{external: true, name: second_recipes}"} {
		expect.Equal(t, told("first", other), nil, "told of %s", other)
	}
}

func TestPKG10FilesOfThePackageReachTheContainer(t *testing.T) {
	r := newRig(t, embeddedBackend())
	e := r.engine()
	load := func(text string) *runtime.Project {
		p := expect.Value(e.Load(t.Context(), runtime.Source{
			Project: "files", Strict: true, Environment: map[string]string{"GREETING": "hello"},
			Package: archive(t, map[string]string{
				"app/compose.yaml":  "services: {web: {image: " + r.registry + "/busybox, env_file: [app.env], environment: {SAYS: \"${GREETING}\"}, volumes: [\"./conf:/conf:ro\"]}}",
				"app/app.env":       "FROM_FILE=yes\n",
				"app/conf/settings": text,
			}),
		}))(t)
		expect.Value(e.Stage(t.Context(), p, nil, nil))(t)
		return p
	}
	first, second := load("one"), load("two")
	r.apply(e, first)
	c := r.containers(e, "files")["web"]
	expect.Equal(t, r.inside(c, "cat /conf/settings"), "one", "settings")
	if got := r.environment(c); !strings.Contains(got, "SAYS=hello\n") || !strings.Contains(got, "FROM_FILE=yes\n") {
		t.Errorf("environment %q", got)
	}

	t.Log("a package that was loaded and waits to be applied is kept")
	r.apply(e, second)
	expect.Equal(t, r.inside(r.containers(e, "files")["web"], "cat /conf/settings"), "two", "settings")
	if left, _ := filepath.Glob(filepath.Join(r.state, "projects/files/*")); len(left) != 1 || !strings.HasSuffix(left[0], second.Digest.Encoded()) {
		t.Errorf("extracted packages %q", left)
	}
}

func TestWhatCannotBeFetchedHasACode(t *testing.T) {
	r := newRig(t, embeddedBackend())
	e := r.engine()
	missing := r.load(e, "missing", `services: {web: {image: BUSYBOX}}`)
	missing.Compose.Services["web"].Image = r.registry + "/missing:1"
	expect.Equal(t, runtime.CodeOf(expect.ErrorOf(e.Stage(t.Context(), missing, nil, nil))), runtime.NotFound, "code of an image that is not there")
	r.refused(e, missing, runtime.NotFound)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if _, err := e.FetchPackage(ctx, runtime.PackageRef{Repository: r.registry + "/nothing", Revision: "1"}, nil); runtime.CodeOf(err) != runtime.NotFound {
		t.Errorf("a package that is not there: %v", err)
	}
	behind := runtime.PackageRef{Location: "http://" + r.registry + "/v2/"}
	if p, err := e.FetchPackage(ctx, behind, nil); err != nil || p.Digest != digest.FromBytes(p.Data) || p.Signed {
		t.Errorf("a package behind a URL: %+v, %v", p, err)
	}
	behind.Key = "http://" + r.registry + "/nothing"
	expect.ErrorWith(t, expect.ErrorOf(e.FetchPackage(ctx, behind, nil)), "", "a package without the key that it is signed by")
	expect.Equal(t, runtime.CodeOf(expect.ErrorOf(e.FetchPackage(ctx, runtime.PackageRef{}, nil))), runtime.InvalidPackage, "code of no package at all")
}

func TestPruneKeepsWhatIsUsedAndWhatIsAskedFor(t *testing.T) {
	r := newRig(t, embeddedBackend())
	for _, name := range []string{"used", "kept", "loose"} {
		r.push(name, nil)
	}
	e := r.engine()
	r.apply(e, r.load(e, "prune", `services: {web: {image: REGISTRY/used:latest, read_only: true}}`))
	keep := make(map[string]digest.Digest)
	for _, name := range []string{"kept", "loose"} {
		p := r.load(e, "other", "services: {web: {image: REGISTRY/"+name+":latest}}")
		for _, ref := range p.Images() {
			if name == "kept" {
				keep[ref] = r.pins[ref]
			}
		}
	}
	removed := expect.Value(e.Prune(t.Context(), runtime.Keep{Images: []map[string]digest.Digest{keep}}))(t)
	expect.True(t, len(removed) == 1 && strings.Contains(removed[0], "/loose@sha256:"), "removed %q", removed)
}
