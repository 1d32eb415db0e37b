// Image writes margolite as a container image for one architecture, from what `make cross` put into DIR:
//
//	go run ./packaging/image -version VERSION -time SECONDS -dir DIR -platform linux/arm/v7 -out FILE
//
// FILE is an archive that docker, podman and containerd load.
package main

import (
	"archive/tar"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/margolite/margolite/test/ociimage"
)

// repository is the name of the image without its tag.
const repository = "docker.io/margolite/margolite"

func main() {
	version := flag.String("version", "", "`VERSION` of the tag")
	seconds := flag.Int64("time", 0, "time of the commit, in `SECONDS`")
	dir := flag.String("dir", "bin", "`DIR` with the programs")
	on := flag.String("platform", "", "`PLATFORM` of the programs, as linux/arm/v7; empty: of this machine")
	out := flag.String("out", "", "`FILE` to write")
	flag.Parse()
	if *version == "" || *out == "" || flag.NArg() > 0 {
		flag.Usage()
		os.Exit(2)
	}
	if err := write(*out, *dir, *version, platform(*on), time.Unix(*seconds, 0).UTC()); err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

// platform reads OS/ARCHITECTURE[/VARIANT].
func platform(text string) ocispec.Platform {
	var p ocispec.Platform
	p.OS, text, _ = strings.Cut(text, "/")
	p.Architecture, p.Variant, _ = strings.Cut(text, "/")
	return p
}

func write(out, dir, version string, on ocispec.Platform, created time.Time) error {
	entries := []ociimage.Entry{{Name: "usr/", Type: tar.TypeDir}, {Name: "usr/bin/", Type: tar.TypeDir}}
	for _, name := range []string{"containerd-shim-runc-v2", "margolite", "margolite-init"} {
		program, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			return err
		}
		entries = append(entries, ociimage.Executable("/usr/bin/"+name, program))
	}
	image, err := ociimage.Build(ociimage.Image{
		Platform: on,
		Layers:   []ociimage.Layer{{Entries: entries}},
		Config: ocispec.ImageConfig{
			Entrypoint: []string{"/usr/bin/margolite"},
			Cmd:        []string{"run"},
			// margolite leaves the image for this directory of the host, see cmd/margolite/host.go. What the
			// engine executes in the container later is looked up there.
			Env: []string{
				"MARGOLITE_HOST_DIR=/var/lib/margolite/bin",
				"PATH=/var/lib/margolite/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
			},
			Labels: map[string]string{
				ocispec.AnnotationTitle:    "margolite",
				ocispec.AnnotationVersion:  version,
				ocispec.AnnotationCreated:  created.Format(time.RFC3339),
				ocispec.AnnotationLicenses: "Apache-2.0",
			},
		},
	})
	if err != nil {
		return err
	}
	data, err := ociimage.Loadable(map[string]*ociimage.Artifact{repository + ":" + version: image})
	if err != nil {
		return err
	}
	return os.WriteFile(out, data, 0o644)
}
