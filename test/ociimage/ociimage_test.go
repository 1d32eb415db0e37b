package ociimage_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/margolite/margolite/test/expect"
	"github.com/margolite/margolite/test/ociimage"
)

func TestReadFilesRefusesWhatAPackageCannotHold(t *testing.T) {
	dir := t.TempDir()
	expect.Check(t, os.WriteFile(filepath.Join(dir, "compose.yaml"), []byte("x"), 0o600))
	files, err := ociimage.ReadFiles(dir)
	expect.Require(t, err == nil && string(files["compose.yaml"]) == "x", "got %v, %v", files, err)
	expect.Check(t, os.Symlink("/etc/passwd", filepath.Join(dir, "link")))
	expect.True(t, expect.ErrorOf(ociimage.ReadFiles(dir)) != nil, "a link was read")
}
