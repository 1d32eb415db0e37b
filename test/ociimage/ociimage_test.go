package ociimage_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/margolite/margolite/test/ociimage"
)

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
