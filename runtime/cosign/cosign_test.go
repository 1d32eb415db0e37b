package cosign_test

import (
	"bytes"
	"encoding/pem"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/margolite/margolite/runtime/cosign"
	"github.com/margolite/margolite/test/cosigned"
	"github.com/margolite/margolite/test/expect"
)

var (
	image = digest.FromString("image")
	other = digest.FromString("other")
)

func newKey(t testing.TB, kind string) (*cosigned.Key, []byte) {
	t.Helper()
	k := expect.Value(cosigned.NewKey(kind))(t)
	public := expect.Value(k.Public())(t)
	return k, public
}

func parseKeys(t testing.TB, files ...[]byte) cosign.Keys {
	t.Helper()
	var all cosign.Keys
	for _, data := range files {
		keys := expect.Value(cosign.ParseKeys(data))(t)
		all = all.With(keys)
	}
	return all
}

// layer is a layer with a signature, and its payload.
type layer struct {
	v1.Descriptor
	payload []byte
}

func (l layer) verify(of digest.Digest, keys cosign.Keys) (string, error) {
	return keys.Verify(l.Descriptor, l.payload, of)
}

func simple(payload []byte, signature string) layer {
	annotations := map[string]string{"dev.cosignproject.cosign/signature": signature}
	return layer{v1.Descriptor{MediaType: cosign.SimpleType, Annotations: annotations}, payload}
}

func signed(t testing.TB, k *cosigned.Key, payload []byte) layer {
	t.Helper()
	signature := expect.Value(k.SignPayload(payload))(t)
	return simple(payload, signature)
}

func bundle(data []byte) layer { return layer{v1.Descriptor{MediaType: cosign.BundleType}, data} }

func bundled(t testing.TB, k *cosigned.Key, statement []byte) []byte {
	t.Helper()
	return expect.Value(k.Bundle(statement))(t)
}

// Signatures of all kinds of keys and in both forms count, by the key that made them and for the image that they name.
func TestSignaturesCountByTheirKeyAndForTheirImage(t *testing.T) {
	for _, kind := range []string{"p256", "p384", "ed25519", "ed25519ph", "rsa2048"} {
		t.Run(kind, func(t *testing.T) {
			k, public := newKey(t, kind)
			_, stranger := newKey(t, strings.TrimSuffix(kind, "ph"))
			mine, both, others := parseKeys(t, public), parseKeys(t, stranger, public), parseKeys(t, stranger)
			for form, s := range map[string]layer{
				"simple signing": signed(t, k, cosigned.Payload("registry.example/app", image)),
				"bundle":         bundle(bundled(t, k, cosigned.Statement(image))),
			} {
				id, err := s.verify(image, mine)
				expect.True(t, err == nil && mine.Has(id) && !others.Has(id), "%s: key %q, %v", form, id, err)
				expect.Equal(t, expect.Value(s.verify(image, both))(t), id, "%s: key of two", form)
				expect.Error(t, expect.ErrorOf(s.verify(image, others)), cosign.ErrOtherKey, "%s: by another key", form)
				expect.Error(t, expect.ErrorOf(s.verify(image, cosign.Keys{})), cosign.ErrOtherKey, "%s: by no key", form)
				expect.Error(t, expect.ErrorOf(s.verify(other, mine)), cosign.ErrOtherImage, "%s: of another image", form)
			}
		})
	}
}

// What was signed counts as it was signed.
func TestWhatWasChangedAfterwardsDoesNotCount(t *testing.T) {
	k, public := newKey(t, "p256")
	keys := parseKeys(t, public)
	changed := signed(t, k, cosigned.Payload("registry.example/app", other))
	changed.payload = cosigned.Payload("registry.example/app", image)
	expect.Error(t, expect.ErrorOf(changed.verify(image, keys)), cosign.ErrOtherKey, "simple signing")
	mine, theirs := string(bundled(t, k, cosigned.Statement(image))), string(bundled(t, k, cosigned.Statement(other)))
	cut := func(s string) (before, payload, after string) {
		before, rest, _ := strings.Cut(s, `"payload":"`)
		payload, after, _ = strings.Cut(rest, `"`)
		return before, payload, after
	}
	before, _, after := cut(theirs)
	_, payload, _ := cut(mine)
	mixed := bundle([]byte(before + `"payload":"` + payload + `"` + after))
	expect.Error(t, expect.ErrorOf(mixed.verify(image, keys)), cosign.ErrOtherKey, "bundle")
}

func TestWhatIsNoSignatureOfAnImageIsRefused(t *testing.T) {
	k, _ := newKey(t, "p256")
	payload := string(cosigned.Payload("registry.example/app", image))
	for name, c := range map[string]struct{ payload, signature, says string }{
		"no JSON":                {"x", "eA==", "invalid character"},
		"something after it":     {payload + "{}", "eA==", "after top-level value"},
		"another kind":           {strings.Replace(payload, "cosign container", "atomic container", 1), "eA==", "atomic container"},
		"no digest":              {strings.Replace(payload, image.String(), "latest", 1), "eA==", "docker-manifest-digest"},
		"not an image signature": {payload, "", "not base64"},
		"a signature in words":   {payload, "not an image signature", "not base64"},
	} {
		expect.ErrorWith(t, expect.ErrorOf(simple([]byte(c.payload), c.signature).verify(image, cosign.Keys{})), c.says, "simple signing, %s", name)
	}
	statement := string(cosigned.Statement(image))
	many := strings.Repeat(`{"digest":{"sha256":"`+image.Encoded()+`"}},`, 64)
	for name, c := range map[string]struct{ bundle, says string }{
		"no JSON": {"x", "invalid character"},
		"a signature of bytes": {
			`{"messageSignature":{"messageDigest":{"algorithm":"SHA2_256","digest":"eA=="},"signature":"eA=="}}`, "no DSSE envelope",
		},
		"another payload": {strings.Replace(string(bundled(t, k, []byte(statement))), "in-toto", "out-of-toto", 1), "out-of-toto"},
		"two signatures":  {strings.Replace(string(bundled(t, k, []byte(statement))), `[{"sig"`, `[{"sig":"eA=="},{"sig"`, 1), "2 signatures"},
		"none":            {strings.Replace(string(bundled(t, k, []byte(statement))), `{"sig":"`, `{"sag":"`, 1), "signatures"},
		"an attestation": {
			string(bundled(t, k, []byte(strings.Replace(statement, "https://sigstore.dev/cosign/sign/v1", "https://slsa.dev/provenance/v1", 1)))), "provenance",
		},
		"another statement": {string(bundled(t, k, []byte(strings.Replace(statement, "Statement/v1", "Statement/v9", 1)))), "Statement/v9"},
		"of nothing":        {string(bundled(t, k, []byte(strings.Replace(statement, "sha256", "md5", 1)))), "no image"},
		"of too much":       {string(bundled(t, k, []byte(strings.Replace(statement, `"subject":[`, `"subject":[`+many, 1)))), "more than 64"},
		"of a text":         {string(bundled(t, k, []byte("x"))), "invalid character"},
	} {
		expect.ErrorWith(t, expect.ErrorOf(bundle([]byte(c.bundle)).verify(image, cosign.Keys{})), c.says, "bundle, %s", name)
	}
}

func TestKeysThatCannotBeUsedAreNamed(t *testing.T) {
	k, good := newKey(t, "p256")
	private := expect.Value(k.Private())(t)
	_, p521 := newKey(t, "p521")
	weak := `-----BEGIN PUBLIC KEY-----
MIGfMA0GCSqGSIb3DQEBAQUAA4GNADCBiQKBgQC8Suo5TIc5qICMTK9bU8SOayyx
HxT0tVKlYq+qor73+/gpJvJl+K8m/vSHqbgMbX/SVppkoIEcLOEpdxZIo7UWt/Pl
Ytk7OFw3VBHjN1pQH6kv8WdFvuXqPKGiJc5lNtoBZHYinKCiboI767qIa10FF0Yc
JBhVsn8Ya4h3+xHzxQIDAQAB
-----END PUBLIC KEY-----
`
	for name, c := range map[string]struct{ data, says string }{
		"nothing":            {"", "no PEM public key"},
		"no PEM":             {"cosign", "no PEM public key"},
		"a private key":      {string(good) + string(private), "private key"},
		"a key of cosign":    {string(pem.EncodeToMemory(&pem.Block{Type: "ENCRYPTED SIGSTORE PRIVATE KEY", Bytes: []byte("x")})), "private key"},
		"a certificate":      {string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte("x")})), `"CERTIFICATE"`},
		"no key in it":       {string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: []byte("x")})), "cannot read public key"},
		"a curve of its own": {string(p521), "P-521"},
		"a short RSA key":    {weak, "1024 bits"},
		"too many": {func() (all string) {
			for range 17 {
				_, public := newKey(t, "p256")
				all += string(public)
			}
			return all
		}(), "more than 16"},
		"one that is cut": {string(good) + string(good[:len(good)/2]), "line 5: "},
		"too much":        {string(good) + strings.Repeat(" ", cosign.MaxKeys), "more than"},
	} {
		expect.ErrorWith(t, expect.ErrorOf(cosign.ParseKeys([]byte(c.data))), c.says, "%s", name)
	}
	_, other := newKey(t, "p256")
	joined := slices.Concat([]byte("\ufeff"), bytes.TrimSpace(good), good, bytes.TrimSpace(good), other)
	expect.Equal(t, parseKeys(t, joined, good).Len(), 2, "two keys count as")
}

func FuzzSimple(f *testing.F) {
	k, public := newKey(f, "p256")
	keys := parseKeys(f, public)
	payload := cosigned.Payload("registry.example/app", other)
	signature := expect.Value(k.SignPayload(payload))(f)
	f.Add(payload, signature)
	f.Add([]byte(`{"critical":{"type":"cosign container image signature","image":{"docker-manifest-digest":"sha256:x"}}}`), "")
	f.Add([]byte(`{"Critical":{"Type":"cosign container image signature","Image":{"Docker-manifest-digest":"`+image.String()+`"}}}`), signature)
	f.Fuzz(func(t *testing.T, payload []byte, signature string) {
		expect.ErrorWith(t, expect.ErrorOf(simple(payload, signature).verify(image, keys)), "", "%q", payload)
	})
}

func FuzzBundle(f *testing.F) {
	k, public := newKey(f, "p256")
	keys := parseKeys(f, public)
	f.Add(bundled(f, k, cosigned.Statement(other)))
	f.Add(bundled(f, k, []byte(`{"_type":"https://in-toto.io/Statement/v1","subject":null}`)))
	f.Add([]byte(`{"dsseEnvelope":{"payload":"e30=","payloadType":"application/vnd.in-toto+json","signatures":[{"sig":"eA=="}]}}`))
	f.Add([]byte(`{"dsseEnvelope":null}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		expect.ErrorWith(t, expect.ErrorOf(bundle(data).verify(image, keys)), "", "%q", data)
	})
}

func FuzzKeys(f *testing.F) {
	for _, kind := range []string{"p256", "ed25519", "rsa2048"} {
		_, public := newKey(f, kind)
		f.Add(public)
	}
	f.Add([]byte("-----BEGIN PUBLIC KEY-----\n-----END PUBLIC KEY-----\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		if keys, err := cosign.ParseKeys(data); err == nil && keys.Len() == 0 {
			t.Error("no key, and no error")
		}
	})
}
