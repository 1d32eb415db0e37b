package image

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/containerd/errdefs"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
)

const (
	maxArchives = 256      // of the preload directory that are looked into
	maxReferrer = 64 << 10 // bytes; bigger parts of archives refer to nothing
)

// preload is the directory of archives delivered with the device.
type preload struct {
	dir string // empty: none
	log *slog.Logger

	mu    sync.Mutex
	known map[string]*archive // by path; an unusable one is empty
}

func (p *preload) archives() preloaded {
	archives, problems := p.read()
	for _, err := range problems {
		p.log.Warn("cannot use preloaded images", "error", err)
	}
	return archives
}

// CheckPreload returns the number of archives in dir and their problems.
func CheckPreload(dir string) (archives int, problems []error) {
	found, problems := (&preload{dir: dir}).read()
	return len(found), problems
}

// read reads archives that changed since the last call, sorted by name, and returns their problems.
func (p *preload) read() (archives preloaded, problems []error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	files, err := preloadFiles(p.dir)
	if err != nil {
		problems = append(problems, err)
	}
	found := make(map[string]*archive, len(files))
	for _, path := range files {
		info, err := os.Stat(path)
		if err != nil {
			problems = append(problems, err)
			continue
		}
		a := p.known[path]
		if a == nil || a.info.Size() != info.Size() || !a.info.ModTime().Equal(info.ModTime()) {
			if a, err = readArchive(path); err != nil {
				problems = append(problems, err)
				a = &archive{}
			}
			a.info = info
		}
		found[path] = a
		archives = append(archives, a)
	}
	p.known = found
	return archives, problems
}

// preloadFiles are the archives in a directory, which may be missing.
func preloadFiles(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir) // sorted
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var files []string
	for _, e := range entries {
		name := strings.ToLower(e.Name())
		if slices.ContainsFunc([]string{".tar", ".tar.gz", ".tgz"}, func(end string) bool { return strings.HasSuffix(name, end) }) {
			files = append(files, filepath.Join(dir, e.Name()))
		}
	}
	if len(files) > maxArchives {
		return files[:maxArchives], fmt.Errorf("%s holds %d archives; only the first %d are used", dir, len(files), maxArchives)
	}
	return files, nil
}

// preloaded serves images from archives, as a registry does.
type preloaded []*archive

func (p preloaded) Resolve(_ context.Context, ref reference.Named) (v1.Descriptor, error) {
	for _, a := range p {
		if root, err := a.find(ref); !errdefs.IsNotFound(err) {
			return root, err
		}
	}
	return v1.Descriptor{}, fmt.Errorf("no preloaded image %s: %w", ref, errdefs.ErrNotFound)
}

func (p preloaded) Open(_ context.Context, _ reference.Named, desc v1.Descriptor, offset int64) (io.ReadCloser, error) {
	for _, a := range p {
		if at, ok := a.blobs[desc.Digest]; ok {
			return a.from(at, offset)
		}
	}
	return nil, fmt.Errorf("not preloaded: %s: %w", desc.Digest, errdefs.ErrNotFound)
}

// Referrers lists all small parts, beside the image or in an archive of their own: signed content says
// what it belongs to, and signatures are recognisable. cosign 3 saves bundles missing in the index.
func (p preloaded) Referrers(context.Context, reference.Named, digest.Digest) ([]v1.Descriptor, error) {
	var small []v1.Descriptor
	for _, a := range p {
		for _, d := range slices.Sorted(maps.Keys(a.blobs)) {
			if size := a.blobs[d].size; size <= maxReferrer {
				small = append(small, v1.Descriptor{Digest: d, Size: size})
			}
		}
	}
	return small, nil
}
