// Image writes the slim flavour of margolite as a container image, an archive of
// an OCI layout for all architectures, of what `make cross` put into dist:
//
//	go run ./packaging/image -version VERSION -time SECONDS -dist dist -out FILE
package main

import (
	"archive/tar"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/margolite/margolite/test/ociimage"
)

// built is what `make cross` put into one directory of dist.
type built struct {
	dir string
	ocispec.Platform
}

// all is in the order of the index: a reader takes the first that fits, and an arm
// v7 may run v6.
func all() []built {
	return []built{
		{"linux-amd64", ocispec.Platform{OS: "linux", Architecture: "amd64"}},
		{"linux-arm64", ocispec.Platform{OS: "linux", Architecture: "arm64", Variant: "v8"}},
		{"linux-armv7", ocispec.Platform{OS: "linux", Architecture: "arm", Variant: "v7"}},
		{"linux-armv6", ocispec.Platform{OS: "linux", Architecture: "arm", Variant: "v6"}},
		{"linux-riscv64", ocispec.Platform{OS: "linux", Architecture: "riscv64"}},
	}
}

func main() {
	version := flag.String("version", "", "`VERSION` of the tag")
	seconds := flag.Int64("time", 0, "time of the commit, in `SECONDS`")
	dist := flag.String("dist", "dist", "`DIR` with the programs")
	out := flag.String("out", "", "`FILE` to write")
	flag.Parse()
	if *version == "" || *out == "" || flag.NArg() > 0 {
		flag.Usage()
		os.Exit(2)
	}
	if err := write(*out, *dist, *version, time.Unix(*seconds, 0).UTC()); err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

func write(out, dist, version string, created time.Time) error {
	var images []*ociimage.Artifact
	for _, b := range all() {
		program, err := os.ReadFile(filepath.Join(dist, b.dir, "slim", "margolite"))
		if err != nil {
			return err
		}
		image, err := ociimage.Build(imageOf(b.Platform, program, version, created))
		if err != nil {
			return err
		}
		images = append(images, image)
	}
	index, err := ociimage.Index(images...)
	if err != nil {
		return err
	}
	data, err := ociimage.Layout(map[string]*ociimage.Artifact{"docker.io/margolite/margolite:" + version: index})
	if err != nil {
		return err
	}
	return os.WriteFile(out, data, 0o644)
}

// imageOf has the program, and directories for what is mounted from the host.
func imageOf(platform ocispec.Platform, program []byte, version string, created time.Time) ociimage.Image {
	return ociimage.Image{
		Platform: platform,
		Layers: []ociimage.Layer{{Entries: []ociimage.Entry{
			{Name: "etc/", Type: tar.TypeDir},
			{Name: "etc/margolite/", Type: tar.TypeDir},
			{Name: "run/", Type: tar.TypeDir},
			{Name: "tmp/", Type: tar.TypeDir, Mode: 0o1777},
			{Name: "usr/", Type: tar.TypeDir},
			{Name: "usr/bin/", Type: tar.TypeDir},
			ociimage.Executable("/usr/bin/margolite", program),
			{Name: "var/", Type: tar.TypeDir},
			{Name: "var/lib/", Type: tar.TypeDir},
		}}},
		Config: ocispec.ImageConfig{
			Entrypoint: []string{"/usr/bin/margolite"},
			Cmd:        []string{"run"},
			Env:        []string{"PATH=/usr/bin"},
			Labels: map[string]string{
				ocispec.AnnotationTitle:    "margolite",
				ocispec.AnnotationVersion:  version,
				ocispec.AnnotationCreated:  created.Format(time.RFC3339),
				ocispec.AnnotationLicenses: "Apache-2.0",
			},
		},
	}
}
