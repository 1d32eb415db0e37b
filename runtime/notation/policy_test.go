package notation_test

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/notaryproject/notation-core-go/signature"

	"github.com/margolite/margolite/runtime/notation"
	"github.com/margolite/margolite/test/expect"
)

// A policy counts for the repositories that it names, or else the one for all others; and says what is enforced, and of
// whom a signature may be.
func TestTrustPoliciesSayWhatCounts(t *testing.T) {
	app := artifact("app")
	root := issue(t, nil, "p256", "root", nil)
	signer := issue(t, root, "p256", "signer", nil)
	expired := sign(t, signer, notation.JWSType, app, func(r *signature.SignRequest) {
		r.SigningTime = r.SigningTime.Add(-time.Hour)
		r.Expiry = r.SigningTime.Add(time.Minute)
	})
	good := sign(t, signer, notation.JWSType, app, nil)
	for name, c := range map[string]struct {
		policy   string
		envelope []byte
		why      string // empty: it counts
	}{
		"all is enforced":       {strictly(""), expired, "it expired on"},
		"expiry is logged":      {strictly(`,"override":{"expiry":"log"}`), expired, ""},
		"expiry is enforced":    {policyOf(`"*"`, `{"level":"permissive","override":{"expiry":"enforce"}}`, `"*"`), expired, "it expired on"},
		"nothing is enforced":   {policyOf(`"*"`, `{"level":"audit"}`, `"*"`), good, "does not enforce authenticity"},
		"who it is, is logged":  {strictly(`,"override":{"authenticity":"log"}`), good, "does not enforce authenticity"},
		"timestamps are wanted": {strictly(`,"verifyTimestamp":"afterCertExpiry"`), good, ""},
		"nothing is verified": {
			`{"version":"1.0","trustPolicies":[{"name":"none","registryScopes":["` + repository + `"],"signatureVerification":{"level":"skip"}}]}`,
			good, "trust policy none does not enforce authenticity",
		},
		"its repository": {policyOf(`"registry.example/other","`+repository+`"`, `{"level":"strict"}`, `"*"`), good, ""},
		"its repository, not all": {
			strings.Replace(strictly(""), `"trustPolicies":[`, `"trustPolicies":[{"name":"none","registryScopes":["`+repository+`"],"signatureVerification":{"level":"skip"}},`, 1),
			good, "trust policy none does not enforce authenticity",
		},
		"who signed":           {policyOf(`"*"`, `{"level":"strict"}`, `"x509.subject: CN=other,C=DE,ST=Berlin,O=Margo","x509.subject: C=DE, S = Berlin , O=Margo\\, Example"`), good, ""},
		"who did not sign":     {policyOf(`"*"`, `{"level":"strict"}`, `"x509.subject: C=DE,ST=Berlin,O=Margo\\, Example,CN=other"`), good, "not a trusted identity"},
		"somebody else's name": {policyOf(`"*"`, `{"level":"strict"}`, `"x509.subject: C=DE,ST=Berlin,O=Margo"`), good, "not a trusted identity"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, _, err := verify(t, configure(t, root, c.policy), notation.JWSType, c.envelope, app, 0); (err == nil) != (c.why == "") || !strings.Contains(fmt.Sprint(err), c.why) {
				t.Errorf("%v; want %q", err, c.why)
			}
		})
	}
	v, err := notation.Open(configure(t, root, policyOf(`"registry.example/vendor"`, `{"level":"strict"}`, `"*"`)), repository, time.Now(), slog.New(slog.DiscardHandler))
	expect.True(t, v == nil && err == nil, "no policy applies: %v, %v", v, err)
}

// A configuration that cannot be meant, or that Notation would not take, is refused as a whole.
func TestConfigurationsThatAreRefused(t *testing.T) {
	root := issue(t, nil, "p256", "root", nil)
	identity := func(text string) string { return policyOf(`"*"`, `{"level":"strict"}`, text) }
	for name, c := range map[string]struct {
		policy string // empty: a good one
		change func(t *testing.T, dir string)
		why    string // empty: it is good
	}{
		"it is good":            {},
		"newer name":            {policy: "none", change: func(t *testing.T, dir string) { write(t, []byte(strictly("")), dir, "trustpolicy.oci.json") }},
		"DER":                   {change: func(t *testing.T, dir string) { write(t, root.Chain[0].Raw, dir, "truststore/x509/ca/site/a.crt") }},
		"directories below":     {change: func(t *testing.T, dir string) { write(t, nil, dir, "truststore/x509/ca/site/below/x") }},
		"no JSON":               {policy: "none", why: "invalid character"},
		"another version":       {policy: `{"version":"2.0","trustPolicies":[]}`, why: `version: expected 1.0, got "2.0"`},
		"an unknown member":     {policy: strictly(`,"revocationMode":"x"`), why: `unknown field "revocationMode"`},
		"no scope":              {policy: policyOf(``, `{"level":"strict"}`, `"*"`), why: "registryScopes"},
		"all and one":           {policy: policyOf(`"*","a.example/b"`, `{"level":"strict"}`, `"*"`), why: "registryScopes"},
		"a scope twice":         {policy: policyOf(`"a.example/b","a.example/b"`, `{"level":"strict"}`, `"*"`), why: "another policy has a.example/b"},
		"no level":              {policy: policyOf(`"*"`, `{}`, `"*"`), why: "signatureVerification.level"},
		"all is skipped":        {policy: policyOf(`"*"`, `{"level":"skip"}`, `"*"`), why: "not to skip"},
		"skip with a store":     {policy: policyOf(`"a.example/b"`, `{"level":"skip"}`, `"*"`), why: "required, except to skip"},
		"integrity is logged":   {policy: strictly(`,"override":{"integrity":"log"}`), why: `unknown "integrity": "log"`},
		"expiry is skipped":     {policy: strictly(`,"override":{"expiry":"skip"}`), why: `unknown "expiry": "skip"`},
		"no identity":           {policy: identity(``), why: "required, except to skip"},
		"any and one":           {policy: identity(`"*","x509.subject: C=DE,ST=B,O=M"`), why: "trustedIdentities"},
		"another kind":          {policy: identity(`"x509.san: C=DE,ST=B,O=M"`), why: "trustedIdentities"},
		"too little of a name":  {policy: identity(`"x509.subject: C=DE,O=M"`), why: "C, ST and O are required"},
		"an attribute twice":    {policy: identity(`"x509.subject: C=DE,ST=B,O=M,O=N"`), why: "each once"},
		"no attribute":          {policy: identity(`"x509.subject: C=DE,ST=B,O=M,x"`), why: "each once"},
		"a cut escape":          {policy: identity(`"x509.subject: C=DE,ST=B,O=M,CN=a\\"`), why: "nothing to escape"},
		"multi-valued":          {policy: identity(`"x509.subject: C=DE,ST=B,O=M+CN=a"`), why: "multi-valued"},
		"binary":                {policy: identity(`"x509.subject: C=DE,ST=B,O=M,CN=#61"`), why: "binary"},
		"a store elsewhere":     {policy: strings.Replace(strictly(""), "ca:site", "ca:../site", 1), why: "trustStores"},
		"a store of no kind":    {policy: strings.Replace(strictly(""), "ca:site", "site", 1), why: "trustStores"},
		"a store that is not":   {policy: strings.Replace(strictly(""), "ca:site", "ca:other", 1), why: "truststore/x509/ca/other"},
		"no certificate":        {change: func(t *testing.T, dir string) { write(t, []byte("x"), dir, "truststore/x509/ca/site/b.pem") }, why: "truststore/x509/ca/site/b.pem"},
		"no revocation list":    {change: func(t *testing.T, dir string) { write(t, []byte("x"), dir, "crl/x") }, why: "crl/x"},
		"a linked certificate":  {change: link("truststore/x509/ca/site/root.pem", "truststore/x509/ca/site/link.pem"), why: "link.pem: expected a file"},
		"a linked store":        {policy: strings.Replace(strictly(""), "ca:site", "ca:link", 1), change: link("truststore/x509/ca/site", "truststore/x509/ca/link"), why: "expected a directory"},
		"a linked trust policy": {change: link("trustpolicy.json", "trustpolicy.oci.json"), why: "trustpolicy.oci.json: expected a file"},
	} {
		t.Run(name, func(t *testing.T) {
			if c.policy == "" {
				c.policy = strictly("")
			}
			dir := configure(t, root, c.policy)
			if c.change != nil {
				c.change(t, dir)
			}
			n, err := notation.Check(dir)
			if c.why == "" && (n != 1 || err != nil) || c.why != "" && (err == nil || !strings.Contains(err.Error(), c.why)) {
				t.Errorf("%d policies, %v; want %q", n, err, c.why)
			}
			if v, opened := notation.Open(dir, repository, time.Now(), slog.New(slog.DiscardHandler)); (opened == nil) != (err == nil) && v != nil {
				t.Errorf("opened: %v", opened)
			}
		})
	}
	expect.ErrorWith(t, expect.ErrorOf(notation.Check(t.TempDir())), "trustpolicy.json", "no trust policy")
}

// link makes a link, both paths below the configuration.
func link(to, at string) func(*testing.T, string) {
	return func(t *testing.T, dir string) {
		check(t, os.Symlink(filepath.Join(dir, to), filepath.Join(dir, at)))
	}
}
