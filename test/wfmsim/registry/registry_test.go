package registry_test

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"testing"

	"github.com/opencontainers/go-digest"

	"github.com/margolite/margolite/test/expect"
	"github.com/margolite/margolite/test/ociimage"
	"github.com/margolite/margolite/test/wfmsim/registry"
)

func start(t *testing.T, o registry.Options) *registry.Registry {
	t.Helper()
	r := expect.Value(registry.New(o))(t)
	expect.Check(t, r.Start(""))
	t.Cleanup(func() { _ = r.Close() })
	return r
}

// get asks for a path of the registry; the header is given in pairs.
func get(t *testing.T, url string, header ...string) (int, http.Header, []byte, error) {
	t.Helper()
	request := expect.Value(http.NewRequest(http.MethodGet, url, nil))(t)
	for i := 0; i < len(header); i += 2 {
		request.Header.Set(header[i], header[i+1])
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, nil, nil, err
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	return answer.StatusCode, answer.Header, body, err
}

func image(t *testing.T, size int) (artifact *ociimage.Artifact, layer digest.Digest, content []byte) {
	t.Helper()
	artifact = expect.Value(ociimage.Build(ociimage.Image{Layers: []ociimage.Layer{ociimage.Padding(size)}}))(t)
	for d, blob := range artifact.Blobs {
		if len(blob) > len(content) {
			layer, content = d, blob
		}
	}
	return artifact, layer, content
}

func TestContentSurvivesARestart(t *testing.T) {
	dir := t.TempDir()
	first := start(t, registry.Options{Dir: dir})
	older, _, content := image(t, 100_000)
	newer, _, _ := image(t, 50_000)
	index := expect.Value(ociimage.Index(older))(t)
	to := ociimage.Registry{URL: first.URL()}
	for _, push := range []struct {
		tag string
		a   *ociimage.Artifact
	}{{"moved", older}, {"moved", newer}, {"index", index}} {
		expect.Check(t, to.Push(context.Background(), "x", push.tag, push.a))
	}
	expect.Check(t, first.Close())

	second := expect.Value(registry.New(registry.Options{Dir: dir}))(t)
	defer second.Close()
	expect.Check(t, second.Start(first.Address()))
	for reference, want := range map[string]*ociimage.Artifact{
		"moved": newer, "index": index, older.Digest.String(): older, newer.Digest.String(): newer,
	} {
		_, _, body, err := get(t, second.URL()+"/v2/x/manifests/"+reference)
		expect.True(t, err == nil && bytes.Equal(body, want.Manifest), "%s: got %s, %v", reference, body, err)
	}
	// The rest of a blob can be had alone, as a download wants it that goes on.
	status, _, body, err := get(t, second.URL()+"/v2/x/blobs/"+digest.FromBytes(content).String(), "Range", "bytes=5000-")
	if err != nil || status != http.StatusPartialContent || !bytes.Equal(body, content[5000:]) {
		t.Errorf("blob: got %d, %d bytes, %v", status, len(body), err)
	}
}
