package image

import (
	"errors"
	"strings"
	"testing"

	"github.com/containerd/platforms"
	"github.com/opencontainers/go-digest"
)

func TestNameIsTheRepositoryAndTheDigest(t *testing.T) {
	d := digest.FromString("")
	for ref, want := range map[string]string{
		"busybox":                               "docker.io/library/busybox",
		"busybox:1.36":                          "docker.io/library/busybox",
		"registry.example.com:5000/a/b:c":       "registry.example.com:5000/a/b",
		"registry.example.com/a@" + string(d):   "registry.example.com/a",
		"registry.example.com/a:b@" + string(d): "registry.example.com/a",
	} {
		if got, err := Name(ref, d); err != nil || got != want+"@"+d.String() {
			t.Errorf("%s: %s, %v", ref, got, err)
		}
	}
	if _, err := Name("-", d); err == nil {
		t.Error("accepted")
	}
}

func TestErrorsDoNotShowQueries(t *testing.T) {
	err := fail("x", errors.New(`Get "https://a/b?c=secret": dial; https://d?secret https://e`))
	if got, want := err.Error(), `cannot get x: Get "https://a/b": dial; https://d https://e`; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func FuzzCredentials(f *testing.F) {
	f.Add([]byte(`{"auths":{"registry.example.com":{"auth":"dTpzZWNyZXQ="}}}`))
	f.Add([]byte(`{"auths":{"https://registry.example.com/v1/":{"username":"u","password":"secret"}}}`))
	f.Add([]byte(`{"auths":{"registry.example.com":{"identitytoken":"secret"}}}`))
	f.Add([]byte(`{"auths":{"registry.example.com":{"auth":"secret"}}}`))
	f.Add([]byte(`secret`))
	f.Fuzz(func(t *testing.T, data []byte) {
		_, _, err := parseCredentials(data, "registry.example.com")
		if err != nil && strings.Contains(err.Error(), "secret") {
			t.Errorf("tells a secret: %v", err)
		}
	})
}

func FuzzComponent(f *testing.F) {
	f.Add([]byte(`{"schemaVersion":2,"artifactType":"` + componentType + `","layers":[{"mediaType":"` + componentLayer + `","digest":"sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855","size":0}]}`))
	f.Add([]byte(`{"layers":[{}]}`))
	f.Add([]byte(`null`))
	f.Fuzz(func(t *testing.T, data []byte) {
		layer, err := componentOf(data)
		if err != nil {
			return
		}
		if err := layer.Digest.Validate(); err != nil || layer.MediaType != componentLayer || layer.URLs != nil || layer.Data != nil {
			t.Errorf("accepted %+v", layer)
		}
	})
}

func FuzzManifest(f *testing.F) {
	f.Add([]byte(`{"mediaType":"application/vnd.oci.image.index.v1+json","manifests":[{"platform":{"os":"linux","architecture":"amd64"}},{}]}`))
	f.Add([]byte(`{"config":{"mediaType":"application/vnd.oci.image.config.v1+json"},"layers":[{"mediaType":"application/vnd.oci.image.layer.v1.tar+gzip"}]}`))
	f.Add([]byte(`{"os":"linux","architecture":"arm","variant":"v7"}`))
	f.Add([]byte(`[]`))
	platform := platforms.All
	f.Fuzz(func(t *testing.T, data []byte) {
		_, _ = formOf(data)
		_ = checkPlatform(data, platform)
		if d, err := choose(data, platform); err == nil && d.Platform == nil {
			t.Error("chose what is for no platform")
		}
		if _, layers, err := partsOf(data); err == nil && len(layers) > maxLayers {
			t.Errorf("accepted %d layers", len(layers))
		}
	})
}
