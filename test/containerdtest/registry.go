package containerdtest

import (
	"archive/tar"
	"crypto/rand"
	"io"
	"log"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/margolite/margolite/test/expect"
	"github.com/margolite/margolite/test/ociimage"
)

// Registry starts an empty registry on the loopback device that speaks plain HTTP, and returns its host:port.
func Registry(t testing.TB) string {
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	t.Cleanup(server.Close)
	return strings.TrimPrefix(server.URL, "http://")
}

// Busybox is an image for this machine with busybox in /bin and its applets beside it, and more uncompressed tar layers;
// change adjusts the configuration, for instance Cmd. It is not reproducible: each call gives an image with another digest.
func Busybox(t testing.TB, change func(*v1.ImageConfig), more ...[]byte) *ociimage.Artifact {
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
	return Image(t, change, append([][]byte{archive(t, entries...), Blob(t, "etc/unique", 16)}, more...)...)
}

// Blob is an uncompressed layer with one file of random bytes, to make an image unique or big.
func Blob(t testing.TB, path string, size int) []byte {
	data := make([]byte, size)
	_, _ = rand.Read(data)
	return archive(t, ociimage.Entry{Name: path, Data: data})
}

func archive(t testing.TB, entries ...ociimage.Entry) []byte {
	return expect.Value(ociimage.Tar(entries))(t)
}

// Image is an OCI image for this machine made of uncompressed tar layers, which it compresses.
func Image(t testing.TB, change func(*v1.ImageConfig), layers ...[]byte) *ociimage.Artifact {
	described := ociimage.Image{Config: v1.ImageConfig{Env: []string{"PATH=/bin"}, Cmd: []string{"sleep", "1000"}}}
	for _, data := range layers {
		described.Layers = append(described.Layers, ociimage.Layer{Archive: data})
	}
	if change != nil {
		change(&described.Config)
	}
	return expect.Value(ociimage.Build(described))(t)
}

// Push puts an image into a registry that speaks plain HTTP as host/repository:tag, and returns the digest of its
// manifest.
func Push(t testing.TB, image *ociimage.Artifact, reference string) digest.Digest {
	host, rest, ok := strings.Cut(reference, "/")
	repository, tag, tagged := strings.Cut(rest, ":")
	expect.Require(t, ok && tagged, "%q is not host/repository:tag", reference)
	check(t, (ociimage.Registry{URL: "http://" + host}).Push(t.Context(), repository, tag, image))
	return image.Digest
}
