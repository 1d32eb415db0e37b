package compose

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/compose-spec/compose-go/v2/loader"
	"github.com/compose-spec/compose-go/v2/types"
	"go.yaml.in/yaml/v4"
)

// TestBindDoesWhatComposeGoDoes holds bind against ModelToProject, which it is
// there instead of.
func TestBindDoesWhatComposeGoDoes(t *testing.T) {
	files := map[string]string{
		"extensions": `
x-top: {a: 1}
services:
  x-service:
    image: a
    x-team: {any: [thing]}
    x-none:
    build: {context: ., x-b: 1}
    labels: {x-label: b}
    ports: [{target: 80, x-port: 1}]
    volumes: [{type: volume, source: x-volume, target: /v, bind: {x-bind: 1}}]
    depends_on: {x-other: {condition: service_started, x-d: 1}}
    deploy: {x-note: 1, resources: {limits: {cpus: 1, x-limits: [1]}}}
  x-other: {image: b, extends: {service: x-service, x-e: 1}}
volumes: {x-volume: {x-of: volume}}
networks: {x-network: {ipam: {config: [{subnet: 10.0.0.0/8, x-subnet: 1}]}}}
configs: {x-config: {content: c, x-of: config}}
secrets: {x-secret: {environment: S, x-of: secret}}
`,
		"profiles": `
services:
  always: {image: a, profiles: []}
  one: {image: a, profiles: [one]}
  both: {image: a, profiles: [one, two]}
  two: {image: a, profiles: [two]}
`,
		"all off": "services: {three: {image: a, profiles: [three]}}",
	}
	for name, content := range files {
		for _, profiles := range [][]string{nil, {"one"}, {"two", "one"}, {"*"}} {
			t.Run(name, func(t *testing.T) {
				l := &loading{ctx: t.Context(), project: "p", in: newInterpolator(t.Context())}
				file := filepath.Join(t.TempDir(), "compose.yaml")
				if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
					t.Fatal(err)
				}
				model := func() map[string]any {
					t.Helper()
					details := types.ConfigDetails{
						WorkingDir: "/w", Environment: types.Mapping{},
						ConfigFiles: []types.ConfigFile{{Filename: file, Content: []byte(content)}},
					}
					m, err := loader.LoadModelWithContext(t.Context(), details, l.loaderOptions)
					if err != nil {
						t.Fatal(err)
					}
					return m
				}
				details := types.ConfigDetails{WorkingDir: "/w", Environment: l.withProjectName(types.Mapping{})}
				options := loader.ToOptions(&details, []func(*loader.Options){l.loaderOptions})
				options.Profiles = profiles
				want, err := loader.ModelToProject(model(), options, details)
				if err != nil {
					t.Fatal(err)
				}
				got, err := l.bind(model(), "/w", types.Mapping{}, profiles)
				if err != nil {
					t.Fatal(err)
				}
				if !reflect.DeepEqual(got.Compose, want) {
					a, _ := json.MarshalIndent(got.Compose, "", " ")
					b, _ := json.MarshalIndent(want, "", " ")
					t.Errorf("with profiles %v it is\n%s\nand not\n%s", profiles, a, b)
				}
				for name := range got.Compose.Services {
					got.Services[name] = &Service{}
				}
				sameText(t, got.YAML, got.canonical().MarshalYAML)
				sameText(t, func() ([]byte, error) {
					text, err := got.JSON()
					if err != nil {
						return nil, err
					}
					return json.MarshalIndent(json.RawMessage(text), "", "  ")
				}, got.canonical().MarshalJSON)
			})
		}
	}
}

// sameText wants ours to be what compose-go writes.
func sameText[options any](t *testing.T, ours func() ([]byte, error), theirs func(...options) ([]byte, error)) {
	t.Helper()
	got, err := ours()
	if err != nil {
		t.Fatal(err)
	}
	want, err := theirs()
	if err != nil {
		t.Fatal(err)
	}
	var a, b any
	if err := errors.Join(yaml.Unmarshal(got, &a), yaml.Unmarshal(want, &b)); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(a, b) {
		t.Errorf("it is written as\n%s\nand not\n%s", got, want)
	}
}

// TestProjectIsWrittenAsComposeGoDoes holds what is written against the library,
// for the files of every attribute.
func TestProjectIsWrittenAsComposeGoDoes(t *testing.T) {
	files, err := filepath.Glob("../../test/compose/testdata/attributes/*.yaml")
	if err != nil || len(files) < 100 {
		t.Fatal(len(files), err)
	}
	image := filepath.Join(t.TempDir(), "image.yaml")
	if err := os.WriteFile(image, []byte("services: {app: {image: a}}"), 0o600); err != nil {
		t.Fatal(err)
	}
	written := 0
	for _, file := range files {
		p, err := Load(t.Context(), Options{ProjectName: "p", Files: []string{file, image}})
		if err != nil {
			continue // it wants an environment, or is refused
		}
		written++
		t.Run(filepath.Base(file), func(t *testing.T) { sameText(t, p.YAML, p.canonical().MarshalYAML) })
	}
	if written < 80 {
		t.Errorf("%d projects were written", written)
	}
}

func FuzzWriteYAML(f *testing.F) {
	for _, s := range []string{
		"a: b", "a: [1, '2', 3.5, 0x1f, ~, '', yes, 'yes', 1:20, 2001-01-01]", "a: |\n  text\n\n   more\n", "a: {b: [[c], [{d: e}]]}",
		"a: &x {b: c}\nd: {<<: *x, e: *x}\nf: &y [1]\ng: *y", "a: !reset null\nb: !override [c]\nd: !override {e: f}\n- : x", "'': \"\\u2028 \\U0001f600\"",
		"? &k key\n: v\n*k : w", "a: [&z !override {b: c}, &n 'x: y', *n]", "a: !!str 1\nb: !!int '2'\nc: !!float 3\nd: !!binary aGk=", "a: {}\nb: []\nc: [[], {}]",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		var node yaml.Node
		var want, got any
		if yaml.Unmarshal([]byte(text), &node) != nil || len(node.Content) != 1 || node.Content[0].Kind != yaml.MappingNode {
			t.Skip()
		}
		d, err := parse([]byte(text))
		if err != nil {
			t.Skip() // nothing of it is written
		}
		written := writeYAML(node.Content[0])
		if err := yaml.Unmarshal([]byte(text), &want); err != nil {
			t.Skip()
		}
		if err := yaml.Unmarshal(written, &got); err != nil {
			t.Fatalf("%s: %v, for %q", written, err, text)
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s is %v, not %v, for %q", written, got, want, text)
		}
		if again, err := parse(written); err != nil || !reflect.DeepEqual(again.tree, d.tree) {
			t.Errorf("%s has the tree %v (%v), not %v", written, again.tree, err, d.tree)
		}
	})
}
