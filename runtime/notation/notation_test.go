package notation_test

import (
	"bytes"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/notaryproject/notation-core-go/signature"
	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/margolite/margolite/runtime/notation"
	"github.com/margolite/margolite/test/expect"
	"github.com/margolite/margolite/test/notarized"
	"github.com/margolite/margolite/test/ociimage"
)

const repository = "registry.example/vendor/app"

// strictly is a trust policy for everything; more changes its verification.
func strictly(more string) string {
	return policyOf(`"*"`, `{"level":"strict"`+more+`}`, `"*"`)
}

func policyOf(scopes, verification, identities string) string {
	return fmt.Sprintf(`{"version":"1.0","trustPolicies":[{"name":"site","registryScopes":[%s],"signatureVerification":%s,"trustStores":["ca:site"],"trustedIdentities":[%s]}]}`, scopes, verification, identities)
}

func issue(t testing.TB, by *notarized.Identity, kind, name string, change func(*x509.Certificate)) *notarized.Identity {
	t.Helper()
	key := expect.Value(notarized.NewKey(kind))(t)
	return expect.Value(notarized.Issue(by, key, name, change))(t)
}

func sign(t testing.TB, by *notarized.Identity, mediaType string, of *ociimage.Artifact, change func(*signature.SignRequest)) []byte {
	t.Helper()
	return expect.Value(by.Sign(mediaType, of, change))(t)
}

// configure writes a configuration that trusts a root.
func configure(t testing.TB, root *notarized.Identity, policy string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	check(t, root.Trust(dir, policy))
	return dir
}

func write(t testing.TB, data []byte, path ...string) {
	t.Helper()
	file := filepath.Join(path...)
	check(t, errors.Join(os.MkdirAll(filepath.Dir(file), 0o700), os.WriteFile(file, data, 0o600)))
}

func artifact(name string) *ociimage.Artifact {
	manifest := []byte(name)
	return &ociimage.Artifact{MediaType: "application/vnd.oci.image.manifest.v1+json", Manifest: manifest, Digest: digest.FromBytes(manifest)}
}

// verify verifies a signature at a time from now, and returns what was logged.
func verify(t testing.TB, dir, mediaType string, envelope []byte, of *ociimage.Artifact, later time.Duration) (signer, logged string, err error) {
	t.Helper()
	var log bytes.Buffer
	v, err := notation.Open(dir, repository, time.Now().Add(later), slog.New(slog.NewTextHandler(&log, nil)))
	if err != nil || v == nil {
		t.Fatal(v, err)
	}
	signer, err = v.Verify(v1.Descriptor{MediaType: mediaType}, envelope, of.Digest)
	expect.True(t, (signer == "") == (err != nil), "signed by %q, %v", signer, err)
	return signer, log.String(), err
}

var forms = []string{notation.JWSType, notation.COSEType}

func TestSignaturesByAnAuthorityOfTheSiteCount(t *testing.T) {
	app := artifact("app")
	for _, kind := range []string{"p256", "p384", "p521", "rsa2048", "rsa3072", "rsa4096"} {
		root := issue(t, nil, "p256", "root", nil)
		between := issue(t, root, "p384", "between", func(c *x509.Certificate) {
			c.IsCA, c.KeyUsage = true, x509.KeyUsageCertSign
		})
		signer := issue(t, between, kind, "signer", nil)
		dir := configure(t, root, strictly(""))
		for _, form := range forms {
			by, logged, err := verify(t, dir, form, sign(t, signer, form, app, nil), app, 0)
			if err != nil || by != signer.Chain[0].Subject.String() || logged != "" {
				t.Errorf("%s, %s: by %q, %v, logged %s", form, kind, by, err, logged)
			}
		}
	}

	alone := issue(t, nil, "p256", "alone", func(c *x509.Certificate) { // as notation cert generate-test makes it
		c.IsCA, c.KeyUsage, c.ExtKeyUsage = false, x509.KeyUsageDigitalSignature, []x509.ExtKeyUsage{x509.ExtKeyUsageCodeSigning}
	})
	if _, _, err := verify(t, configure(t, alone, strictly("")), notation.JWSType, sign(t, alone, notation.JWSType, app, nil), app, 0); err != nil {
		t.Errorf("by a certificate without an authority: %v", err)
	}
}

// Each of the checks, and what becomes of it at each level of verification: a signature that is not intact, not of the
// artifact or not by a trusted identity never counts.
func TestSignaturesThatDoNotCount(t *testing.T) {
	app := artifact("app")
	root, stranger := issue(t, nil, "p256", "root", nil), issue(t, nil, "p256", "root", nil)
	signer := issue(t, root, "p256", "signer", nil)
	expires := func(r *signature.SignRequest) { r.Expiry = r.SigningTime.Add(time.Hour) }
	for name, c := range map[string]struct {
		by     *notarized.Identity // nil: signer
		change func(*signature.SignRequest)
		of     string
		later  time.Duration
		why    string
		early  bool
		passes string // level of verification at which it counts nevertheless
	}{
		"another authority": {by: issue(t, stranger, "p256", "signer", nil), why: "does not lead to ca:site"},
		"another artifact":  {of: "other", why: "it is for another artifact"},
		"no artifact":       {change: func(r *signature.SignRequest) { r.Payload.Content = []byte(`{}`) }, why: "it is for another artifact"},
		"another content":   {change: func(r *signature.SignRequest) { r.Payload.ContentType = "application/json" }, why: "its content type is"},
		"a signing authority": {
			change: func(r *signature.SignRequest) { r.SigningScheme = signature.SigningSchemeX509SigningAuthority },
			why:    "its signing scheme is",
		},
		"a plugin is demanded": {change: func(r *signature.SignRequest) {
			r.ExtendedSignedAttributes = []signature.Attribute{{Key: "io.cncf.notary.verificationPlugin", Critical: true, Value: "x"}}
		}, why: `"io.cncf.notary.verificationPlugin"`},
		"it has expired":      {change: expires, later: 2 * time.Hour, why: "it expired on", passes: "permissive"},
		"its certificate has": {later: 2 * 366 * 24 * time.Hour, why: "expired on", passes: "permissive"},
		"it is not valid yet": {later: -48 * time.Hour, why: "not valid yet", early: true},
	} {
		t.Run(name, func(t *testing.T) {
			if c.by == nil {
				c.by = signer
			}
			of := app
			if c.of != "" {
				of = artifact(c.of)
			}
			for _, form := range forms {
				envelope := sign(t, c.by, form, of, c.change)
				for _, level := range []string{"strict", "permissive"} {
					_, logged, err := verify(t, configure(t, root, policyOf(`"*"`, `{"level":"`+level+`"}`, `"*"`)), form, envelope, app, c.later)
					said, counts := fmt.Sprint(err), level == c.passes
					if counts {
						said = logged
					}
					if (err == nil) != counts || !strings.Contains(said, c.why) || errors.Is(err, notation.ErrEarly) != c.early {
						t.Errorf("%s, %s: %v, logged %s", form, level, err, logged)
					}
				}
			}
		})
	}
}

// recertified is a JWS with other certificates, which are not signed: those of the same key by an authority.
func recertified(t *testing.T, envelope []byte, signer, by *notarized.Identity, change func(*x509.Certificate)) []byte {
	t.Helper()
	i := expect.Value(notarized.Issue(by, signer.Key, "again", change))(t)
	var chain []string
	for _, c := range i.Chain {
		chain = append(chain, base64.StdEncoding.EncodeToString(c.Raw))
	}
	return edited(t, envelope, func(j map[string]any) { j["header"] = map[string]any{"x5c": chain} })
}

// edited is a JWS after a change of its JSON.
func edited(t *testing.T, envelope []byte, change func(map[string]any)) []byte {
	t.Helper()
	var j map[string]any
	check(t, json.Unmarshal(envelope, &j))
	change(j)
	return expect.Value(json.Marshal(j))(t)
}

// What Notation's library does not make is refused as well.
func TestSignaturesThatNobodyShouldMakeDoNotCount(t *testing.T) {
	app := artifact("app")
	root := issue(t, nil, "p256", "root", nil)
	signer := issue(t, root, "p256", "signer", nil)
	good := sign(t, signer, notation.JWSType, app, nil)
	dir := configure(t, root, strictly(""))
	protect := func(text string) func(map[string]any) {
		return func(j map[string]any) { j["protected"] = base64.RawURLEncoding.EncodeToString([]byte(text)) }
	}
	for name, c := range map[string]struct {
		envelope []byte
		why      string
	}{
		"nothing":          {nil, "cannot read it"},
		"no certificate":   {edited(t, good, func(j map[string]any) { j["header"] = nil }), "expected 1 to 10 certificates, got 0"},
		"not base64":       {edited(t, good, func(j map[string]any) { j["payload"] = "=" }), "cannot read it"},
		"no header":        {edited(t, good, protect(`{}`)), "its signing scheme is"},
		"no algorithm":     {edited(t, good, protect(`{"alg":"none","cty":"application/vnd.cncf.notary.payload.v1+json","crit":["io.cncf.notary.signingScheme"],"io.cncf.notary.signingScheme":"notary.x509"}`)), `its algorithm is "none"`},
		"nothing critical": {edited(t, good, protect(`{"alg":"ES256","cty":"application/vnd.cncf.notary.payload.v1+json","io.cncf.notary.signingScheme":"notary.x509"}`)), "its critical headers are"},
		"another header":   {edited(t, good, protect(`{"alg":"ES256","cty":"application/vnd.cncf.notary.payload.v1+json","crit":["io.cncf.notary.signingScheme"],"io.cncf.notary.signingScheme":"notary.x509"}`)), "it was changed"},
		"another payload":  {edited(t, good, func(j map[string]any) { j["payload"] = "e30" }), "it was changed"},
		"another key":      {recertified(t, good, issue(t, root, "p256", "x", nil), root, nil), "it was changed"},
		"a certificate of an authority": {recertified(t, good, signer, root, func(c *x509.Certificate) {
			c.IsCA, c.KeyUsage = true, x509.KeyUsageDigitalSignature|x509.KeyUsageCertSign
		}), "not for signing code"},
		"a certificate for servers": {recertified(t, good, signer, root, func(c *x509.Certificate) {
			c.ExtKeyUsage = append(c.ExtKeyUsage, x509.ExtKeyUsageServerAuth)
		}), "not for signing code"},
		"a certificate for encryption": {recertified(t, good, signer, root, func(c *x509.Certificate) {
			c.KeyUsage = x509.KeyUsageDigitalSignature | x509.KeyUsageKeyEncipherment
		}), "not for signing code"},
		"a certificate by itself": {recertified(t, good, signer, nil, func(c *x509.Certificate) {
			c.IsCA, c.KeyUsage = false, x509.KeyUsageDigitalSignature
		}), "does not lead to ca:site"},
		"a certificate by a signer": {recertified(t, good, signer, issue(t, root, "p256", "x", nil), nil), "does not lead to ca:site"},
	} {
		t.Run(name, func(t *testing.T) {
			if by, _, err := verify(t, dir, notation.JWSType, c.envelope, app, 0); err == nil || !strings.Contains(err.Error(), c.why) {
				t.Errorf("by %q, %v; want %q", by, err, c.why)
			}
		})
	}
}

// A certificate of which a list of its authority says so is revoked. One that names where that is to be asked needs a
// list that is current, and so does one whose authority has any.
func TestRevokedCertificatesDoNotCount(t *testing.T) {
	app := artifact("app")
	root := issue(t, nil, "p256", "root", nil)
	between := issue(t, root, "p256", "between", func(c *x509.Certificate) {
		c.IsCA, c.KeyUsage = true, x509.KeyUsageCertSign|x509.KeyUsageCRLSign
	})
	signer := issue(t, between, "p256", "signer", nil)
	asking := issue(t, root, "p256", "asking", func(c *x509.Certificate) { c.CRLDistributionPoints = []string{"http://nowhere.invalid/crl"} })
	stale := func(l *x509.RevocationList) {
		l.ThisUpdate, l.NextUpdate = time.Now().Add(-time.Hour), time.Now().Add(-time.Minute)
	}
	changes := func(l *x509.RevocationList) {
		l.ExtraExtensions = []pkix.Extension{{Id: asn1.ObjectIdentifier{2, 5, 29, 27}, Critical: true, Value: []byte{2, 1, 1}}}
	}
	for name, c := range map[string]struct {
		by      *notarized.Identity
		list    *notarized.Identity // by whom there is a list; nil: none
		change  func(*x509.RevocationList)
		revoked *notarized.Identity
		why     string // empty: it counts
	}{
		"nobody says so":                  {by: signer},
		"another one is":                  {by: signer, list: between, revoked: asking},
		"the signer is":                   {by: signer, list: between, revoked: signer, why: "CN=signer"},
		"its authority is":                {by: signer, list: root, revoked: between, why: "CN=between"},
		"by somebody else":                {by: signer, list: root, revoked: signer},
		"a stale list says so":            {by: signer, list: between, change: stale, revoked: signer, why: "was revoked on"},
		"a list of changes says so":       {by: signer, list: between, change: changes, revoked: signer, why: "was revoked on"},
		"a list is stale":                 {by: signer, list: between, change: stale, why: "no current revocation list of CN=between"},
		"a list of changes is alone":      {by: signer, list: between, change: changes, why: "no current revocation list of CN=between"},
		"it wants a list":                 {by: asking, why: "no current revocation list of CN=root"},
		"it wants a list, which is there": {by: asking, list: root},
	} {
		t.Run(name, func(t *testing.T) {
			for _, level := range []string{`"level":"strict"`, `"level":"permissive"`, `"level":"strict","override":{"revocation":"skip"}`} {
				dir := configure(t, root, policyOf(`"*"`, "{"+level+"}", `"*"`))
				if c.list != nil {
					var revoked []*notarized.Identity
					if c.revoked != nil {
						revoked = append(revoked, c.revoked)
					}
					list := expect.Value(c.list.Revoke(c.change, revoked...))(t)
					write(t, list, dir, "crl", "list.crl")
				}
				_, logged, err := verify(t, dir, notation.JWSType, sign(t, c.by, notation.JWSType, app, nil), app, 0)
				said := fmt.Sprint(err)
				switch {
				case !strings.Contains(level, "strict"):
					said = logged
				case strings.Contains(level, "skip"):
					c.why = ""
					said = logged
				}
				if refused := err != nil; refused != (c.why != "" && level == `"level":"strict"`) || !strings.Contains(said, c.why) {
					t.Errorf("%s: %v, logged %s", level, err, logged)
				}
			}
		})
	}
}

// An envelope from outside costs no more than an error.
func FuzzVerify(f *testing.F) {
	app := artifact("app")
	root := issue(f, nil, "p256", "root", nil)
	signer := issue(f, root, "p256", "signer", nil)
	for n, form := range forms {
		f.Add(n == 0, sign(f, signer, form, app, func(r *signature.SignRequest) { r.Expiry = r.SigningTime.Add(time.Hour) }))
	}
	v := expect.Value(notation.Open(configure(f, root, strictly("")), repository, time.Now(), slog.New(slog.DiscardHandler)))(f)
	f.Fuzz(func(t *testing.T, first bool, data []byte) {
		form := forms[1]
		if first {
			form = forms[0]
		}
		if signer, err := v.Verify(v1.Descriptor{MediaType: form}, data, app.Digest); (signer == "") != (err != nil) {
			t.Errorf("signed by %q, %v", signer, err)
		}
	})
}

var check = expect.Check
