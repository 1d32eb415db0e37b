// Package demoimage makes the image and the Compose component of the demo's
// application from the sources beside it. It needs the go command and is meant
// for tests and for those who prepare the demonstration.
package demoimage

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/margolite/margolite/test/ociimage"
)

// Where the image is in a registry, as the Compose file names it.
const (
	Repository = "margolite/demoapp"
	importPath = "github.com/margolite/margolite/test/demoapp"
)

// Options of the image.
type Options struct {
	Arch    string // GOARCH, with /v7 for armv7; empty: this machine's
	Padding int    // bytes of an extra layer, for downloads that take a while
	Version string // shown by the application; another version is another image
}

// Image makes the application's image.
func Image(ctx context.Context, o Options) (*ociimage.Artifact, error) {
	program, err := Program(ctx, o.Arch)
	if err != nil {
		return nil, err
	}
	return FromProgram(program, o)
}

// Program is the application's program for an architecture as in Options.
func Program(ctx context.Context, arch string) ([]byte, error) {
	return ociimage.BuildProgram(ctx, importPath, arch)
}

// FromProgram makes the image of a program that is built already.
func FromProgram(program []byte, o Options) (*ociimage.Artifact, error) {
	image := ociimage.Image{
		Layers: []ociimage.Layer{{Entries: []ociimage.Entry{ociimage.Executable("/demoapp", program)}}},
		Config: ocispec.ImageConfig{Entrypoint: []string{"/demoapp"}},
	}
	if o.Version != "" {
		image.Config.Env = []string{"VERSION=" + o.Version}
		image.Config.Labels = map[string]string{ocispec.AnnotationVersion: o.Version}
	}
	if o.Arch != "" {
		image.Platform.Architecture, image.Platform.Variant = architecture(o.Arch)
	}
	if o.Padding > 0 {
		image.Layers = append(image.Layers, ociimage.Padding(o.Padding))
	}
	return ociimage.Build(image)
}

func architecture(arch string) (name, variant string) {
	name, number, found := strings.Cut(arch, "/v")
	if found {
		variant = "v" + number
	}
	return name, variant
}

// Component makes the application's Compose component in the given version.
func Component(ctx context.Context, version string) (ociimage.Component, error) {
	dir, err := exec.CommandContext(ctx, "go", "list", "-f", "{{.Dir}}", importPath).Output()
	if err != nil {
		return ociimage.Component{}, fmt.Errorf("cannot find the demo's sources: %w", err)
	}
	files, err := ociimage.ReadFiles(filepath.Join(strings.TrimSpace(string(dir)), "package"))
	if err != nil {
		return ociimage.Component{}, err
	}
	return ociimage.Component{Name: "demoapp", Version: version, Files: files}, nil
}
