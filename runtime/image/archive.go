package image

import (
	"archive/tar"
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/errdefs"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/margolite/margolite/runtime/registry"
	"github.com/margolite/margolite/runtime/tree"
)

const (
	maxEntries = 1 << 14
	maxName    = 512     // bytes
	maxSaved   = 1 << 10 // images of docker save
	maxRefs    = 1 << 12 // names and digests of images
	// maxUnzipped bounds the size of an archive after decompression in bytes.
	maxUnzipped = 64 << 30
)

// archive is a tar file of images, gzipped or not: an OCI layout, or the output of `docker save`.
// Parts are read in place, without unpacking. Their readers verify them.
type archive struct {
	info   os.FileInfo // of the tar file, when it was read
	open   opener      // of its beginning
	files  map[string]section
	blobs  map[digest.Digest]section
	images map[string]v1.Descriptor // by their normalised names with tag, and by their digests
}

type opener func() (io.ReadSeekCloser, error) // Seek only goes forward

// section locates a part. What the archive has only in another form is made on reading.
type section struct {
	offset, size int64
	made         []byte
}

func readArchive(file string) (*archive, error) {
	a, err := parseArchive(func() (io.ReadSeekCloser, error) { return openArchive(file) })
	if err != nil {
		return nil, fmt.Errorf("cannot read image archive %s: %w", file, err)
	}
	return a, nil
}

func parseArchive(open opener) (*archive, error) {
	r, err := open()
	if err != nil {
		return nil, err
	}
	defer r.Close()
	files, err := listArchive(r)
	if err != nil {
		return nil, err
	}
	// To the end, where gzip has a checksum.
	if _, err := io.Copy(io.Discard, r); err != nil {
		return nil, err
	}
	a := &archive{open: open, files: files, blobs: make(map[digest.Digest]section), images: make(map[string]v1.Descriptor)}
	defer func() { a.files = nil }() // of what is left, parts alone are asked for
	for name, at := range files {
		if d, ok := blobOf(name); ok {
			a.blobs[d] = at
		}
	}
	if _, ok := files["index.json"]; ok {
		return a, a.readLayout()
	}
	if _, ok := files["manifest.json"]; ok {
		return a, a.readSaved()
	}
	return nil, errors.New("neither an OCI layout nor what docker save writes")
}

// blobOf is the digest in a file name of a layout.
func blobOf(name string) (digest.Digest, bool) {
	rest, ok := strings.CutPrefix(name, "blobs/")
	algorithm, encoded, found := strings.Cut(rest, "/")
	if !ok || !found {
		return "", false
	}
	d := digest.NewDigestFromEncoded(digest.Algorithm(algorithm), encoded)
	return d, d.Validate() == nil
}

// listArchive finds regular files. `docker save` has links, which it follows within the archive.
func listArchive(r io.ReadSeeker) (map[string]section, error) {
	files := make(map[string]section)
	links := make(map[string]string)
	entries := tar.NewReader(r)
	for n := 0; ; n++ {
		h, err := entries.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return nil, err
		}
		if n >= maxEntries {
			return nil, fmt.Errorf("it has more than %d entries", maxEntries)
		}
		name, err := entryName(h.Name)
		if err != nil {
			return nil, err
		}
		switch h.Typeflag {
		case tar.TypeDir, tar.TypeXGlobalHeader:
		case tar.TypeReg:
			offset, err := r.Seek(0, io.SeekCurrent)
			if err != nil {
				return nil, err
			}
			if isSparse(h) {
				return nil, fmt.Errorf("%.80q has holes", h.Name)
			}
			if _, twice := files[name]; twice {
				return nil, fmt.Errorf("duplicate %.80q", h.Name)
			}
			files[name] = section{offset: offset, size: h.Size}
		case tar.TypeSymlink, tar.TypeLink:
			to := h.Linkname
			if h.Typeflag == tar.TypeSymlink {
				to = path.Join(path.Dir(name), to)
			}
			if links[name], err = entryName(to); err != nil {
				return nil, fmt.Errorf("link %.80q leads out of it, to %.80q", h.Name, h.Linkname)
			}
		default:
			return nil, fmt.Errorf("%.80q is not a file or a directory", h.Name)
		}
	}
	for name, to := range links {
		if at, ok := files[to]; ok {
			if _, twice := files[name]; !twice {
				files[name] = at
			}
		}
	}
	return files, nil
}

// entryName is the clean name of an entry within the archive.
func entryName(name string) (string, error) {
	clean := path.Clean(name)
	if len(name) > maxName || name == "" || path.IsAbs(name) || clean == ".." || strings.HasPrefix(clean, "../") {
		return "", fmt.Errorf("%.80q is not a valid name", name)
	}
	return clean, nil
}

// isSparse tells whether a file's bytes are not stored as they are.
func isSparse(h *tar.Header) bool {
	for key := range h.PAXRecords {
		if strings.HasPrefix(key, "GNU.sparse.") {
			return true
		}
	}
	return h.Typeflag == tar.TypeGNUSparse
}

// decode reads a JSON file of the archive of at most limit bytes.
func (a *archive) decode(name string, limit int64, to any) ([]byte, error) {
	at, ok := a.files[path.Clean(name)]
	switch {
	case !ok:
		return nil, fmt.Errorf("%.80q is missing", name)
	case at.size > limit:
		return nil, fmt.Errorf("%.80q has more than %d bytes", name, limit)
	}
	data, err := a.read(at)
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(data, to); err != nil {
		return nil, fmt.Errorf("cannot read %.80q: %w", name, err)
	}
	return data, nil
}

// containerdName is the annotation of containerd and Docker for the full reference in an index.
const containerdName = "io.containerd.image.name"

func (a *archive) readLayout() error {
	var index v1.Index
	if _, err := a.decode("index.json", maxManifest, &index); err != nil {
		return err
	}
	for _, m := range index.Manifests {
		if m.Digest.Validate() != nil || (!images.IsIndexType(m.MediaType) && !images.IsManifestType(m.MediaType)) {
			continue
		}
		if _, ok := a.blobs[m.Digest]; !ok {
			return fmt.Errorf("image %s is missing", m.Digest)
		}
		names := []string{m.Annotations[containerdName], m.Annotations[v1.AnnotationRefName]}
		// A tag alone does not say of which repository.
		names = slices.DeleteFunc(names, func(name string) bool { return !strings.ContainsAny(name, "/:") })
		if err := a.add(v1.Descriptor{MediaType: m.MediaType, Digest: m.Digest, Size: m.Size}, names); err != nil {
			return err
		}
	}
	return nil
}

// add registers an image by its digest and names; the first of a name wins.
func (a *archive) add(desc v1.Descriptor, names []string) error {
	keys := []string{desc.Digest.String()}
	for _, name := range names {
		if named, err := parse(name); err == nil {
			keys = append(keys, named.String())
		}
	}
	for _, key := range keys {
		if _, known := a.images[key]; !known {
			a.images[key] = desc
		}
	}
	if len(a.images) > maxRefs {
		return fmt.Errorf("it has more than %d images and names", maxRefs)
	}
	return nil
}

// readSaved reads the form of `docker save` before it wrote layouts. It makes the missing manifests,
// of uncompressed layers, whose digests are those in the configuration.
func (a *archive) readSaved() error {
	var saved []savedImage
	if _, err := a.decode("manifest.json", maxManifest, &saved); err != nil {
		return err
	}
	if len(saved) > maxSaved {
		return fmt.Errorf("it has more than %d images", maxSaved)
	}
	for _, image := range saved {
		manifest, err := a.manifestOf(image)
		if err != nil {
			return err
		}
		desc := v1.Descriptor{MediaType: v1.MediaTypeImageManifest, Digest: digest.FromBytes(manifest), Size: int64(len(manifest))}
		a.blobs[desc.Digest] = section{size: desc.Size, made: manifest}
		if err := a.add(desc, image.RepoTags); err != nil {
			return err
		}
	}
	return nil
}

type savedImage struct {
	Config   string
	RepoTags []string
	Layers   []string
}

func (a *archive) manifestOf(saved savedImage) ([]byte, error) {
	var image v1.Image
	config, err := a.decode(saved.Config, maxConfig, &image)
	if err != nil {
		return nil, err
	}
	diffs := image.RootFS.DiffIDs
	if len(saved.Layers) != len(diffs) || len(diffs) > maxLayers {
		return nil, fmt.Errorf("%.80q lists %d layers, not %d", saved.Config, len(diffs), len(saved.Layers))
	}
	manifest := v1.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2},
		MediaType: v1.MediaTypeImageManifest,
		Config:    v1.Descriptor{MediaType: v1.MediaTypeImageConfig, Digest: digest.FromBytes(config), Size: int64(len(config))},
		Layers:    []v1.Descriptor{},
	}
	a.blobs[manifest.Config.Digest] = a.files[path.Clean(saved.Config)]
	for n, name := range saved.Layers {
		at, ok := a.files[path.Clean(name)]
		if !ok || diffs[n].Validate() != nil {
			return nil, fmt.Errorf("layer %.80q is missing", name)
		}
		a.blobs[diffs[n]] = at
		manifest.Layers = append(manifest.Layers, v1.Descriptor{MediaType: v1.MediaTypeImageLayer, Digest: diffs[n], Size: at.size})
	}
	return json.Marshal(manifest)
}

// find describes an image by normalised tag reference, or by digest, even nested in an index.
func (a *archive) find(ref reference.Named) (v1.Descriptor, error) {
	key := ref.String()
	if canonical, ok := ref.(reference.Canonical); ok {
		key = canonical.Digest().String()
	}
	if desc, ok := a.images[key]; ok {
		return desc, nil
	}
	at, ok := a.blobs[digest.Digest(key)]
	if !ok || at.size > maxManifest {
		return v1.Descriptor{}, errdefs.ErrNotFound
	}
	data, err := a.read(at)
	if err != nil {
		return v1.Descriptor{}, err
	}
	form, err := registry.FormOf(data)
	if err != nil {
		return v1.Descriptor{}, bad(err)
	}
	return v1.Descriptor{MediaType: form, Digest: digest.Digest(key), Size: int64(len(data))}, nil
}

func (a *archive) read(at section) ([]byte, error) {
	r, err := a.from(at, 0)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	return io.ReadAll(r)
}

// from reads a part in place from an offset to its end.
func (a *archive) from(at section, offset int64) (io.ReadCloser, error) {
	if at.made != nil {
		return io.NopCloser(io.NewSectionReader(bytes.NewReader(at.made), offset, at.size)), nil
	}
	r, err := a.open()
	if err != nil {
		return nil, err
	}
	if _, err := r.Seek(at.offset+offset, io.SeekCurrent); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return archivePart{io.LimitReader(r, at.size-offset), r}, nil
}

type archivePart struct {
	io.Reader
	io.Closer
}

func openArchive(file string) (io.ReadSeekCloser, error) {
	f, err := tree.Open(file)
	if err != nil {
		return nil, err
	}
	var magic [2]byte
	if _, err := f.ReadAt(magic[:], 0); err != nil || magic != [...]byte{0x1f, 0x8b} {
		return f, nil
	}
	z, err := gzip.NewReader(bufio.NewReader(f))
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return &gzipped{Closer: f, plain: z}, nil
}

// gzipped is a file that is decompressed on reading, from its beginning.
type gzipped struct {
	io.Closer
	plain io.Reader
	at    int64
}

func (z *gzipped) Read(p []byte) (int, error) {
	n, err := z.plain.Read(p)
	if z.at += int64(n); z.at > maxUnzipped {
		return n, fmt.Errorf("it has more than %d bytes", int64(maxUnzipped))
	}
	return n, err
}

// Seek only goes forward and decompresses what it skips.
func (z *gzipped) Seek(offset int64, _ int) (int64, error) {
	_, err := io.CopyN(io.Discard, z, offset)
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	return z.at, err
}
