package ociimage_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/margolite/margolite/test/ociimage"
)

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
	var m ocispec.Manifest
	if err := json.Unmarshal(a.Manifest, &m); err != nil || len(m.Layers) != 2 {
		t.Fatalf("got %d layers, %v, want 2", len(m.Layers), err)
	}
	for _, d := range append([]ocispec.Descriptor{m.Config}, m.Layers...) {
		if blob := a.Blobs[d.Digest]; int64(len(blob)) != d.Size || digest.FromBytes(blob) != d.Digest {
			t.Errorf("descriptor %v does not describe its blob", d)
		}
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
