package image_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"

	"github.com/margolite/margolite/runtime/image"
	"github.com/margolite/margolite/test/cosigned"
	"github.com/margolite/margolite/test/ociimage"
)

// packageOf is the package of a component, as it lies in a registry.
func packageOf(t testing.TB, file string) *ociimage.Artifact {
	t.Helper()
	a, err := ociimage.Component{Name: "app", Version: "1.0.0", Files: ociimage.Files{"compose.yaml": []byte(file)}}.Build()
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// refer puts what refers to a package into its repository, and lists it there for a registry that keeps no list.
func (w *watched) refer(t testing.TB, repository string, to *ociimage.Artifact, all ...*ociimage.Artifact) {
	t.Helper()
	for _, a := range all {
		w.push(t, repository+":"+a.Digest.String(), a)
	}
	w.push(t, repository+":"+strings.TrimSuffix(cosigned.Tag(to.Digest), ".sig"), referrers(t, all...))
}

// A package that has to be signed comes if a key of this device has signed it, in the forms and at the places where
// cosign puts signatures; else nothing of it comes.
func TestPackagesAreSignedByAKeyOfTheDevice(t *testing.T) {
	own, stranger := newSigner(t, "p256"), newSigner(t, "p256")
	for kindOfRegistry, start := range map[string]func(testing.TB) *watched{"old registry": watch, "registry with referrers": watchReferrers} {
		w := start(t)
		images := open(t, nil, w.plain())
		for name, c := range map[string]struct {
			sign func(repository string, p *ociimage.Artifact)
			why  string // empty: it is signed
		}{
			"simple signing": {func(repository string, p *ociimage.Artifact) {
				w.push(t, repository+":"+cosigned.Tag(p.Digest), simple(t, p.Digest, own))
			}, ""},
			"a bundle": {func(repository string, p *ociimage.Artifact) {
				w.refer(t, repository, p, referrer(t, p, cosigned.Statement(p.Digest), own))
			}, ""},
			"nothing": {func(string, *ociimage.Artifact) {}, "there is no signature of sha256:"},
			"another key": {func(repository string, p *ociimage.Artifact) {
				w.push(t, repository+":"+cosigned.Tag(p.Digest), simple(t, p.Digest, stranger))
			}, "no trusted key made it"},
			"a bundle by another key": {func(repository string, p *ociimage.Artifact) {
				w.refer(t, repository, p, referrer(t, p, cosigned.Statement(p.Digest), stranger))
			}, "no trusted key made it"},
			"another package": {func(repository string, p *ociimage.Artifact) {
				w.push(t, repository+":"+cosigned.Tag(p.Digest), simple(t, digest.FromString("another"), own))
			}, "for another image"},
		} {
			t.Run(kindOfRegistry+"/"+name, func(t *testing.T) {
				repository := strings.ReplaceAll(name, " ", "-")
				p := packageOf(t, "services: {a: {image: "+repository+"}}")
				w.push(t, repository+":1.0.0", p)
				c.sign(repository, p)
				w.fetches(t, images, repository, p, &image.Trust{Keys: everywhere(own)}, c.why)
			})
		}
	}
}

// fetches fetches a package that has to be signed, and fails the test unless it comes if why is empty, and else nothing
// of it does.
func (w *watched) fetches(t *testing.T, images *image.Images, repository string, p *ociimage.Artifact, trust *image.Trust, why string) {
	t.Helper()
	w.asked("")
	data, origin, err := images.Artifact(t.Context(), w.host+"/"+repository, "1.0.0", image.ArtifactLimits{Size: 1 << 20, Trust: trust}, nil)
	if why == "" {
		if err != nil || origin != p.Digest || p.Blobs[digest.FromBytes(data)] == nil {
			t.Errorf("%d bytes from %s, %v", len(data), origin, err)
		}
		return
	}
	if data != nil || kind(err) != image.Unsigned || !strings.Contains(err.Error(), why) {
		t.Errorf("%d bytes, %v; want %q", len(data), err, why)
	}
	asked := strings.Join(w.asked("GET"), "\n")
	for d := range p.Blobs {
		if strings.Contains(asked, d.String()) {
			t.Errorf("asked for %s of the package: %s", d, asked)
		}
	}
}

// Where no key counts for a package nobody is asked for its signature, and trouble is not taken for a missing one.
func TestPackagesWithoutAKeyAreUnsigned(t *testing.T) {
	w := watch(t)
	own := newSigner(t, "p256")
	p := packageOf(t, "services: {a: {image: app}}")
	w.push(t, "app:1.0.0", p)
	images := open(t, nil, w.plain())
	w.fetches(t, images, "app", p, &image.Trust{Keys: image.Keyring{"elsewhere.example": {own.file}}}, "no key is configured for it")
	w.set(func(rw http.ResponseWriter, r *http.Request) bool {
		if !strings.HasSuffix(r.URL.Path, ".sig") {
			return false
		}
		rw.WriteHeader(http.StatusServiceUnavailable)
		return true
	})
	_, _, err := images.Artifact(t.Context(), w.host+"/app", "1.0.0", image.ArtifactLimits{Size: 1 << 20, Trust: &image.Trust{Keys: everywhere(own)}}, nil)
	if kind(err) != image.Unreachable || !strings.Contains(err.Error(), "whether it is signed") {
		t.Errorf("in trouble: %v", err)
	}
}
