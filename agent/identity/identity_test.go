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
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/margolite/margolite/agent/identity"
	"github.com/margolite/margolite/test/expect"
	"github.com/margolite/margolite/test/pki"
)

const domain = "factory.example"

// noon is the present of all tests here.
var noon = time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)

func clock(at time.Time) func() time.Time { return func() time.Time { return at } }

func authority(t *testing.T) *pki.Authority {
	t.Helper()
	return expect.Value(pki.NewAuthority(domain, noon))(t)
}

// device writes the files of a client of WFM "one" and returns them.
func device(t *testing.T, a *pki.Authority, options ...pki.Option) pki.Files {
	t.Helper()
	return expect.Value(pki.WriteFiles(t.TempDir(), expect.Value(a.IssueClient("one", "gw-07", options...))(t), a.Bundle()))(t)
}

func options(f pki.Files) identity.Options {
	return identity.Options{Certificate: f.Certificate, Key: f.Key, TrustBundle: f.TrustBundle, Now: clock(noon)}
}

func reasonOf(t *testing.T, err error) identity.Reason {
	t.Helper()
	var fault *identity.Error
	expect.Require(t, errors.As(err, &fault), "error is %T (%v), want *identity.Error", err, err)
	expect.True(t, fault.Mend() != "", "reason %q has no mend", fault.Reason)
	return fault.Reason
}

// warns expects one warning of an identity; "": none.
func warns(t *testing.T, i *identity.Identity, want identity.Reason) {
	t.Helper()
	var got identity.Reason
	for _, w := range i.Warnings() {
		got += w.Reason
	}
	expect.Equal(t, got, want, "warnings")
}

func TestID01LoadKnowsWhoTheDeviceAndItsWFMAre(t *testing.T) {
	a := authority(t)
	i := expect.Value(identity.Load(options(device(t, a))))(t)
	expect.Equal(t, i.ClientID(), "spiffe://factory.example/margo/wfm/one/client/gw-07", "ClientID")
	expect.Equal(t, i.WFMID(), "spiffe://factory.example/margo/wfm/one", "WFMID")
	warns(t, i, "")
}

func TestLoadNamesWhatIsWrongWithTheFiles(t *testing.T) {
	a := authority(t)
	other := expect.Value(a.IssueClient("one", "other"))(t)
	wfm := expect.Value(a.IssueWFM("one"))(t)
	bare := expect.Value(a.IssueClient("one", "x", pki.URIs(), pki.Hosts("gw-07.example")))(t)
	certificate := func(f *pki.Files) *string { return &f.Certificate }
	key := func(f *pki.Files) *string { return &f.Key }
	bundle := func(f *pki.Files) *string { return &f.TrustBundle }
	holds := func(content []byte) func(*testing.T, string) {
		return func(t *testing.T, file string) { write(t, file, content) }
	}
	mode := func(mode fs.FileMode) func(*testing.T, string) {
		return func(t *testing.T, file string) { chmod(t, file, mode) }
	}
	isOf := func(svid *pki.SVID) func(*testing.T, string) {
		return func(t *testing.T, file string) { expect.Value(pki.WriteFiles(filepath.Dir(file), svid, a.Bundle()))(t) }
	}
	tests := map[string]struct {
		file   func(f *pki.Files) *string
		spoil  func(t *testing.T, file string)
		reason identity.Reason
	}{
		"the certificate is not there":              {certificate, remove, identity.Missing},
		"the key is not there":                      {key, remove, identity.Missing},
		"the trust bundle is not there":             {bundle, remove, identity.Missing},
		"the key is a folder":                       {key, folder, identity.Unreadable},
		"the certificate is far too large":          {certificate, holds(make([]byte, 1<<20)), identity.TooLarge},
		"the certificate is empty":                  {certificate, holds(nil), identity.Malformed},
		"the certificate was cut off":               {certificate, holds(encode("CERTIFICATE", []byte{0x30, 0x82})), identity.Malformed},
		"the key file holds no key":                 {key, holds([]byte("hello")), identity.Malformed},
		"the key is encrypted":                      {key, holds(encode("ENCRYPTED PRIVATE KEY", []byte{0x30, 0x82})), identity.Malformed},
		"the key belongs to another certificate":    {key, holds(expect.Value(other.KeyPEM())(t)), identity.KeyMismatch},
		"ID-19 the trust bundle holds no anchor":    {bundle, holds([]byte(`{"keys":[]}`)), identity.Malformed},
		"ID-25 the key can be read by the group":    {key, mode(0o640), identity.KeyExposed},
		"ID-25 the key can be written by the group": {key, mode(0o620), identity.KeyExposed},
		"the certificate is that of a WFM":          {certificate, isOf(wfm), identity.NotClient},
		"the certificate is no SVID":                {certificate, isOf(bare), identity.NotClient},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			files := device(t, a)
			file := *test.file(&files)
			test.spoil(t, file)
			_, err := identity.Load(options(files))
			expect.Equal(t, reasonOf(t, err), test.reason, "reason of %v", err)
			if !strings.HasPrefix(err.Error(), file+": ") || strings.Count(err.Error(), file) != 1 {
				t.Errorf("error %q does not name %s, once and first", err, file)
			}
			expect.Equal(t, errors.Is(err, fs.ErrNotExist), test.reason == identity.Missing, "error %v is fs.ErrNotExist", err)
		})
	}
}

func TestKeysAreReadInEveryCommonForm(t *testing.T) {
	a := authority(t)
	rsaKey := rsa3072().(*rsa.PrivateKey)
	ecKey := expect.Value(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	tests := map[string]struct {
		svid *pki.SVID
		key  []byte
	}{
		"SEC 1 behind its parameters": {
			expect.Value(a.IssueClient("one", "ec", pki.Key(ecKey)))(t),
			append(encode("EC PARAMETERS", []byte{6, 8, 42}), encode("EC PRIVATE KEY", expect.Value(x509.MarshalECPrivateKey(ecKey))(t))...),
		},
		"PKCS 1": {
			expect.Value(a.IssueClient("one", "rsa", pki.Key(rsaKey)))(t),
			encode("RSA PRIVATE KEY", x509.MarshalPKCS1PrivateKey(rsaKey)),
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			files := expect.Value(pki.WriteFiles(t.TempDir(), test.svid, a.Bundle()))(t)
			write(t, files.Key, test.key)
			warns(t, expect.Value(identity.Load(options(files)))(t), "")
		})
	}
}

// What the clock makes of the certificate is shown by TestID09ErrorsNameAWrongClock.
func TestWarningsTellWhatWillKeepTheDeviceOffline(t *testing.T) {
	a := authority(t)
	stranger := expect.Value(pki.NewAuthority(domain, noon))(t)
	tests := map[string]struct {
		bundle *identity.TrustBundle
		device []pki.Option
		want   identity.Reason
	}{
		"the bundle is of another authority": {stranger.Bundle(), nil, identity.Untrusted},
		"the certificate may sign":           {a.Bundle(), []pki.Option{pki.IsCA}, identity.NotALeaf},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			svid := expect.Value(a.IssueClient("one", "gw", test.device...))(t)
			files := expect.Value(pki.WriteFiles(t.TempDir(), svid, test.bundle))(t)
			warns(t, expect.Value(identity.Load(options(files)))(t), test.want)
		})
	}
}

func remove(t *testing.T, path string) {
	t.Helper()
	check(t, os.Remove(path))
}

// folder puts a folder in the place of a file.
func folder(t *testing.T, path string) {
	t.Helper()
	check(t, errors.Join(os.Remove(path), os.Mkdir(path, 0o700)))
}

func write(t *testing.T, path string, data []byte) {
	t.Helper()
	check(t, os.WriteFile(path, data, 0o600))
}

func chmod(t *testing.T, path string, mode fs.FileMode) {
	t.Helper()
	check(t, os.Chmod(path, mode))
}

func TestID06WFMIDsMayBeConfigured(t *testing.T) {
	a := authority(t)
	const own = "spiffe://factory.example/plant/gw-07" // nothing follows from it
	tests := map[string]struct {
		device string
		ids    []string
		want   string          // WFMID
		reason identity.Reason // "": loaded
	}{
		"instead of the derived one":          {"spiffe://factory.example/margo/wfm/one/client/c", []string{"spiffe://factory.example/fleet"}, "spiffe://factory.example/fleet", ""},
		"the first names the WFM":             {own, []string{"spiffe://factory.example/b", "spiffe://factory.example/a"}, "spiffe://factory.example/b", ""},
		"needed where nothing follows":        {own, nil, "", identity.NotClient},
		"of another trust domain":             {own, []string{"spiffe://factory.example/a", "spiffe://other.example/a"}, "", identity.Misconfigured},
		"a trust domain alone":                {own, []string{"spiffe://factory.example"}, "", identity.Misconfigured},
		"no SPIFFE ID":                        {own, []string{"https://factory.example/a"}, "", identity.Misconfigured},
		"empty":                               {own, []string{""}, "", identity.Misconfigured},
		"a trust domain that differs in case": {own, []string{"spiffe://Factory.example/a"}, "", identity.Misconfigured},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			o := options(expect.Value(pki.WriteFiles(t.TempDir(), expect.Value(a.Issue(test.device))(t), a.Bundle()))(t))
			o.WFMIDs = test.ids
			i, err := identity.Load(o)
			if test.reason != "" {
				expect.Equal(t, reasonOf(t, err), test.reason, "reason of %v", err)
				return
			}
			check(t, err)
			expect.Equal(t, i.WFMID(), test.want, "WFMID")
			expect.Equal(t, i.ClientID(), test.device, "ClientID")
			warns(t, i, "")
			connect := func(id string) exchange {
				return call(t, i, &tls.Config{Certificates: []tls.Certificate{expect.Value(a.Issue(id))(t).TLS()}})
			}
			for _, id := range test.ids {
				expect.OK(t, connect(id).err)
			}
			connect("spiffe://factory.example/margo/wfm/one").refuse(t, identity.OtherIdentity)
		})
	}
}

func TestID09ErrorsNameAWrongClock(t *testing.T) {
	day := 24 * time.Hour
	a := authority(t)
	tests := map[string]struct {
		now    time.Time // with the lower bound
		wrong  bool
		reason identity.Reason
		mend   string
	}{
		"not valid yet, nothing is known of the clock": {noon.Add(-30 * day), false, identity.NotYetValid, "set this device's clock"},
		"expired, even at the lower bound":             {noon.Add(100 * day), true, identity.Expired, "renew the certificate, and"},
		"expired, nothing is known of the clock":       {noon.Add(100 * day), false, identity.Expired, "check this device's clock"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			o := options(device(t, a))
			o.Now = clock(test.now)
			o.WrongClock = func() (time.Time, bool) { return test.now, test.wrong }
			i := expect.Value(identity.Load(o))(t)
			result := call(t, i, &tls.Config{Certificates: []tls.Certificate{expect.Value(a.IssueWFM("one"))(t).TLS()}})
			for _, err := range []error{i.Warnings()[0], result.err} {
				expect.Equal(t, reasonOf(t, err), test.reason, "reason of %v", err)
				var known *identity.Error
				errors.As(err, &known)
				expect.Contains(t, known.Mend(), test.mend, "mend")
				expect.Equal(t, strings.Contains(err.Error(), "clock is wrong"), test.wrong, "error %q", err)
			}
		})
	}
}

// A device that lost its clock knows no more than that some time is past. Who
// got a certificate since then is let in, and tells it the time.
func TestID09AWrongClockKeepsNobodyOut(t *testing.T) {
	a := authority(t)
	day := 24 * time.Hour
	issued := func(from, to time.Duration) []pki.Option {
		return []pki.Option{pki.Valid(noon.Add(from), noon.Add(to))}
	}
	tests := map[string]struct {
		wrong  bool
		own    []pki.Option
		peer   []pki.Option
		reason identity.Reason // empty: it is let in
	}{
		"both were issued since":             {true, issued(day, 90*day), issued(2*day, 9*day), ""},
		"the WFM's was issued since":         {true, issued(-day, 90*day), issued(day, 2*day), ""},
		"the WFM's has expired by any clock": {true, issued(day, 90*day), issued(-9*day, -day), identity.Expired},
		"the clock may be right":             {false, issued(-day, 90*day), issued(day, 9*day), identity.NotYetValid},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			o := options(device(t, a, test.own...))
			o.Now = clock(noon)
			o.WrongClock = func() (time.Time, bool) { return noon, test.wrong }
			i := expect.Value(identity.Load(o))(t)
			result := call(t, i, &tls.Config{Certificates: []tls.Certificate{expect.Value(a.IssueWFM("one", test.peer...))(t).TLS()}})
			if test.reason != "" {
				expect.Equal(t, reasonOf(t, result.err), test.reason, "reason of %v", result.err)
				return
			}
			expect.OK(t, result.err)
			warns(t, i, "")
		})
	}
}

func TestExpiryIsNoticedEarly(t *testing.T) {
	day := 24 * time.Hour
	a := authority(t)
	tests := map[string]struct {
		life time.Duration
		left time.Duration
		soon bool
	}{
		"a third of three months":     {90 * day, 30 * day, false},
		"less than a third":           {90 * day, 30*day - time.Second, true},
		"less than a month of a year": {365 * day, 29 * day, true},
		"an hour of a day":            {day, time.Hour, true},
		"its last moment":             {90 * day, 0, true},
		"expired":                     {90 * day, -time.Second, false},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			i := expect.Value(identity.Load(options(device(t, a, pki.Valid(noon, noon.Add(test.life))))))(t)
			want := identity.Expiry{NotAfter: noon.Add(test.life), Left: test.left, Soon: test.soon}
			expect.Equal(t, i.Expiry(noon.Add(test.life-test.left)), want, "Expiry")
		})
	}
}

var check = expect.Check
