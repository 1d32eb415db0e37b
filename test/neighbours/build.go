package neighbours

import (
	"archive/tar"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/margolite/margolite/test/ociimage"
	"github.com/margolite/margolite/test/plant"
)

// Names of the programs that Build makes.
const (
	agent = "margolite"
	hog   = "hog"
)

// Build makes all programs that sites run, in dir. It needs the go command.
func Build(ctx context.Context, dir string) error {
	if err := plant.BuildPrograms(ctx, dir,
		plant.Program{File: agent, Name: "margolite", Version: "neighbours", Tags: plant.AgentTags},
		plant.Program{File: plant.Shim, Name: plant.Shim, Tags: plant.ShimTags},
	); err != nil {
		return err
	}
	program, err := (&ociimage.Programs{}).Build(ctx, "github.com/margolite/margolite/test/neighbours/hog", "")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, hog), program, 0o755)
}

// tools is the repository of the one image that everybody has, with a tag for each
// of its sizes.
const tools = "neighbours/tools"

// toolsImage is an image of busybox and of the program hog, and padding bytes more.
func toolsImage(programs string, padding int) (*ociimage.Artifact, error) {
	busybox, err := os.ReadFile("/bin/busybox")
	if err != nil {
		return nil, fmt.Errorf("busybox-static is needed: %w", err)
	}
	program, err := os.ReadFile(filepath.Join(programs, hog))
	if err != nil {
		return nil, err
	}
	entries := []ociimage.Entry{
		{Name: "bin/", Type: tar.TypeDir},
		{Name: "etc/", Type: tar.TypeDir},
		{Name: "etc/passwd", Data: []byte("root:x:0:0:root:/:/bin/sh\n")},
		{Name: "etc/group", Data: []byte("root:x:0:\n")},
		ociimage.Executable("/bin/busybox", busybox), ociimage.Executable("/bin/hog", program),
	}
	for name := range strings.FieldsSeq("cat dd false mkfifo rm sh sleep true truncate yes") {
		entries = append(entries, ociimage.Entry{Name: "bin/" + name, Type: tar.TypeSymlink, Link: "busybox"})
	}
	layers := []ociimage.Layer{{Entries: entries}}
	if padding > 0 {
		layers = append(layers, ociimage.Padding(padding))
	}
	return ociimage.Build(ociimage.Image{Layers: layers, Config: ocispec.ImageConfig{Env: []string{"PATH=/bin"}}})
}
