package image

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"

	"github.com/containerd/platforms"
	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/margolite/margolite/runtime/containerd"
	"github.com/margolite/margolite/runtime/cosign"
	"github.com/margolite/margolite/runtime/fault"
	"github.com/margolite/margolite/runtime/registry"
	"github.com/margolite/margolite/test/expect"
	"github.com/margolite/margolite/test/ociimage"
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
		expect.Equal(t, expect.Value(Name(ref, d))(t), want+"@"+d.String(), "%s", ref)
	}
	expect.ErrorWith(t, expect.ErrorOf(Name("-", d)), "cannot read image reference", "name")
}

func TestWhatARegistrySaysIsOnOneBoundedLine(t *testing.T) {
	err := fail("x", remote{errors.New("403\nDENIED: \x1b[31mno\r\n" + strings.Repeat("\u00e9", maxRemoteText))})
	text := strings.TrimPrefix(err.Error(), "x: ")
	if !strings.HasPrefix(text, "403 DENIED:  [31mno \u00e9") || !strings.HasSuffix(text, "\u00e9...") || len(text) > maxRemoteText+len("...") {
		t.Errorf("%q", text)
	}
}

func TestErrorsDoNotShowQueries(t *testing.T) {
	err := fail("x", errors.New(`Get "https://a/b?c=secret": dial; https://d?secret https://e`))
	expect.Equal(t, err.Error(), `x: Get "https://a/b": dial; https://d https://e`, "error")
}

// As Docker, podman and skopeo write them.
func TestCredentialsOfTheLongestPrefix(t *testing.T) {
	const file = `{"auths":{
		"host": {"username":"all","password":"x"},
		"host/team-a/private": {"username":"private","password":"x"},
		"host/team-b": {"username":"b","password":"x"},
		"host/empty": {},
		"https://other/v2/": {"username":"other","password":"x"},
		"only/team-a": {"username":"a","password":"x"},
		"https://index.docker.io/v1/": {"username":"hub","password":"x"},
		"https://index.docker.io/v1/access-token": {"username":"access","password":"x"},
		"https://index.docker.io/v1/refresh-token": {"username":"refresh","password":"x"}}}`
	for _, c := range []struct{ host, repository, want string }{
		{"host", "app", "all"},
		{"host", "team-a", "all"},
		{"host", "team-a/private", "private"},
		{"host", "team-a/private/app", "private"},
		{"host", "team-a/private2", "all"},
		{"host", "team-b/app", "b"},
		{"host", "empty/app", "all"},
		{"host", "", "all"},
		{"other", "app", "other"},
		{"only", "team-a/app", "a"},
		{"only", "team-b/app", ""},
		{"registry-1.docker.io", "library/redis", "hub"},
	} {
		for range 20 { // a map has no order
			if user, _, err := parseCredentials([]byte(file), c.host, c.repository); user != c.want || err != nil {
				t.Errorf("%s/%s: %q, %v, want %q", c.host, c.repository, user, err, c.want)
			}
		}
	}
}

func TestCredentialsOfHelpersAreRefused(t *testing.T) {
	for _, file := range []string{`{"credHelpers":{"host":"ecr-login"}}`, `{"auths":{"host":{}},"credsStore":"desktop"}`} {
		if _, _, err := parseCredentials([]byte(file), "host", "app"); codeOf(err) != fault.Refused || !strings.Contains(err.Error(), "put them into auths") {
			t.Errorf("%s: %v", file, err)
		}
	}
}

// Keys count for what the names of images begin with, the longest for the rest of it.
func TestKeysCountForTheImagesOfTheirPrefix(t *testing.T) {
	ring := Keyring{"host": {"site"}, "host/vendor": {"vendor"}, "host/vendor/open": {"site", "vendor"}}
	for repository, want := range map[string]string{
		"host/app": "[site]", "host/vendor": "[vendor]", "host/vendor/app": "[vendor]", "host/vendors/app": "[site]",
		"host/vendor/open/app": "[site vendor]", "host.example/app": "[]",
	} {
		expect.Equal(t, fmt.Sprint(ring.filesFor(repository)), want, "%s", repository)
	}
	ring["*"] = []string{"any"}
	expect.Equal(t, fmt.Sprint(ring.filesFor("elsewhere/app"), ring.filesFor("host/app")), "[any] [site]", "with one for all")
}

func FuzzCredentials(f *testing.F) {
	f.Add([]byte(`{"auths":{"registry.example.com":{"auth":"dTpzZWNyZXQ="}}}`))
	f.Add([]byte(`{"auths":{"https://registry.example.com/v1/":{"username":"u","password":"secret"}}}`))
	f.Add([]byte(`{"auths":{"registry.example.com":{"identitytoken":"secret"}}}`))
	f.Add([]byte(`{"auths":{"registry.example.com":{"auth":"secret"}}}`))
	f.Add([]byte(`secret`))
	f.Fuzz(func(t *testing.T, data []byte) {
		_, _, err := parseCredentials(data, "registry.example.com", "team-a/app")
		expect.True(t, err == nil || !strings.Contains(err.Error(), "secret"), "tells a secret: %v", err)
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
	wanted := target{MatchComparer: platforms.Only(v1.Platform{OS: "linux", Architecture: "amd64"}), name: "a PC"}
	f.Fuzz(func(t *testing.T, data []byte) {
		_, _ = registry.FormOf(data)
		_, _, _ = configOf(data, wanted)
		if d, err := choose(data, wanted); err == nil && d.Platform != nil && d.Platform.OS == "unknown" {
			t.Error("chose what is for no platform")
		}
		if _, layers, err := partsOf(data); err == nil && len(layers) > maxLayers {
			t.Errorf("accepted %d layers", len(layers))
		}
	})
}

func FuzzSignatures(f *testing.F) {
	f.Add([]byte(`{"layers":[{"mediaType":"application/vnd.dev.cosign.simplesigning.v1+json","digest":"sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855","size":0,"annotations":{"dev.cosignproject.cosign/signature":"eA=="},"urls":["https://x"]}]}`))
	f.Add([]byte(`{"artifactType":"application/vnd.dev.sigstore.bundle.v0.3+json","layers":[{"mediaType":"application/vnd.dev.sigstore.bundle.v0.3+json","digest":"sha256:","size":-1}]}`))
	f.Add([]byte(`{"layers":[` + strings.Repeat(`{"mediaType":"application/vnd.dev.sigstore.bundle.v0.3+json","digest":"sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},`, 64) + `{}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		layers, err := signaturesIn(data, map[string]verifier{cosign.SimpleType: cosign.Keys{}, cosign.BundleType: cosign.Keys{}})
		if err != nil {
			return
		}
		expect.True(t, len(layers) <= maxSignatures, "accepted %d signatures", len(layers))
		for _, layer := range layers {
			expect.True(t, layer.Digest.Validate() == nil && layer.URLs == nil && layer.Data == nil, "accepted %+v", layer)
			_, _ = cosign.Keys{}.Verify(layer, data, "")
		}
	})
}

func FuzzArchive(f *testing.F) {
	image := expect.Value(ociimage.Build(ociimage.Image{Layers: []ociimage.Layer{{Entries: []ociimage.Entry{{Name: "f", Data: []byte("x")}}}}}))(f)
	for _, write := range []func(map[string]*ociimage.Artifact) ([]byte, error){ociimage.Layout, ociimage.Saved} {
		f.Add(expect.Value(write(map[string]*ociimage.Artifact{"a.invalid/a:1": image, "b:2": image}))(f))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		a, err := parseArchive(func() (io.ReadSeekCloser, error) { return tarFile{bytes.NewReader(data)}, nil })
		if err != nil {
			return
		}
		for d, at := range a.blobs {
			if d.Validate() != nil || at.offset < 0 || at.size < 0 || at.made == nil && at.offset+at.size > int64(len(data)) {
				t.Errorf("%s lies at %d, %d bytes of %d", d, at.offset, at.size, len(data))
			}
		}
		for name := range a.images {
			if d := digest.Digest(name); d.Validate() == nil {
				name = "a.invalid/a@" + name
			}
			named := expect.Value(parse(name))(t)
			if found, err := a.find(named); found.Digest.Validate() != nil {
				t.Errorf("%s is %v, %v", name, found, err)
			}
		}
	})
}

// tarFile is an archive in memory.
type tarFile struct{ *bytes.Reader }

func (tarFile) Close() error { return nil }

func TestErrorsOfThisDeviceAndOfRegistriesAreToldApart(t *testing.T) {
	for err, want := range map[error]fault.Code{
		errors.New("rpc error: code = Unknown desc = failed to copy: write /var/lib/x: no space left on device"): fault.NoSpace,
		errors.New("write /var/lib/x: disk quota exceeded"):                                                      fault.NoSpace,
		errors.New("write /var/lib/x: input/output error"):                                                       fault.Internal,
		fmt.Errorf("cannot unpack: %w", containerd.ErrMemory):                                                    fault.Unsupported,
		fmt.Errorf("cannot read layer: %w", context.DeadlineExceeded):                                            fault.Timeout,
		remote{&net.OpError{Op: "dial", Err: context.DeadlineExceeded}}:                                          fault.Unreachable,
	} {
		expect.Equal(t, codeOf(err), want, "%v", err)
	}
}
