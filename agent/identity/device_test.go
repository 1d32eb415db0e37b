package identity_test

import (
	"bytes"
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"net/http"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/margolite/margolite/agent/identity"
	"github.com/margolite/margolite/test/expect"
	"github.com/margolite/margolite/test/pki"
)

// deviceFiles writes a certificate for a key, valid for an hour before and after noon, and the key.
func deviceFiles(t *testing.T, dir string, key crypto.Signer, change ...pki.Option) (identity.Options, *x509.Certificate) {
	t.Helper()
	change = append([]pki.Option{pki.Key(key), pki.Valid(noon.Add(-time.Hour), noon.Add(time.Hour))}, change...)
	svid := expect.Value(expect.Value(pki.NewServerAuthority("plant", noon))(t).IssueSigner("edge-01", change...))(t)
	o := identity.Options{
		Certificate: filepath.Join(dir, "device.pem"), Key: filepath.Join(dir, "device.key"), Now: clock(noon),
	}
	write(t, o.Certificate, svid.CertificatePEM())
	write(t, o.Key, expect.Value(svid.KeyPEM())(t))
	return o, svid.Chain[0]
}

func TestAUTH10DeviceCertificateIsX509(t *testing.T) {
	o, leaf := deviceFiles(t, t.TempDir(), p256())
	d := expect.Value(identity.LoadDevice(o))(t)
	if !bytes.Equal(d.CertificatePEM(), encode("CERTIFICATE", leaf.Raw)) || !d.Expiry(noon).NotAfter.Equal(leaf.NotAfter) {
		t.Error("the certificate is another one")
	}
	expect.Equal(t, d.Warnings(), nil, "warnings")
	r := request(t, http.MethodGet, "https://wfm.example/", "")
	check(t, d.Sign(r, nil))
}

// What is wrong with files is told apart in TestLoadNamesWhatIsWrongWithTheFiles, and which
// keys cannot sign in TestSignerRefusesWhatCannotBeSigned.
func TestAUTH10CertificatesThatAreRefused(t *testing.T) {
	good := p256()
	for name, test := range map[string]struct {
		key    crypto.Signer
		change []pki.Option
	}{
		"a key that cannot sign requests":       {expect.Value(rsa.GenerateKey(rand.Reader, 1024))(t), nil},
		"a certificate that is not for signing": {good, []pki.Option{pki.NoKeyUsage, pki.KeyUsage(x509.KeyUsageKeyAgreement)}},
	} {
		t.Run(name, func(t *testing.T) {
			o, _ := deviceFiles(t, t.TempDir(), test.key, test.change...)
			expect.Equal(t, reasonOf(t, expect.ErrorOf(identity.LoadDevice(o))), identity.UnfitKey, "reason")
		})
	}
}

func TestDeviceOutsideItsValidityIsOfflineOnly(t *testing.T) {
	for at, want := range map[time.Time][]identity.Reason{
		noon:                     nil,
		noon.Add(-2 * time.Hour): {identity.NotYetValid},
		noon.Add(2 * time.Hour):  {identity.Expired},
	} {
		o, _ := deviceFiles(t, t.TempDir(), p256())
		o.Now = clock(at)
		d := expect.Value(identity.LoadDevice(o))(t)
		var got []identity.Reason
		for _, w := range d.Warnings() {
			got = append(got, w.Reason)
		}
		expect.Equal(t, got, want, "at %s", at)
	}
}

func TestAUTH02AnchorsAreReadInEachForm(t *testing.T) {
	a := authority(t)
	der, text := a.Root.Raw, a.BundlePEM()
	inBase64 := base64.StdEncoding.EncodeToString
	for name, data := range map[string][]byte{
		"PEM":                        text,
		"DER":                        der,
		"base64 of PEM":              []byte(inBase64(text)),
		"base64 of DER":              []byte(inBase64(der)),
		"base64 without padding":     []byte(base64.RawStdEncoding.EncodeToString(text)),
		"base64 in lines":            []byte(inBase64(der)[:64] + "\r\n" + inBase64(der)[64:] + "\n"),
		"PEM with text around it":    append([]byte("root of the factory\n"), text...),
		"PEM with something else in": append(encode("X509 CRL", []byte("x")), text...),
	} {
		anchors, err := identity.ParseAnchors(data)
		expect.True(t, err == nil && len(anchors) == 1 && anchors[0].Equal(a.Root), "%s: %d anchors, %v", name, len(anchors), err)
	}
	expect.Equal(t, len(expect.Value(identity.ParseAnchors(append(slices.Clone(text), text...)))(t)), 2, "anchors")
	for name, data := range map[string][]byte{
		"nothing":                   nil,
		"text":                      []byte("no anchor"),
		"base64 of text":            []byte(inBase64([]byte("no anchor"))),
		"a key":                     encode("PRIVATE KEY", []byte("x")),
		"a broken one":              append(slices.Clone(text), encode("CERTIFICATE", []byte("x"))...),
		"a broken one in base64":    []byte(inBase64(der[:100])),
		"more than can be":          bytes.Repeat(text, 513),
		"more than would be read":   bytes.Repeat([]byte("x"), 1<<20+1),
		"DER with something behind": append(slices.Clone(der), 'x'),
	} {
		if anchors, err := identity.ParseAnchors(data); err == nil || anchors != nil {
			t.Errorf("%s: %d anchors", name, len(anchors))
		}
	}
}

func TestAUTH03ServerTLSIsOf13UnlessTold(t *testing.T) {
	for allowed, want := range map[bool]uint16{false: tls.VersionTLS13, true: tls.VersionTLS12} {
		c := expect.Value(identity.ServerTLS(identity.ServerOptions{TLS12: allowed}))(t)
		if c.MinVersion != want || c.InsecureSkipVerify || c.RootCAs != nil || !slices.Equal(c.NextProtos, []string{"http/1.1"}) {
			t.Errorf("TLS 1.2 allowed: %t: %+v", allowed, c)
		}
	}
	for reason, o := range map[identity.Reason]identity.ServerOptions{
		identity.Missing:   {CA: filepath.Join(t.TempDir(), "ca.pem")},
		identity.Malformed: {Root: []byte("x")},
	} {
		expect.Equal(t, reasonOf(t, expect.ErrorOf(identity.ServerTLS(o))), reason, "reason")
	}
}

func FuzzParseAnchors(f *testing.F) {
	der := expect.Value(pki.NewServerAuthority("root", noon))(f).Root.Raw
	f.Add(der)
	f.Add(encode("CERTIFICATE", der))
	f.Add([]byte(base64.StdEncoding.EncodeToString(der)))
	f.Add([]byte(base64.StdEncoding.EncodeToString(encode("CERTIFICATE", der))))
	f.Add([]byte("0"))
	f.Add([]byte("===="))
	f.Fuzz(func(t *testing.T, data []byte) {
		anchors, err := identity.ParseAnchors(data)
		expect.Require(t, (err == nil) == (len(anchors) > 0), "%d anchors, %v", len(anchors), err)
	})
}
