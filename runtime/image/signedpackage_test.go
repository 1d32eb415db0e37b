package image_test

import (
	"cmp"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/margolite/margolite/runtime/fault"
	"github.com/margolite/margolite/runtime/image"
	"github.com/margolite/margolite/runtime/notation"
	"github.com/margolite/margolite/test/cosigned"
	"github.com/margolite/margolite/test/expect"
	"github.com/margolite/margolite/test/notarized"
	"github.com/margolite/margolite/test/ociimage"
)

// packageOf is the package of a component, as it lies in a registry.
func packageOf(t testing.TB, file string) *ociimage.Artifact {
	t.Helper()
	return expect.Value(ociimage.Component{Name: "app", Version: "1.0.0", Files: ociimage.Files{"compose.yaml": []byte(file)}}.Build())(t)
}

// refer puts what refers to a package into its repository, and lists it there for a registry that keeps no list.
func (w *watched) refer(t testing.TB, repository string, to *ociimage.Artifact, all ...*ociimage.Artifact) {
	t.Helper()
	for _, a := range all {
		w.push(t, repository+":"+a.Digest.String(), a)
	}
	w.push(t, repository+":"+strings.TrimSuffix(cosigned.Tag(to.Digest), ".sig"), referrers(t, all...))
}

// A package that has to be signed comes if a key of this device has signed it; else nothing of it comes. Where no key counts
// for it nobody is asked for its signature, and trouble is not taken for a missing one. In which forms and places signatures
// are found, TestImagesAreSignedByAKeyOfTheDevice shows.
func TestPackagesAreSignedByAKeyOfTheDevice(t *testing.T) {
	own, stranger := newSigner(t, "p256"), newSigner(t, "p256")
	w := watchReferrers(t)
	images := open(t, nil, w.plain())
	p := packageOf(t, "services: {a: {image: app}}")
	w.push(t, "app:1.0.0", p)
	bundle := referrer(t, p, cosigned.Statement(p.Digest), own)
	w.push(t, "app:"+bundle.Digest.String(), bundle)
	w.fetches(t, images, "app", p, &image.Trust{Keys: everywhere(own)}, "", "")
	w.fetches(t, images, "app", p, &image.Trust{Keys: everywhere(stranger)}, "no trusted key made it", fault.Unsigned)
	w.set(answerAt(".sig", http.StatusServiceUnavailable))
	w.fetches(t, images, "app", p, &image.Trust{Keys: image.Keyring{"elsewhere.example": {own.file}}}, "no key is configured for it", fault.Unsigned)
	w.fetches(t, images, "app", p, &image.Trust{Keys: everywhere(own)}, "whether it is signed", fault.Unreachable)
}

// fetches fetches a package that has to be signed, and fails the test unless it comes if why is empty, and else is refused
// as that kind of error and nothing of it comes.
func (w *watched) fetches(t *testing.T, images *image.Images, repository string, p *ociimage.Artifact, trust *image.Trust, why string, as fault.Code) {
	t.Helper()
	w.asked("")
	data, origin, err := images.Artifact(t.Context(), w.host+"/"+repository, "1.0.0", image.ArtifactLimits{Size: 1 << 20, Trust: trust}, nil)
	if why == "" {
		if err != nil || origin != p.Digest || p.Blobs[digest.FromBytes(data)] == nil {
			t.Errorf("%d bytes from %s, %v", len(data), origin, err)
		}
		return
	}
	expect.True(t, data == nil && kind(err) == as && strings.Contains(err.Error(), why), "%d bytes, %v; want %q", len(data), err, why)
	asked := strings.Join(w.asked("GET"), "\n")
	for d := range p.Blobs {
		expect.Equal(t, strings.Contains(asked, d.String()), false, "asked for %s of the package: %s", d, asked)
	}
}

// notary is an authority that a trust policy may trust, and one that signs code for it.
type notary struct{ root, signer *notarized.Identity }

func newNotary(t testing.TB) (n notary) {
	t.Helper()
	n.root = expect.Value(notarized.Issue(nil, expect.Value(notarized.NewKey("p256"))(t), "root", nil))(t)
	n.signer = expect.Value(notarized.Issue(n.root, expect.Value(notarized.NewKey("p256"))(t), "signer", nil))(t)
	return n
}

func (n notary) refer(t testing.TB, form string, p *ociimage.Artifact) *ociimage.Artifact {
	t.Helper()
	return expect.Value(notarized.Referrer(p, form, expect.Value(n.signer.Sign(form, p, nil))(t)))(t)
}

const strict = `{"version":"1.0","trustPolicies":[{"name":"site","registryScopes":["*"],"signatureVerification":{"level":"strict"},"trustStores":["ca:site"],"trustedIdentities":["*"]}]}`

// A package that has to be signed comes if Notation would verify it, by what refers to it; else nothing of it comes, and
// the reason says why. Keys and a trust policy may both be there: one signature suffices. Which signatures count,
// runtime/notation shows.
func TestPackagesAreSignedAsTheTrustPolicyWantsIt(t *testing.T) {
	own, stranger := newNotary(t), newNotary(t)
	dir, key := t.TempDir(), newSigner(t, "p256")
	expect.Check(t, own.root.Trust(dir, strict))
	for kindOfRegistry, start := range map[string]func(testing.TB) *watched{"old registry": watch, "registry with referrers": watchReferrers} {
		w := start(t)
		images := open(t, nil, w.plain())
		for _, form := range []string{notation.JWSType, notation.COSEType} {
			for name, c := range map[string]struct {
				by   []notary
				key  bool          // it has a signature by the key, too
				now  time.Duration // from now
				why  string        // empty: it is signed
				kind fault.Code    // empty: unsigned
			}{
				"right":                   {by: []notary{own}},
				"right beside wrong":      {by: []notary{stranger, own}},
				"by the key instead":      {by: []notary{stranger}, key: true},
				"missing":                 {why: "there is no signature of sha256:"},
				"by somebody else":        {by: []notary{stranger}, why: "does not lead to ca:site"},
				"before the clock is set": {by: []notary{own}, now: -400 * 24 * time.Hour, why: "not valid yet", kind: fault.Internal},
			} {
				t.Run(kindOfRegistry+"/"+form+"/"+name, func(t *testing.T) {
					repository := strings.ReplaceAll(name, " ", "-") + "/" + strings.TrimPrefix(form, "application/")[:4]
					p := packageOf(t, "services: {a: {image: "+repository+"}}")
					w.push(t, repository+":1.0.0", p)
					var signatures []*ociimage.Artifact
					for _, n := range c.by {
						signatures = append(signatures, n.refer(t, form, p))
					}
					if c.key {
						signatures = append(signatures, referrer(t, p, cosigned.Statement(p.Digest), key))
					}
					w.refer(t, repository, p, signatures...)
					trust := &image.Trust{Keys: everywhere(key), Notation: dir, Now: func() time.Time { return time.Now().Add(c.now) }}
					w.fetches(t, images, repository, p, trust, c.why, cmp.Or(c.kind, fault.Unsigned))
				})
			}
		}
	}
}
