package identity_test

import (
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"strings"
	"testing"

	"github.com/margolite/margolite/agent/identity"
	"github.com/margolite/margolite/test/expect"
	"github.com/margolite/margolite/test/pki"
)

func encode(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}

func TestID19TrustBundleIsReadAsJWKSetAndAsPEM(t *testing.T) {
	a, b := authority(t), authority(t)
	der := base64.StdEncoding.EncodeToString(a.Root.Raw)
	entry := `{"kty":"EC","crv":"P-256","x":"AA","y":"AA","use":"x509-svid","x5c":["` + der + `"]}`
	tests := map[string]struct {
		data    string
		anchors int // 0: refused
	}{
		"a SPIFFE bundle":                             {`{"keys":[` + entry + `]}`, 1},
		"behind white space":                          {"\n  " + `{"keys":[` + entry + `]}`, 1},
		"ERR-07 with members nobody knows":            {`{"x":{},"keys":[` + strings.Replace(entry, `"kty"`, `"y2":1,"kty"`, 1) + `]}`, 1},
		"ID-20 with a JWT key beside":                 {`{"keys":[{"kty":"EC","use":"jwt-svid","kid":"k"},` + entry + `]}`, 1},
		"ID-20 with another use whose x5c is broken":  {`{"keys":[{"use":"wit-svid","x5c":["!"]},` + entry + `]}`, 1},
		"ID-20 with other uses whose members are odd": {`{"keys":[{"use":"x","x5c":"AA","kty":7},{"use":7},{},` + entry + `]}`, 1},
		"a key that is no object":                     {`{"keys":[7,` + entry + `]}`, 0},
		"hints that nobody understands":               {`{"spiffe_sequence":-1,"spiffe_refresh_hint":"soon","keys":[` + entry + `]}`, 1},
		"two anchors during a rotation":               {`{"keys":[` + entry + `,` + entry + `]}`, 2},
		"PEM":                                         {string(a.BundlePEM()) + string(b.BundlePEM()), 2},
		"a SPIFFE bundle behind a byte order mark":    {"\ufeff" + `{"keys":[` + entry + `]}`, 1},
		"PEM behind a byte order mark":                {"\ufeff" + string(a.BundlePEM()) + string(b.BundlePEM()), 2},
		"PEM joined without a line break":             {strings.TrimSpace(string(a.BundlePEM())) + string(b.BundlePEM()), 2},
		"PEM with comments between":                   {"# root\n" + string(a.BundlePEM()), 1},
		"ID-19 no keys":                               {`{"keys":[]}`, 0},
		"ID-19 only keys for JWT-SVIDs":               {`{"keys":[{"kty":"EC","use":"jwt-svid"}]}`, 0},
		"a key without use":                           {strings.Replace(`{"keys":[`+entry+`]}`, `"use":"x509-svid",`, "", 1), 0},
		"an X.509 key without certificate":            {`{"keys":[{"use":"x509-svid"}]}`, 0},
		"an X.509 key with two certificates":          {`{"keys":[{"use":"x509-svid","x5c":["` + der + `","` + der + `"]}]}`, 0},
		"one broken anchor beside a good one":         {`{"keys":[` + entry + `,{"use":"x509-svid","x5c":["AAAA"]}]}`, 0},
		"base64url where base64 belongs":              {`{"keys":[{"use":"x509-svid","x5c":["_-_-"]}]}`, 0},
		"JSON cut off":                                {`{"keys":[` + entry, 0},
		"more than one document":                      {`{"keys":[` + entry + `]} {}`, 0},
		"nothing":                                     {"", 0},
		"a page of a captive portal":                  {"<html></html>", 0},
		"more anchors than anyone has":                {`{"keys":[` + strings.Repeat(entry+",", 64) + entry + `]}`, 0},
		"more PEM anchors than anyone has":            {strings.Repeat(string(a.BundlePEM()), 65), 0},
		"larger than a megabyte":                      {`{"keys":[` + entry + `]}` + strings.Repeat(" ", 1<<20), 0},
		"a private key where certificates should be":  {string(encode("PRIVATE KEY", []byte{1})), 0},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			bundle, err := identity.ParseTrustBundle([]byte(test.data))
			if err != nil {
				bundle = &identity.TrustBundle{}
			}
			if n := len(bundle.Anchors); n != test.anchors || (err == nil) != (n > 0) || n > 0 && !bundle.Anchors[0].Equal(a.Root) {
				t.Errorf("%d anchors, %v; want %d", n, err, test.anchors)
			}
		})
	}
}

func TestID26SPIFFEIDsOfTheTwoForms(t *testing.T) {
	tests := map[string]struct {
		in   string
		want identity.ID
		ok   bool
	}{
		"a WFM":                       {"spiffe://f.example/margo/wfm/w-1", identity.ID{TrustDomain: "f.example", WFM: "w-1"}, true},
		"a client":                    {"spiffe://f.example/margo/wfm/w/client/c_1.x", identity.ID{TrustDomain: "f.example", WFM: "w", Client: "c_1.x"}, true},
		"a WFM called client":         {"spiffe://f.example/margo/wfm/client", identity.ID{TrustDomain: "f.example", WFM: "client"}, true},
		"letters in upper case":       {"spiffe://f.example/margo/wfm/W", identity.ID{TrustDomain: "f.example", WFM: "W"}, true},
		"nothing":                     {in: ""},
		"the domain alone":            {in: "spiffe://f.example"},
		"another path":                {in: "spiffe://f.example/workload/w"},
		"the prefix alone":            {in: "spiffe://f.example/margo/wfm"},
		"four segments":               {in: "spiffe://f.example/margo/wfm/w/client"},
		"six segments":                {in: "spiffe://f.example/margo/wfm/w/client/c/d"},
		"another word for client":     {in: "spiffe://f.example/margo/wfm/w/Client/c"},
		"an empty segment":            {in: "spiffe://f.example/margo/wfm//client/c"},
		"an escape":                   {in: "spiffe://f.example/margo/wfm/w%2fx"},
		"another scheme":              {in: "https://f.example/margo/wfm/w"},
		"longer than SPIFFE allows":   {in: "spiffe://f.example/margo/wfm/" + strings.Repeat("w", 2048)},
		"an empty client after slash": {in: "spiffe://f.example/margo/wfm/w/client/"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := identity.ParseSPIFFEID(test.in)
			if (err == nil) != test.ok || got != test.want || test.ok && got.String() != test.in {
				t.Errorf("ParseSPIFFEID(%q) = %+v, which is %q, %v", test.in, got, got.String(), err)
			}
		})
	}
}

func FuzzParseTrustBundle(f *testing.F) {
	a := expect.Value(pki.NewAuthority(domain, noon))(f)
	f.Add(expect.Value(a.BundleJSON())(f))
	f.Add(a.BundlePEM())
	f.Add([]byte(`{"keys":[{"use":"x509-svid","x5c":["AAAA"]}],"spiffe_refresh_hint":18446744073709551615}`))
	f.Add([]byte(`{"keys":[{"use":"jwt-svid","x5c":1},{"use":null},7],"spiffe_sequence":1.5,"spiffe_refresh_hint":"x"}`))
	f.Add([]byte("# a comment\n" + string(a.BundlePEM()) + string(a.BundlePEM())))
	f.Add([]byte("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----"))
	f.Fuzz(func(t *testing.T, data []byte) {
		bundle, err := identity.ParseTrustBundle(data)
		if err != nil {
			return
		}
		if len(bundle.Anchors) == 0 || bundle.RefreshHint < 0 {
			t.Fatalf("accepted with %d anchors, refresh hint %s", len(bundle.Anchors), bundle.RefreshHint)
		}
		data, err = pki.MarshalBundle(bundle)
		if err != nil {
			return // an anchor with a key that a JWK cannot express
		}
		again := expect.Value(identity.ParseTrustBundle(data))(t)
		expect.Equal(t, again.Anchors[0].Raw, bundle.Anchors[0].Raw, "anchor after a round trip")
	})
}

func FuzzParseSPIFFEID(f *testing.F) {
	f.Add("spiffe://f.example/margo/wfm/w")
	f.Add("spiffe://f.example/margo/wfm/w/client/c")
	f.Add("spiffe://f.example/margo/wfm/../client/c")
	f.Fuzz(func(t *testing.T, s string) {
		id, err := identity.ParseSPIFFEID(s)
		if err != nil {
			return
		}
		expect.Require(t, id.String() == s && !strings.ContainsAny(s, "%?#@~ "), "accepted %q as %q", s, id)
	})
}

func ExampleError_Mend() {
	_, err := identity.Load(identity.Options{Certificate: "/nowhere/device.pem"})
	if e, ok := err.(*identity.Error); ok {
		fmt.Printf("error: %v\nhint: %s\n", e, e.Mend())
	}
	// Output:
	// error: /nowhere/device.pem: cannot read file: no such file or directory
	// hint: put the file in place, or correct its path in the configuration
}
