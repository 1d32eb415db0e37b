package pki_test

import (
	"crypto/x509"
	"slices"
	"testing"
	"time"

	"github.com/margolite/margolite/test/pki"
)

func TestServersAreKnownByNamesAndAddresses(t *testing.T) {
	now := time.Now()
	authority, err := pki.NewServerAuthority("Public", now)
	if err != nil {
		t.Fatal(err)
	}
	text, err := authority.PEM()
	if err != nil {
		t.Fatal(err)
	}
	if authority, err = pki.ParseServerAuthority(text, now); err != nil {
		t.Fatal(err)
	}
	hosts := []string{"wfm.example", "192.0.2.1", "::1"}
	certificate, err := authority.IssueServer(hosts)
	if err != nil {
		t.Fatal(err)
	}
	for host, good := range map[string]bool{"wfm.example": true, "192.0.2.1": true, "::1": true, "other.example": false} {
		_, err := certificate.Chain[0].Verify(x509.VerifyOptions{DNSName: host, Roots: authority.Pool(), CurrentTime: now})
		if (err == nil) != good {
			t.Errorf("%s: %v", host, err)
		}
	}
	for _, flaw := range authority.Flaws() {
		flawed, err := authority.IssueFlawed(hosts, flaw)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := flawed.Leaf.Verify(x509.VerifyOptions{DNSName: "wfm.example", Roots: authority.Pool(), CurrentTime: now}); err == nil {
			t.Errorf("%s: verified", flaw)
		}
	}
	if _, err := authority.IssueFlawed(hosts, string(pki.NoURI)); err == nil || slices.Contains(authority.Flaws(), string(pki.NoURI)) {
		t.Error("a flaw of SVIDs was issued")
	}
	if pool := authority.RootPEM(); len(pool) == 0 {
		t.Error("no root")
	}
}
