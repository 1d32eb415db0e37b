package identity_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/margolite/margolite/agent/identity"
	"github.com/margolite/margolite/test/pki"
)

const domain = "factory.example"

// noon is the present of all tests here.
var noon = time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)

func clock(at time.Time) func() time.Time { return func() time.Time { return at } }

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

func authority(t *testing.T) *pki.Authority {
	t.Helper()
	return must(pki.NewAuthority(domain, noon))
}

// device writes the files of a client of WFM "one" and returns them.
func device(t *testing.T, a *pki.Authority, options ...pki.Option) pki.Files {
	t.Helper()
	return must(pki.WriteFiles(t.TempDir(), must(a.IssueClient("one", "gw-07", options...)), a.Bundle()))
}

func options(f pki.Files) identity.Options {
	return identity.Options{Certificate: f.Certificate, Key: f.Key, TrustBundle: f.TrustBundle, Now: clock(noon)}
}

func reasonOf(t *testing.T, err error) identity.Reason {
	t.Helper()
	var fault *identity.Error
	if !errors.As(err, &fault) {
		t.Fatalf("error is %T (%v), want *identity.Error", err, err)
	}
	if fault.Mend() == "" {
		t.Errorf("reason %q has no mend", fault.Reason)
	}
	return fault.Reason
}

func TestLoadKnowsWhoTheDeviceAndItsWFMAre(t *testing.T) {
	a := authority(t)
	i, err := identity.Load(options(device(t, a)))
	if err != nil {
		t.Fatal(err)
	}
	if got, want := i.ClientID(), "spiffe://factory.example/margo/wfm/one/client/gw-07"; got != want {
		t.Errorf("ClientID = %s, want %s", got, want)
	}
	if got, want := i.WFMID(), "spiffe://factory.example/margo/wfm/one"; got != want {
		t.Errorf("WFMID = %s, want %s", got, want)
	}
	if got, want := i.NotAfter(), noon.Add(90*24*time.Hour); !got.Equal(want) {
		t.Errorf("NotAfter = %s, want %s", got, want)
	}
	if warnings := i.Warnings(); len(warnings) != 0 {
		t.Errorf("warnings about a sound identity: %v", warnings)
	}
}

func TestLoadNamesWhatIsWrongWithTheFiles(t *testing.T) {
	a := authority(t)
	other := must(a.IssueClient("one", "other"))
	tests := map[string]struct {
		spoil  func(t *testing.T, f *pki.Files)
		reason identity.Reason
		object func(f pki.Files) string
	}{
		"the certificate is not there": {
			func(t *testing.T, f *pki.Files) { remove(t, f.Certificate) },
			identity.Missing, func(f pki.Files) string { return f.Certificate },
		},
		"the key is not there": {
			func(t *testing.T, f *pki.Files) { remove(t, f.Key) },
			identity.Missing, func(f pki.Files) string { return f.Key },
		},
		"the trust bundle is not there": {
			func(t *testing.T, f *pki.Files) { remove(t, f.TrustBundle) },
			identity.Missing, func(f pki.Files) string { return f.TrustBundle },
		},
		"the key is a folder": {
			func(t *testing.T, f *pki.Files) { f.Key = filepath.Dir(f.Key) },
			identity.Unreadable, func(f pki.Files) string { return f.Key },
		},
		"the certificate is far too large": {
			func(t *testing.T, f *pki.Files) { write(t, f.Certificate, make([]byte, 1<<20)) },
			identity.TooLarge, func(f pki.Files) string { return f.Certificate },
		},
		"the certificate is empty": {
			func(t *testing.T, f *pki.Files) { write(t, f.Certificate, nil) },
			identity.Malformed, func(f pki.Files) string { return f.Certificate },
		},
		"the certificate was cut off": {
			func(t *testing.T, f *pki.Files) {
				write(t, f.Certificate, []byte("-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"))
			},
			identity.Malformed, func(f pki.Files) string { return f.Certificate },
		},
		"the key file holds no key": {
			func(t *testing.T, f *pki.Files) { write(t, f.Key, []byte("hello")) },
			identity.Malformed, func(f pki.Files) string { return f.Key },
		},
		"the key is encrypted": {
			func(t *testing.T, f *pki.Files) {
				write(t, f.Key, []byte("-----BEGIN ENCRYPTED PRIVATE KEY-----\nMIIB\n-----END ENCRYPTED PRIVATE KEY-----\n"))
			},
			identity.Malformed, func(f pki.Files) string { return f.Key },
		},
		"the key belongs to another certificate": {
			func(t *testing.T, f *pki.Files) { write(t, f.Key, must(other.KeyPEM())) },
			identity.KeyMismatch, func(f pki.Files) string { return f.Key },
		},
		"the trust bundle holds no anchor": {
			func(t *testing.T, f *pki.Files) { write(t, f.TrustBundle, []byte(`{"keys":[]}`)) },
			identity.Malformed, func(f pki.Files) string { return f.TrustBundle },
		},
		"the certificate is that of a WFM": {
			func(t *testing.T, f *pki.Files) {
				*f = must(pki.WriteFiles(filepath.Dir(f.Key), must(a.IssueWFM("one")), a.Bundle()))
			},
			identity.NotClient, func(f pki.Files) string { return f.Certificate },
		},
		"the certificate is no SVID": {
			func(t *testing.T, f *pki.Files) {
				svid := must(a.IssueClient("one", "x", pki.URIs(), pki.DNSNames("gw-07.example")))
				*f = must(pki.WriteFiles(filepath.Dir(f.Key), svid, a.Bundle()))
			},
			identity.NotClient, func(f pki.Files) string { return f.Certificate },
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			files := device(t, a)
			test.spoil(t, &files)
			_, err := identity.Load(options(files))
			if got := reasonOf(t, err); got != test.reason {
				t.Errorf("reason = %q (%v), want %q", got, err, test.reason)
			}
			if want := test.object(files); !strings.HasPrefix(err.Error(), want+": ") || strings.Count(err.Error(), want) != 1 {
				t.Errorf("error %q does not name %s, once and first", err, want)
			}
			if test.reason == identity.Missing && !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("error %v is not fs.ErrNotExist", err)
			}
		})
	}
}

func TestKeysAreReadInEveryCommonForm(t *testing.T) {
	a := authority(t)
	rsaKey := must(rsa.GenerateKey(rand.Reader, 3072))
	ecKey := must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))
	tests := map[string]struct {
		svid *pki.SVID
		key  []byte
	}{
		"SEC 1 behind its parameters": {
			must(a.IssueClient("one", "ec", pki.Key(ecKey))),
			append(encode("EC PARAMETERS", []byte{6, 8, 42}), encode("EC PRIVATE KEY", must(x509.MarshalECPrivateKey(ecKey)))...),
		},
		"PKCS 1": {
			must(a.IssueClient("one", "rsa", pki.Key(rsaKey))),
			encode("RSA PRIVATE KEY", x509.MarshalPKCS1PrivateKey(rsaKey)),
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			files := must(pki.WriteFiles(t.TempDir(), test.svid, a.Bundle()))
			write(t, files.Key, test.key)
			i, err := identity.Load(options(files))
			if err != nil {
				t.Fatal(err)
			}
			if warnings := i.Warnings(); len(warnings) != 0 {
				t.Errorf("warnings: %v", warnings)
			}
		})
	}
}

func TestWarningsTellWhatWillKeepTheDeviceOffline(t *testing.T) {
	a := authority(t)
	stranger := must(pki.NewAuthority(domain, noon))
	tests := map[string]struct {
		files func(t *testing.T) pki.Files
		at    time.Time
		want  identity.Reason
	}{
		"the certificate has expired": {
			func(t *testing.T) pki.Files { return device(t, a) }, noon.Add(91 * 24 * time.Hour), identity.Expired,
		},
		"the clock starts in 1970": {
			func(t *testing.T) pki.Files { return device(t, a) }, time.Unix(0, 0), identity.NotYetValid,
		},
		"the key can be read by everybody": {
			func(t *testing.T) pki.Files {
				f := device(t, a)
				if err := os.Chmod(f.Key, 0o644); err != nil {
					t.Fatal(err)
				}
				return f
			}, noon, identity.KeyExposed,
		},
		"the bundle is of another authority": {
			func(t *testing.T) pki.Files {
				return must(pki.WriteFiles(t.TempDir(), must(a.IssueClient("one", "gw")), stranger.Bundle()))
			}, noon, identity.Untrusted,
		},
		"the certificate may sign": {
			func(t *testing.T) pki.Files { return device(t, a, pki.IsCA) }, noon, identity.NotALeaf,
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			o := options(test.files(t))
			o.Now = clock(test.at)
			i, err := identity.Load(o)
			if err != nil {
				t.Fatalf("Load failed, want a warning only: %v", err)
			}
			warnings := i.Warnings()
			if len(warnings) != 1 || warnings[0].Reason != test.want {
				t.Errorf("warnings = %v, want one: %q", warnings, test.want)
			}
		})
	}
}

func TestReloadTakesOverEverythingOrNothing(t *testing.T) {
	a := authority(t)
	files := device(t, a)
	i := must(identity.Load(options(files)))

	if err := i.Reload(); err != nil {
		t.Fatal(err)
	}
	if i.Generation() != 0 {
		t.Error("Generation moved although the files are the same")
	}

	renewed := must(a.IssueClient("one", "gw-07", pki.Valid(noon, noon.Add(200*24*time.Hour))))
	write(t, files.Certificate, renewed.CertificatePEM())
	if got := reasonOf(t, i.Reload()); got != identity.KeyMismatch {
		t.Errorf("half replaced files: reason %q, want %q", got, identity.KeyMismatch)
	}
	if want := noon.Add(90 * 24 * time.Hour); !i.NotAfter().Equal(want) || i.Generation() != 0 {
		t.Errorf("a failed Reload changed the identity: NotAfter %s, generation %d", i.NotAfter(), i.Generation())
	}

	write(t, files.Key, must(renewed.KeyPEM()))
	if err := i.Reload(); err != nil {
		t.Fatal(err)
	}
	if want := noon.Add(200 * 24 * time.Hour); !i.NotAfter().Equal(want) || i.Generation() != 1 {
		t.Errorf("NotAfter %s, generation %d, want %s and 1", i.NotAfter(), i.Generation(), want)
	}
}

// TestHandshakeIsWithTheOwnWFMOnly runs real handshakes: what the server has,
// and whether the device accepts it. A server that is not accepted never gets
// to see the device's certificate.
func TestHandshakeIsWithTheOwnWFMOnly(t *testing.T) {
	a := authority(t)
	elsewhere := must(pki.NewAuthority("other.example", noon))
	stranger := must(pki.NewAuthority(domain, noon))
	weak := must(rsa.GenerateKey(rand.Reader, 2048))
	day := 24 * time.Hour

	bare := must(a.IssueWFM("one"))
	bare.Chain = bare.Chain[:1]
	long := must(a.IssueWFM("one"))
	for len(long.Chain) < 11 {
		long.Chain = append(long.Chain, a.Intermediate)
	}

	tests := map[string]struct {
		server *pki.SVID
		want   identity.Reason // "": accepted
	}{
		"the own WFM":                                {must(a.IssueWFM("one")), ""},
		"the own WFM under any DNS name":             {must(a.IssueWFM("one", pki.DNSNames("nowhere.invalid"))), ""},
		"the own WFM without extended key usage":     {must(a.IssueWFM("one", pki.ExtKeyUsage())), ""},
		"the own WFM valid from in three minutes on": {must(a.IssueWFM("one", pki.Valid(noon.Add(3*time.Minute), noon.Add(day)))), ""},
		"valid from in an hour on":                   {must(a.IssueWFM("one", pki.Valid(noon.Add(time.Hour), noon.Add(day)))), identity.NotYetValid},
		"expired a minute ago":                       {must(a.IssueWFM("one", pki.Valid(noon.Add(-day), noon.Add(-time.Minute)))), identity.Expired},
		"another WFM of the trust domain":            {must(a.IssueWFM("two")), identity.OtherIdentity},
		"a WFM that differs in case only":            {must(a.IssueWFM("One")), identity.OtherIdentity},
		"a client of the own WFM":                    {must(a.IssueClient("one", "gw-08")), identity.OtherIdentity},
		"a workload of the trust domain":             {must(a.Issue("spiffe://factory.example/workload")), identity.OtherIdentity},
		"a WFM of another trust domain":              {must(elsewhere.IssueWFM("one")), identity.OtherTrustDomain},
		"the own name from another authority":        {must(stranger.IssueWFM("one")), identity.Untrusted},
		"no intermediate presented":                  {bare, identity.Untrusted},
		"a chain without end":                        {long, identity.NoSVID},
		"two URI SANs":                               {must(a.IssueWFM("one", pki.URIs("spiffe://factory.example/margo/wfm/one", "spiffe://factory.example/margo/wfm/two"))), identity.NoSVID},
		"no URI SAN, but the right DNS name":         {must(a.IssueWFM("one", pki.URIs(), pki.DNSNames("localhost"))), identity.NoSVID},
		"an https URI SAN":                           {must(a.IssueWFM("one", pki.URIs("https://factory.example/margo/wfm/one"))), identity.NoSVID},
		"a leaf that is an authority":                {must(a.IssueWFM("one", pki.IsCA)), identity.NotALeaf},
		"a leaf that may sign certificates":          {must(a.IssueWFM("one", pki.KeyUsage(x509.KeyUsageCertSign))), identity.NotALeaf},
		"a leaf that may sign revocation lists":      {must(a.IssueWFM("one", pki.KeyUsage(x509.KeyUsageCRLSign))), identity.NotALeaf},
		"an RSA key of 2048 bits":                    {must(a.IssueWFM("one", pki.Key(weak))), identity.WeakKey},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			i := must(identity.Load(options(device(t, a))))
			seen, err := handshake(t, i, test.server, tls.VersionTLS13)
			if test.want == "" {
				if err != nil {
					t.Fatalf("handshake failed: %v", err)
				}
				id, err := identity.Verify(seen, identity.Policy{Bundle: a.Bundle(), TrustDomain: domain, Role: identity.RoleClient, At: noon})
				if err != nil || id.String() != i.ClientID() {
					t.Errorf("the server saw %s (%v), want %s", id, err, i.ClientID())
				}
				return
			}
			if got := reasonOf(t, err); got != test.want {
				t.Errorf("reason = %q (%v), want %q", got, err, test.want)
			}
			if len(seen) != 0 {
				t.Error("the device showed its certificate to a server that it refused")
			}
		})
	}
}

func TestHandshakeRefusesTLS12(t *testing.T) {
	a := authority(t)
	i := must(identity.Load(options(device(t, a))))
	if _, err := handshake(t, i, must(a.IssueWFM("one")), tls.VersionTLS12); err == nil {
		t.Error("a TLS 1.2 server was accepted")
	}
}

func TestHandshakeFollowsReload(t *testing.T) {
	old, next := authority(t), authority(t)
	files := device(t, old)
	i := must(identity.Load(options(files)))

	if _, err := handshake(t, i, must(next.IssueWFM("one")), tls.VersionTLS13); reasonOf(t, err) != identity.Untrusted {
		t.Fatalf("server of the next authority: %v", err)
	}
	must(pki.WriteFiles(filepath.Dir(files.Key), must(next.IssueClient("one", "gw-07")), next.Bundle()))
	if err := i.Reload(); err != nil {
		t.Fatal(err)
	}
	if _, err := handshake(t, i, must(next.IssueWFM("one")), tls.VersionTLS13); err != nil {
		t.Errorf("after the reload: %v", err)
	}
	// Replaced, never merged (ID-21).
	if _, err := handshake(t, i, must(old.IssueWFM("one")), tls.VersionTLS13); reasonOf(t, err) != identity.Untrusted {
		t.Errorf("server of the old authority after the reload: %v", err)
	}
}

func TestVerifyTellsTheRolesApart(t *testing.T) {
	a := authority(t)
	wfm, client := must(a.IssueWFM("one")), must(a.IssueClient("one", "gw-07"))
	policy := identity.Policy{Bundle: a.Bundle(), TrustDomain: domain, At: noon}
	for _, test := range []struct {
		svid *pki.SVID
		role identity.Role
		ok   bool
	}{
		{wfm, identity.RoleWFM, true},
		{client, identity.RoleClient, true},
		{wfm, identity.RoleClient, false},
		{client, identity.RoleWFM, false},
	} {
		policy.Role = test.role
		id, err := identity.Verify(test.svid.Chain, policy)
		switch {
		case test.ok && (err != nil || id.String() != test.svid.ID):
			t.Errorf("%s as %s: %s, %v", test.svid.ID, test.role, id, err)
		case !test.ok && reasonOf(t, err) != identity.OtherIdentity:
			t.Errorf("%s as %s: %v", test.svid.ID, test.role, err)
		}
	}
}

func TestVerifyFailsClosedWithoutABundle(t *testing.T) {
	a := authority(t)
	for name, bundle := range map[string]*identity.TrustBundle{"no bundle": nil, "an empty one": {}} {
		_, err := identity.Verify(must(a.IssueWFM("one")).Chain, identity.Policy{Bundle: bundle, TrustDomain: domain, Role: identity.RoleWFM, At: noon})
		if reasonOf(t, err) != identity.Untrusted {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// handshake connects a device to a server and returns what the server saw of
// the device and how it went for the device.
func handshake(t *testing.T, i *identity.Identity, server *pki.SVID, version uint16) ([]*x509.Certificate, error) {
	t.Helper()
	clientSide, serverSide := net.Pipe()
	defer clientSide.Close()

	type outcome struct {
		seen []*x509.Certificate
		err  error
	}
	done := make(chan outcome, 1)
	go func() {
		defer serverSide.Close()
		var seen []*x509.Certificate
		err := tls.Server(serverSide, &tls.Config{
			Certificates: []tls.Certificate{server.TLS()},
			ClientAuth:   tls.RequireAnyClientCert,
			NextProtos:   []string{"h2", "http/1.1"},
			MinVersion:   version, MaxVersion: version,
			VerifyConnection: func(state tls.ConnectionState) error {
				seen = state.PeerCertificates
				return nil
			},
		}).Handshake()
		done <- outcome{seen, err}
	}()

	client := tls.Client(clientSide, i.TLS())
	err := client.Handshake()
	if err == nil && client.ConnectionState().NegotiatedProtocol != "http/1.1" {
		t.Errorf("negotiated %q, want http/1.1", client.ConnectionState().NegotiatedProtocol)
	}
	if err != nil {
		clientSide.Close()
	}
	result := <-done
	if err == nil && result.err != nil {
		t.Fatalf("server side: %v", result.err)
	}
	return result.seen, err
}

func remove(t *testing.T, path string) {
	t.Helper()
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
}

func write(t *testing.T, path string, data []byte) {
	t.Helper()
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
}
