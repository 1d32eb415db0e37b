package image_test

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"

	"github.com/margolite/margolite/runtime/containerd"
	"github.com/margolite/margolite/runtime/fault"
	"github.com/margolite/margolite/runtime/image"
	"github.com/margolite/margolite/test/expect"
	"github.com/margolite/margolite/test/ociimage"
)

// preloading is a device with archives, and those registries that it can reach.
func preloading(t testing.TB, client containerd.Client, archives map[string][]byte, registries map[string]image.Registry) (*image.Images, string) {
	t.Helper()
	dir := t.TempDir()
	for name, data := range archives {
		expect.Check(t, os.WriteFile(filepath.Join(dir, name), data, 0o600))
	}
	return openWith(t, image.Options{Client: client, Preload: dir, Registries: registries}), dir
}

func archiveOf(t testing.TB, write func(map[string]*ociimage.Artifact) ([]byte, error), images map[string]*ociimage.Artifact) []byte {
	t.Helper()
	return expect.Value(write(images))(t)
}

// sizeOf is how many bytes an image has, of all platforms.
func sizeOf(a *ociimage.Artifact) int64 {
	bytes := len(a.Manifest)
	for _, blob := range a.Blobs {
		bytes += len(blob)
	}
	for _, part := range a.Parts {
		bytes += int(sizeOf(part))
	}
	return int64(bytes)
}

func TestPreloadedImagesNeedNoRegistry(t *testing.T) {
	each(t, func(t *testing.T, ctx context.Context, client containerd.Client, _ *watched) {
		one, other := build(t, "", "one"), build(t, "linux/s390x", "other")
		many := index(t, other, build(t, "", "many"))
		saved := build(t, "", "saved")
		twin, err := ociimage.Build(ociimage.Image{
			Layers: []ociimage.Layer{{Entries: []ociimage.Entry{{Name: "is", Data: []byte("saved")}}}, ociimage.Padding(1000)},
		})
		expect.Check(t, err)
		images, dir := preloading(t, client, map[string][]byte{
			"LAYOUT.TAR": archiveOf(t, ociimage.Layout, map[string]*ociimage.Artifact{
				"docker.io/library/one:1": one, "registry.invalid/many:latest": many,
			}),
			"saved.tar.gz": expect.Value(ociimage.Gzip(archiveOf(t, ociimage.Saved, map[string]*ociimage.Artifact{"saved:2": saved, "registry.invalid/twin:2": twin})))(t),
			"broken.tar":   []byte("not an archive"),
			"cut.tgz":      expect.Value(ociimage.Gzip(archiveOf(t, ociimage.Layout, map[string]*ociimage.Artifact{"registry.invalid/absent:1": one})))(t)[:500],
			"ignored":      []byte("no archive by its name"),
		}, nil)
		for _, want := range []image.Want{
			{Ref: "one:1"},
			{Ref: "one:1", Pin: one.Digest},
			{Ref: "another.invalid/name:1", Pin: one.Digest}, // a digest says what it is, wherever it comes from
			{Ref: "one@" + one.Digest.String()},
			{Ref: "registry.invalid/many"},
			{Ref: "registry.invalid/many", Platform: "linux/s390x"},
			{Ref: "registry.invalid/many", Pin: many.Parts[1].Digest},
			{Ref: "saved:2"},
			{Ref: "saved:2", Policy: image.Never},
			{Ref: "registry.invalid/twin:2"},
		} {
			var last image.Progress
			got := expect.Value(pullOne(ctx, images, want, func(p image.Progress) { last = p }))(t)
			expect.Equal(t, expect.Value(images.Get(ctx, want.Ref, got.Digest, want.Platform))(t).ChainID, got.ChainID, "get of %+v", want)
			expect.Equal(t, last.Done, last.Total, "bytes at the end of %+v", want)
		}
		name := expect.Value(image.Name("registry.invalid/many", many.Digest))(t)
		expect.Equal(t, expect.Value(images.Size(ctx, name))(t), sizeOf(many), "bytes for two platforms")
		fails(t, expect.ErrorOf(pullOne(ctx, images, image.Want{Ref: "registry.invalid/absent:1"}, nil)), fault.Unreachable, "", "what is not preloaded")
		never := image.Want{Ref: "registry.invalid/absent:1", Pin: digest.FromString("absent"), Policy: image.Never}
		fails(t, expect.ErrorOf(pullOne(ctx, images, never, nil)), fault.NotFound, "", "what is not preloaded, and not to be pulled")

		// An archive that came later is seen.
		late := archiveOf(t, ociimage.Layout, map[string]*ociimage.Artifact{"registry.invalid/absent:1": build(t, "", "late")})
		expect.Check(t, os.WriteFile(filepath.Join(dir, "late.tar"), expect.Value(ociimage.Gzip(late))(t), 0o600))
		pull(t, images, image.Want{Ref: "registry.invalid/absent:1"})
		archives, problems := image.CheckPreload(dir)
		if archives != 5 || len(problems) != 2 || !strings.Contains(problems[0].Error(), "broken.tar") || !strings.Contains(problems[1].Error(), "cut.tgz") {
			t.Errorf("check finds %d, %v", archives, problems)
		}
	})
}

// A pipe would never end.
func TestOnlyFilesAreReadAsArchives(t *testing.T) {
	dir := t.TempDir()
	expect.Check(t, os.Mkdir(filepath.Join(dir, "dir.tar"), 0o700))
	path := filepath.Join(dir, "pipe.tar")
	expect.Check(t, unix.Mkfifo(path, 0o600))
	pipe := expect.Value(os.OpenFile(path, os.O_RDWR, 0))(t)
	defer pipe.Close()
	expect.Value(pipe.WriteString(strings.Repeat("x", 512)))(t) // so that a reader fails rather than waits
	_, problems := image.CheckPreload(dir)
	for n, path := range []string{"dir.tar", "pipe.tar"} {
		expect.ErrorWith(t, problems[n], path+": not a regular file", "problem %d", n)
	}
}

func TestWhatAnArchiveLacksComesFromTheRegistry(t *testing.T) {
	_, client, w := fresh(t)
	app := build(t, "", "app")
	ref := w.push(t, "app:1", app)
	data := archiveOf(t, ociimage.Layout, map[string]*ociimage.Artifact{ref: app})
	// The layer in the archive has another content.
	for d, blob := range app.Blobs {
		if bytes.HasPrefix(blob, []byte("\x1f\x8b")) {
			at := bytes.Index(data, blob)
			data[at+len(blob)-1] ^= 1
			t.Logf("damaged %s", d)
		}
	}
	images, _ := preloading(t, client, map[string][]byte{"app.tar": data}, w.plain())
	w.asked("")
	pull(t, images, image.Want{Ref: ref})
	if asked := w.asked(""); len(asked) != 1 || !strings.Contains(asked[0], "/blobs/") {
		t.Errorf("the registry was asked for %v", asked)
	}
}

func TestHostileArchivesAreRefused(t *testing.T) {
	good := archiveOf(t, ociimage.Layout, map[string]*ociimage.Artifact{"a.invalid/a:1": build(t, "", "a")})
	index := ociimage.Entry{Name: "index.json", Data: []byte(`{"manifests":[]}`)}
	long := func(name string) []byte {
		return expect.Value(ociimage.Tar([]ociimage.Entry{index, {Name: name}}))(t)
	}
	var many []ociimage.Entry
	for range 1<<14 + 1 {
		many = append(many, ociimage.Entry{Name: "d/", Type: '5'})
	}
	for name, test := range map[string]struct {
		entries []ociimage.Entry
		data    []byte
		want    string
	}{
		"upwards":               {entries: []ociimage.Entry{index, {Name: "../blobs"}}, want: "not a valid name"},
		"absolute":              {entries: []ociimage.Entry{index, {Name: "/etc/passwd"}}, want: "not a valid name"},
		"a link that leads out": {entries: []ociimage.Entry{index, {Name: "blobs/x", Type: '2', Link: "../../etc/passwd"}}, want: "out of it"},
		"a hard link":           {entries: []ociimage.Entry{index, {Name: "x", Type: '1', Link: "/etc/passwd"}}, want: "out of it"},
		"a device":              {entries: []ociimage.Entry{index, {Name: "null", Type: '3'}}, want: "not a file or a directory"},
		"a pipe":                {entries: []ociimage.Entry{index, {Name: "pipe", Type: '6'}}, want: "not a file or a directory"},
		"twice":                 {entries: []ociimage.Entry{index, index}, want: `duplicate "index.json"`},
		"neither form":          {entries: []ociimage.Entry{{Name: "x"}}, want: "neither an OCI layout"},
		"no JSON":               {entries: []ociimage.Entry{{Name: "index.json", Data: []byte("[")}}, want: `cannot read "index.json"`},
		"a big index":           {entries: []ociimage.Entry{{Name: "index.json", Data: make([]byte, 5<<20)}}, want: "more than"},
		"a layer that is missing": {entries: []ociimage.Entry{
			{Name: "manifest.json", Data: []byte(`[{"Config":"c.json","Layers":["l.tar"]}]`)},
			{Name: "c.json", Data: []byte(`{"rootfs":{"diff_ids":["sha256:x"]}}`)},
		}, want: "is missing"},
		"layers that are not told of": {entries: []ociimage.Entry{
			{Name: "manifest.json", Data: []byte(`[{"Config":"c.json","Layers":["l.tar"]}]`)}, {Name: "c.json", Data: []byte(`{}`)},
		}, want: "0 layers, not 1"},
		"a long name":  {data: long(strings.Repeat("n", 1000)), want: "not a valid name"},
		"many entries": {entries: append(many, index), want: "more than 16384 entries"},
		"without the image": {entries: []ociimage.Entry{{Name: "index.json", Data: []byte(`{"manifests":[{
			"mediaType":"application/vnd.oci.image.manifest.v1+json","size":1,
			"digest":"sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"}]}`)}}, want: "is missing"},
		"cut": {data: good[:len(good)-1024-511], want: "cannot read image archive"},
	} {
		t.Run(name, func(t *testing.T) {
			data := test.data
			if data == nil {
				data = archiveOf(t, func(map[string]*ociimage.Artifact) ([]byte, error) { return ociimage.Tar(test.entries) }, nil)
			}
			dir := t.TempDir()
			expect.Check(t, os.WriteFile(filepath.Join(dir, "a.tar"), data, 0o600))
			_, problems := image.CheckPreload(dir)
			if len(problems) != 1 || !strings.Contains(problems[0].Error(), test.want) || !strings.Contains(problems[0].Error(), "a.tar") {
				t.Errorf("problems are %v, want %q", problems, test.want)
			}
		})
	}
	if n, problems := image.CheckPreload("/nowhere"); n != 0 || problems != nil {
		t.Errorf("no directory: %d, %v", n, problems)
	}
}
