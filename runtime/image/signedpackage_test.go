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

// A package that has to be signed comes if a key of this device has signed it; else nothing of it comes. In which forms and
// places signatures are found, TestImagesAreSignedByAKeyOfTheDevice shows.
func TestPackagesAreSignedByAKeyOfTheDevice(t *testing.T) {
	own, stranger := newSigner(t, "p256"), newSigner(t, "p256")
	w := watchReferrers(t)
	images := open(t, nil, w.plain())
	for repository, c := range map[string]struct {
		signer signer
		why    string // empty: it is signed
	}{"signed": {own, ""}, "another-key": {stranger, "no trusted key made it"}} {
		p := packageOf(t, "services: {a: {image: "+repository+"}}")
		w.push(t, repository+":1.0.0", p)
		bundle := referrer(t, p, cosigned.Statement(p.Digest), c.signer)
		w.push(t, repository+":"+bundle.Digest.String(), bundle)
		w.fetches(t, images, repository, p, &image.Trust{Keys: everywhere(own)}, c.why)
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
	w.set(answerAt(".sig", http.StatusServiceUnavailable))
	_, _, err := images.Artifact(t.Context(), w.host+"/app", "1.0.0", image.ArtifactLimits{Size: 1 << 20, Trust: &image.Trust{Keys: everywhere(own)}}, nil)
	if kind(err) != image.Unreachable || !strings.Contains(err.Error(), "whether it is signed") {
		t.Errorf("in trouble: %v", err)
	}
}
