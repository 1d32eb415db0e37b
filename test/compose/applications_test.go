package compose

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/margolite/margolite/test/apps"
	"github.com/margolite/margolite/test/containerdtest"
	"github.com/margolite/margolite/test/debimage"
	"github.com/margolite/margolite/test/expect"
	"github.com/margolite/margolite/test/leftovers"
	"github.com/margolite/margolite/test/ociimage"
)

// TestDEV04OBS07Applications plays the applications in test/apps.
func TestDEV04OBS07Applications(t *testing.T) {
	if testing.Short() {
		t.Skip("in make test-all: whole applications")
	}
	files, err := filepath.Glob("../apps/*/compose.yaml")
	expect.Require(t, err == nil && len(files) != 0, "no applications: %v", err)
	for _, backend := range containerdtest.Backends() {
		t.Run(backend.Name, func(t *testing.T) {
			d := newDevice(t, backend)
			before := leftovers.Take(t, d.look)
			pushed := make(map[string]bool)
			for _, file := range files {
				dir := filepath.Dir(file)
				t.Run(filepath.Base(dir), func(t *testing.T) {
					d.pushImages(t, file, pushed)
					d.playFile(t, dir, filepath.Base(dir), before)
				})
			}
		})
	}
}

// pushImages pushes the images that a Compose file names, if they were not yet.
func (d *device) pushImages(t *testing.T, file string, pushed map[string]bool) {
	text := expect.Value(os.ReadFile(file))(t)
	cache := expect.Value(debimage.Open())(t)
	to := ociimage.Registry{URL: "http://" + d.registry}
	for _, image := range apps.Images() {
		if pushed[image.Name] || !strings.Contains(string(text), "}/"+image.Name+":") {
			continue
		}
		for _, version := range []string{"1", "2"} {
			artifact, err := cache.Build(image, version)
			if _, missing := exec.LookPath("apt-get"); missing != nil && errors.Is(err, debimage.ErrNotFetched) {
				t.Skip("needs apt-get:", err)
			}
			check(t, err)
			check(t, to.Push(t.Context(), image.Name, version, artifact))
		}
		pushed[image.Name] = true
	}
}

// fetchPackages gets what the images are made of. It needs a network, unless
// all of it is in the cache.
func fetchPackages() error {
	cache, err := debimage.Open()
	if err != nil {
		return err
	}
	var sets [][]string
	for _, image := range apps.Images() {
		sets = append(sets, image.Packages)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	return cache.Fetch(ctx, sets...)
}
