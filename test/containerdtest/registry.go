package containerdtest

import (
	"archive/tar"
	"bytes"
	"crypto/rand"
	"io"
	"log"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/opencontainers/go-digest"

	"github.com/margolite/margolite/test/ociimage"
)

// Registry starts an empty registry on the loopback device that speaks plain HTTP, and returns its host:port.
func Registry(t testing.TB) string {
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	t.Cleanup(server.Close)
	return strings.TrimPrefix(server.URL, "http://")
}

// Busybox is an image for this machine with busybox in /bin and its applets beside it; change adjusts the
// configuration, for instance Cmd. It is not reproducible: each call gives an image with another digest.
func Busybox(t testing.TB, change func(*v1.Config)) v1.Image {
	entries, err := ociimage.Busybox(strings.Fields("sh sleep cat echo true false httpd nc wget hostname ls id env touch mkdir kill ping ip test printf trap date ps top head tail grep seq yes chown chmod rm sync dd nslookup")...)
	if err != nil {
		t.Skip(err)
	}
	for _, dir := range []string{"dev", "etc", "proc", "sys", "tmp", "var", "run"} {
		entries = append(entries, ociimage.Entry{Name: dir + "/", Type: tar.TypeDir})
	}
	entries = append(entries,
		ociimage.Entry{Name: "etc/passwd", Data: []byte("root:x:0:0::/:/bin/sh\nnobody:x:65534:65534::/:\n")},
		ociimage.Entry{Name: "etc/group", Data: []byte("root:x:0:\nnogroup:x:65534:\n")},
	)
	return Image(t, change, archive(t, entries...), Blob(t, "etc/unique", 16))
}

// Blob is an uncompressed layer with one file of random bytes, to make an image unique or big.
func Blob(t testing.TB, path string, size int) []byte {
	data := make([]byte, size)
	_, _ = rand.Read(data)
	return archive(t, ociimage.Entry{Name: path, Data: data})
}

func archive(t testing.TB, entries ...ociimage.Entry) []byte {
	data, err := ociimage.Tar(entries)
	check(t, err)
	return data
}

// Image is an OCI image for this machine made of uncompressed tar layers, which it compresses.
func Image(t testing.TB, change func(*v1.Config), layers ...[]byte) v1.Image {
	image := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	for _, data := range layers {
		layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
			return io.NopCloser(bytes.NewReader(data)), nil
		}, tarball.WithMediaType(types.OCILayer))
		check(t, err)
		if image, err = mutate.AppendLayers(image, layer); err != nil {
			t.Fatal(err)
		}
	}
	config, err := image.ConfigFile()
	check(t, err)
	config = config.DeepCopy()
	config.OS, config.Architecture = "linux", runtime.GOARCH
	config.Config.Env = []string{"PATH=/bin"}
	config.Config.Cmd = []string{"sleep", "1000"}
	if change != nil {
		change(&config.Config)
	}
	if image, err = mutate.ConfigFile(image, config); err != nil {
		t.Fatal(err)
	}
	return image
}

// Push puts an image into a registry that speaks plain HTTP as host/repository:tag, and returns the digest of its
// manifest.
func Push(t testing.TB, image v1.Image, reference string) digest.Digest {
	layers, err := image.Layers()
	check(t, err)
	for _, layer := range layers {
		compressed, err := layer.Compressed()
		check(t, err)
		data, err := io.ReadAll(compressed)
		check(t, err)
		PushBlob(t, reference, data)
	}
	config, err := image.RawConfigFile()
	check(t, err)
	PushBlob(t, reference, config)
	manifest, err := image.RawManifest()
	check(t, err)
	return PushManifest(t, reference, string(types.OCIManifestSchema1), manifest)
}

// PushBlob puts a blob into the repository of a reference, whose tag does not matter.
func PushBlob(t testing.TB, reference string, data []byte) digest.Digest {
	to, repository, _ := split(t, reference)
	check(t, to.PushBlob(t.Context(), repository, data))
	return digest.FromBytes(data)
}

// PushManifest puts a manifest or index, as it is, under host/repository:tag.
func PushManifest(t testing.TB, reference, mediaType string, data []byte) digest.Digest {
	to, repository, tag := split(t, reference)
	check(t, to.Push(t.Context(), repository, tag, &ociimage.Artifact{MediaType: mediaType, Manifest: data}))
	return digest.FromBytes(data)
}

func split(t testing.TB, reference string) (to ociimage.Registry, repository, tag string) {
	host, rest, ok := strings.Cut(reference, "/")
	repository, tag, tagged := strings.Cut(rest, ":")
	if !ok || !tagged {
		t.Fatalf("%q is not host/repository:tag", reference)
	}
	return ociimage.Registry{URL: "http://" + host}, repository, tag
}
