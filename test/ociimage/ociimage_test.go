package ociimage_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/margolite/margolite/test/ociimage"
)

func manifestOf(t *testing.T, a *ociimage.Artifact) ocispec.Manifest {
	t.Helper()
	var m ocispec.Manifest
	if err := json.Unmarshal(a.Manifest, &m); err != nil {
		t.Fatal(err)
	}
	return m
}

// names lists an archive; gzip is undone where there is one.
func names(t *testing.T, archive []byte) []string {
	t.Helper()
	var from io.Reader = bytes.NewReader(archive)
	if zr, err := gzip.NewReader(bytes.NewReader(archive)); err == nil {
		from = zr
	}
	var list []string
	for tr := tar.NewReader(from); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return list
		}
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, h.Name)
	}
}

func TestAnImageIsTheSameWhereverItIsMade(t *testing.T) {
	build := func() *ociimage.Artifact {
		a, err := ociimage.Build(ociimage.Image{
			Platform: ocispec.Platform{OS: "linux", Architecture: "arm", Variant: "v7"},
			Layers: []ociimage.Layer{
				{Entries: []ociimage.Entry{ociimage.Executable("/bin/app", []byte("program"))}},
				ociimage.Padding(1000),
			},
			Config: ocispec.ImageConfig{Entrypoint: []string{"/bin/app"}, Labels: map[string]string{"b": "2", "a": "1"}},
		})
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	a, b := build(), build()
	if a.Digest != b.Digest || a.Digest != digest.FromBytes(a.Manifest) {
		t.Errorf("digests %s and %s of one image", a.Digest, b.Digest)
	}
	m := manifestOf(t, a)
	if len(m.Layers) != 2 {
		t.Fatalf("got %d layers, want 2", len(m.Layers))
	}
	for _, d := range append(slices.Clone(m.Layers), m.Config) {
		if blob := a.Blobs[d.Digest]; int64(len(blob)) != d.Size || digest.FromBytes(blob) != d.Digest {
			t.Errorf("descriptor %v does not describe its blob", d)
		}
	}
	var config ocispec.Image
	if err := json.Unmarshal(a.Blobs[m.Config.Digest], &config); err != nil {
		t.Fatal(err)
	}
	// The second layer is not compressed: its diff id is its digest.
	if config.RootFS.DiffIDs[1] != m.Layers[1].Digest || config.Variant != "v7" {
		t.Errorf("configuration %+v", config)
	}
	if got := names(t, a.Blobs[m.Layers[0].Digest]); !slices.Equal(got, []string{"bin/app"}) {
		t.Errorf("first layer holds %q", got)
	}
}

func TestALoadableArchiveHasWhatItsListsName(t *testing.T) {
	image, err := ociimage.Build(ociimage.Image{Layers: []ociimage.Layer{
		{Entries: []ociimage.Entry{ociimage.Executable("/one", []byte("1"))}},
		{Entries: []ociimage.Entry{ociimage.Executable("/two", []byte("2"))}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	archive, err := ociimage.Loadable(map[string]*ociimage.Artifact{"registry.invalid/app:1": image})
	if err != nil {
		t.Fatal(err)
	}
	files := map[string][]byte{}
	for r := tar.NewReader(bytes.NewReader(archive)); ; {
		h, err := r.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if files[h.Name], err = io.ReadAll(r); err != nil {
			t.Fatal(err)
		}
	}
	var index ocispec.Index
	var list []struct {
		Config   string
		RepoTags []string
		Layers   []string
	}
	if err := errors.Join(json.Unmarshal(files["index.json"], &index), json.Unmarshal(files["manifest.json"], &list)); err != nil {
		t.Fatal(err)
	}
	if len(index.Manifests) != 1 || index.Manifests[0].Digest != image.Digest {
		t.Errorf("the index has %+v", index.Manifests)
	}
	if len(list) != 1 || !slices.Equal(list[0].RepoTags, []string{"registry.invalid/app:1"}) {
		t.Fatalf("the list has %+v", list)
	}
	m := manifestOf(t, image)
	if digest.FromBytes(files[list[0].Config]) != m.Config.Digest {
		t.Errorf("the configuration is not in %s", list[0].Config)
	}
	if len(list[0].Layers) != len(m.Layers) {
		t.Fatalf("the layers are %v", list[0].Layers)
	}
	for i, layer := range m.Layers {
		if digest.FromBytes(files[list[0].Layers[i]]) != layer.Digest {
			t.Errorf("layer %d is not in %s", i, list[0].Layers[i])
		}
	}
}

func TestAComponentIsMadeAsTheStandardSays(t *testing.T) {
	a, err := ociimage.Component{
		Name: "app", Version: "1.2.3",
		Files: ociimage.Files{"compose.yaml": []byte("services: {}"), "conf/a.env": []byte("A=1")},
	}.Build()
	if err != nil {
		t.Fatal(err)
	}
	m := manifestOf(t, a)
	if m.ArtifactType != ociimage.ComponentArtifactType || m.MediaType != ocispec.MediaTypeImageManifest || a.MediaType != m.MediaType {
		t.Errorf("types %q, %q", m.ArtifactType, m.MediaType)
	}
	if len(m.Layers) != 1 || m.Layers[0].MediaType != ociimage.ComponentLayerType {
		t.Fatalf("layers %+v", m.Layers)
	}
	if m.Config.MediaType != ocispec.MediaTypeEmptyJSON || string(a.Blobs[m.Config.Digest]) != "{}" {
		t.Errorf("configuration %+v", m.Config)
	}
	if m.Annotations["org.margo.component.type"] != "compose" || m.Layers[0].Annotations["org.margo.component.version"] != "1.2.3" {
		t.Errorf("annotations %v and %v", m.Annotations, m.Layers[0].Annotations)
	}
	want := []string{"app/", "app/compose.yaml", "app/conf/", "app/conf/a.env"}
	if got := names(t, a.Blobs[m.Layers[0].Digest]); !slices.Equal(got, want) {
		t.Errorf("archive holds %q, want %q", got, want)
	}
}

func TestAComponentIsBrokenOnPurpose(t *testing.T) {
	files := ociimage.Files{"compose.yaml": []byte("services: {}")}
	for name, c := range map[string]struct {
		component ociimage.Component
		broken    func(m ocispec.Manifest, layer []byte) bool
	}{
		"another artifact type": {
			ociimage.Component{ArtifactType: "application/vnd.docker.compose.project"},
			func(m ocispec.Manifest, _ []byte) bool {
				return m.ArtifactType == "application/vnd.docker.compose.project"
			},
		},
		"no artifact type": {
			ociimage.Component{ArtifactType: "-"},
			func(m ocispec.Manifest, _ []byte) bool { return m.ArtifactType == "" },
		},
		"no layer": {
			ociimage.Component{NoLayer: true},
			func(m ocispec.Manifest, _ []byte) bool { return len(m.Layers) == 0 },
		},
		"two layers": {
			ociimage.Component{ExtraLayers: [][]byte{[]byte("x")}},
			func(m ocispec.Manifest, _ []byte) bool { return len(m.Layers) == 2 },
		},
		"a wrong size": {
			ociimage.Component{SizeError: 1},
			func(m ocispec.Manifest, layer []byte) bool { return m.Layers[0].Size == int64(len(layer))+1 },
		},
		"no archive": {
			ociimage.Component{Archive: []byte("this is text")},
			func(_ ocispec.Manifest, layer []byte) bool { return string(layer) == "this is text" },
		},
		"an entry that climbs out": {
			ociimage.Component{ExtraEntries: []ociimage.Entry{{Name: "../../etc/passwd"}}},
			func(_ ocispec.Manifest, layer []byte) bool {
				return slices.Contains(names(t, layer), "../../etc/passwd")
			},
		},
		"a device": {
			ociimage.Component{ExtraEntries: []ociimage.Entry{{Name: "app/null", Type: tar.TypeChar, Mode: 0o4777}}},
			func(_ ocispec.Manifest, layer []byte) bool { return slices.Contains(names(t, layer), "app/null") },
		},
	} {
		t.Run(name, func(t *testing.T) {
			c.component.Name, c.component.Version, c.component.Files = "app", "1.0.0", files
			a, err := c.component.Build()
			if err != nil {
				t.Fatal(err)
			}
			m, layer := manifestOf(t, a), []byte(nil)
			if len(m.Layers) > 0 {
				layer = a.Blobs[m.Layers[0].Digest]
			}
			if !c.broken(m, layer) {
				t.Errorf("it is not: %s", a.Manifest)
			}
		})
	}
}

func TestReadFilesRefusesWhatAPackageCannotHold(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "compose.yaml"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	files, err := ociimage.ReadFiles(dir)
	if err != nil || string(files["compose.yaml"]) != "x" {
		t.Fatalf("got %v, %v", files, err)
	}
	if err := os.Symlink("/etc/passwd", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	if _, err := ociimage.ReadFiles(dir); err == nil {
		t.Error("a link was read")
	}
}
