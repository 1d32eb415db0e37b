package margo_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/margolite/margolite/agent/margo"
	"github.com/margolite/margolite/test/expect"
)

func TestID18DiscoveryDocumentIsCheckedAndUnknownMembersIgnored(t *testing.T) {
	const uri = "https://mis.factory.example/bundle.json"
	tests := map[string]struct {
		body string
		want string // the rule that it is refused by, if there is one; "": accepted
	}{
		"as published":           {`{"trustDomain":"factory.example","trustBundleUri":"` + uri + `"}`, ""},
		"ERR-07 unknown members": {`{"x":{"y":[1]},"trustDomain":"factory.example","trustBundleUri":"` + uri + `","trustbundleuri":"http://x"}`, ""},
		"a port and a query":     {`{"trustDomain":"f","trustBundleUri":"https://[::1]:8443/b?d=f"}`, ""},
		"plain http":             {`{"trustDomain":"f","trustBundleUri":"http://mis/b"}`, "ID-18"},
		"a file":                 {`{"trustDomain":"f","trustBundleUri":"file:///etc/passwd"}`, "ID-18"},
		"a relative URL":         {`{"trustDomain":"f","trustBundleUri":"/bundle.json"}`, "ID-18"},
		"no host":                {`{"trustDomain":"f","trustBundleUri":"https:///bundle.json"}`, "ID-18"},
		"an opaque URL":          {`{"trustDomain":"f","trustBundleUri":"https:bundle.json"}`, "ID-18"},
		"a user":                 {`{"trustDomain":"f","trustBundleUri":"https://u:p@mis/b"}`, "ID-18"},
		"a fragment":             {`{"trustDomain":"f","trustBundleUri":"https://mis/b#x"}`, "ID-18"},
		"a line break":           {`{"trustDomain":"f","trustBundleUri":"https://mis/b\nHost: x"}`, "ID-18"},
		"no trust domain":        {`{"trustBundleUri":"` + uri + `"}`, "ID-18"},
		"an empty trust domain":  {`{"trustDomain":"","trustBundleUri":"` + uri + `"}`, "ID-18"},
		"no URI":                 {`{"trustDomain":"f"}`, "A-60"},
		"the same member twice":  {`{"trustDomain":"f","trustBundleUri":"` + uri + `","trustBundleUri":"https://evil/"}`, "not JSON"},
		"a page of a portal":     {`<html></html>`, "not JSON"},
		"a list":                 {`[]`, "ID-18"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			d, err := margo.ParseDiscoveryDocument([]byte(test.body))
			if test.want == "" {
				check(t, err)
				expect.True(t, d.TrustDomain != "" && strings.HasPrefix(d.TrustBundleURI, "https://"), "read %+v", d)
				return
			}
			expect.Require(t, err != nil, "accepted: %+v", d)
			expect.True(t, !strings.Contains(err.Error(), "u:p@"), "error shows a password: %v", err)
			if test.want != "not JSON" && !slices.Contains(requirements(err), test.want) {
				t.Errorf("refused by %v, want %s", err, test.want)
			}
		})
	}
}

func FuzzParseDiscoveryDocument(f *testing.F) {
	f.Add(document(f, "valid/from-text/DiscoveryDocument.json"))
	f.Add([]byte(`{"trustDomain":"f","trustBundleUri":"http://mis/b"}`))
	f.Add([]byte(`{"trustDomain":1,"trustBundleUri":null}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		d, err := margo.ParseDiscoveryDocument(body)
		if err != nil {
			return
		}
		expect.Require(t, d.TrustDomain != "" && strings.HasPrefix(strings.ToLower(d.TrustBundleURI), "https://"), "accepted %+v", d)
	})
}
