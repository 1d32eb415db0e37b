package runtime_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/margolite/margolite/runtime"
	"github.com/margolite/margolite/test/containerdtest"
	"github.com/margolite/margolite/test/ociimage"
)

func TestStageNeedsNoNetworkForPreloadedImages(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		app, err := ociimage.Build(ociimage.Image{Layers: []ociimage.Layer{ociimage.Padding(1000)}})
		if err != nil {
			t.Fatal(err)
		}
		data, err := ociimage.Layout(map[string]*ociimage.Artifact{"registry.invalid/app:1": app})
		if err != nil {
			t.Fatal(err)
		}
		preload := t.TempDir()
		if err := os.WriteFile(filepath.Join(preload, "app.tar"), data, 0o600); err != nil {
			t.Fatal(err)
		}
		e, err := runtime.New(runtime.Options{
			Client: r.client, Namespace: containerdtest.Namespace, StateDir: r.state, RunDir: r.run,
			Preload: preload, Logger: containerdtest.Logger(t),
		})
		if err != nil {
			t.Fatal(err)
		}
		stage := func(file string) error {
			p, err := e.Load(t.Context(), runtime.Source{Project: "preloaded", Package: []byte(file)})
			if err != nil {
				t.Fatal(err)
			}
			pins, err := e.Stage(t.Context(), p, nil, nil)
			if err == nil && pins["registry.invalid/app:1"] != app.Digest {
				t.Errorf("pinned %v", pins)
			}
			return err
		}
		if err := stage("services: {a: {image: 'registry.invalid/app:1'}, b: {image: 'registry.invalid/app:1'}}"); err != nil {
			t.Error(err)
		}
		err = stage("services: {a: {image: 'registry.invalid/absent:1'}}")
		if runtime.CodeOf(err) != runtime.Unreachable || !strings.Contains(err.Error(), "registry.invalid/absent:1") {
			t.Errorf("what nobody has: %v of code %s", err, runtime.CodeOf(err))
		}
	})
}
