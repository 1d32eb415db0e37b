package identity_test

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/margolite/margolite/agent/identity"
	"github.com/margolite/margolite/test/expect"
	"github.com/margolite/margolite/test/pki"
)

// RSA keys are made once, which takes a while.
var (
	rsa2048 = sync.OnceValue(func() crypto.Signer { return expect.Must(rsa.GenerateKey(rand.Reader, 2048)) })
	rsa3072 = sync.OnceValue(func() crypto.Signer { return expect.Must(rsa.GenerateKey(rand.Reader, 3072)) })
)

// exchange is how a request of a device to a server went, from both sides.
type exchange struct {
	seen     []*x509.Certificate // of the device, by the server
	requests int                 // that reached the server
	resumed  bool
	state    tls.ConnectionState // on the device, if it was answered
	err      error               // on the device
}

// call makes the device send a request to a TLS server on a real socket.
func call(t *testing.T, i *identity.Identity, config *tls.Config) exchange {
	t.Helper()
	return callWith(t, i.TLS(), config)
}

func callWith(t *testing.T, device, config *tls.Config) exchange {
	t.Helper()
	var result exchange
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { result.requests++ }))
	server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, 0)
	server.TLS = config.Clone()
	if server.TLS.ClientAuth == tls.NoClientCert {
		server.TLS.ClientAuth = tls.RequireAnyClientCert
	}
	server.TLS.NextProtos = []string{"h2", "http/1.1"}
	server.TLS.VerifyConnection = func(state tls.ConnectionState) error {
		result.seen, result.resumed = state.PeerCertificates, state.DidResume
		return nil
	}
	server.StartTLS()
	transport := &http.Transport{TLSClientConfig: device}
	response, err := transport.RoundTrip(expect.Value(http.NewRequest(http.MethodGet, server.URL, nil))(t))
	if err == nil {
		response.Body.Close()
		result.state = *response.TLS
	}
	transport.CloseIdleConnections()
	server.Close() // waits for what it does
	result.err = err
	return result
}

// refuse checks that the device kept everything to itself.
func (e exchange) refuse(t *testing.T, want identity.Reason) {
	t.Helper()
	expect.Equal(t, reasonOf(t, e.err), want, "reason of %v", e.err)
	e.keptQuiet(t)
}

func (e exchange) keptQuiet(t *testing.T) {
	t.Helper()
	expect.Equal(t, len(e.seen), 0, "the device showed its certificate to a server that it refused")
	expect.Equal(t, e.requests, 0, "requests reached a server that was refused")
}

// A server that is not the own WFM gets neither the device's certificate nor a
// byte of the request. The own one gets the leaf and its intermediates (ID-01, ID-03).
func TestID05OnlyTheOwnWFMIsSpokenTo(t *testing.T) {
	a := authority(t)
	elsewhere := expect.Value(pki.NewAuthority("other.example", noon))(t)
	stranger := expect.Value(pki.NewAuthority(domain, noon))(t)
	day := 24 * time.Hour

	issuer := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("the issuer is asked") }))
	defer issuer.Close()
	bare := expect.Value(a.IssueWFM("one", pki.IssuerURL(issuer.URL+"/issuer.der")))(t)
	bare.Chain = bare.Chain[:1]
	long := expect.Value(a.IssueWFM("one"))(t)
	for len(long.Chain) < 11 {
		long.Chain = append(long.Chain, a.Intermediate)
	}
	rooted := expect.Value(a.IssueWFM("one"))(t)
	rooted.Chain = append(rooted.Chain, a.Root)

	tests := map[string]struct {
		server *pki.SVID
		want   identity.Reason // "": accepted
	}{
		"ID-01, ID-03, ID-05 the own WFM":                   {expect.Value(a.IssueWFM("one"))(t), ""},
		"ID-07, ID-27 the own WFM under any DNS name":       {expect.Value(a.IssueWFM("one", pki.Hosts("nowhere.invalid")))(t), ""},
		"ID-05 the own WFM without any key usage":           {expect.Value(a.IssueWFM("one", pki.NoKeyUsage, pki.ExtKeyUsage()))(t), ""},
		"ID-05 the own WFM without extended key usage":      {expect.Value(a.IssueWFM("one", pki.ExtKeyUsage()))(t), ""},
		"ID-05 the own WFM for client authentication only":  {expect.Value(a.IssueWFM("one", pki.ExtKeyUsage(x509.ExtKeyUsageClientAuth)))(t), ""},
		"ID-05 the root is presented, too":                  {rooted, ""},
		"ID-09 valid from in three minutes on":              {expect.Value(a.IssueWFM("one", pki.Valid(noon.Add(3*time.Minute), noon.Add(day))))(t), ""},
		"ID-09 valid from in an hour on":                    {expect.Value(a.IssueWFM("one", pki.Valid(noon.Add(time.Hour), noon.Add(day))))(t), identity.NotYetValid},
		"ID-09 expired a minute ago":                        {expect.Value(a.IssueWFM("one", pki.Valid(noon.Add(-day), noon.Add(-time.Minute))))(t), identity.Expired},
		"ID-06 another WFM of the trust domain":             {expect.Value(a.IssueWFM("two"))(t), identity.OtherIdentity},
		"ID-26 a WFM that differs in case only":             {expect.Value(a.IssueWFM("One"))(t), identity.OtherIdentity},
		"ID-26 a WFM whose name begins alike":               {expect.Value(a.IssueWFM("one-more"))(t), identity.OtherIdentity},
		"ID-06 a client of the own WFM":                     {expect.Value(a.IssueClient("one", "gw-08"))(t), identity.OtherIdentity},
		"ID-06 the device itself":                           {expect.Value(a.IssueClient("one", "gw-07"))(t), identity.OtherIdentity},
		"ID-06 a workload of the trust domain":              {expect.Value(a.Issue("spiffe://factory.example/workload"))(t), identity.OtherIdentity},
		"ID-05 a WFM of another trust domain":               {expect.Value(elsewhere.IssueWFM("one"))(t), identity.OtherTrustDomain},
		"ID-05 another trust domain from the own authority": {expect.Value(a.Issue("spiffe://other.example/margo/wfm/one"))(t), identity.OtherTrustDomain},
		"ID-05 the own name from another authority":         {expect.Value(stranger.IssueWFM("one"))(t), identity.Untrusted},
		"ID-08 no intermediate presented, nor fetched":      {bare, identity.Untrusted},
		"ID-05 a chain without end":                         {long, identity.NoSVID},
		"ID-05 two URI SANs":                                {expect.Value(a.IssueWFM("one", pki.URIs("spiffe://factory.example/margo/wfm/one", "spiffe://factory.example/margo/wfm/two")))(t), identity.NoSVID},
		"ID-05 the own URI SAN twice":                       {expect.Value(a.IssueWFM("one", pki.URIs("spiffe://factory.example/margo/wfm/one", "spiffe://factory.example/margo/wfm/one")))(t), identity.NoSVID},
		"ID-07 no URI SAN, but the right DNS name":          {expect.Value(a.IssueWFM("one", pki.URIs(), pki.Hosts("localhost")))(t), identity.NoSVID},
		"ID-07 no URI SAN, but the right address":           {expect.Value(a.IssueServer(pki.Hosts("127.0.0.1")))(t), identity.NoSVID},
		"ID-05 an https URI SAN":                            {expect.Value(a.IssueWFM("one", pki.URIs("https://factory.example/margo/wfm/one")))(t), identity.NoSVID},
		"ID-05 a trust domain alone":                        {expect.Value(a.IssueWFM("one", pki.URIs("spiffe://factory.example")))(t), identity.NoSVID},
		"ID-05 a leaf that is an authority":                 {expect.Value(a.IssueWFM("one", pki.IsCA))(t), identity.NotALeaf},
		"ID-05 a leaf that may sign certificates":           {expect.Value(a.IssueWFM("one", pki.KeyUsage(x509.KeyUsageCertSign)))(t), identity.NotALeaf},
		"ID-05 a leaf that may sign revocation lists":       {expect.Value(a.IssueWFM("one", pki.KeyUsage(x509.KeyUsageCRLSign)))(t), identity.NotALeaf},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			i := expect.Value(identity.Load(options(device(t, a))))(t)
			result := call(t, i, &tls.Config{Certificates: []tls.Certificate{test.server.TLS()}})
			if test.want != "" {
				result.refuse(t, test.want)
				return
			}
			check(t, result.err)
			id, err := pki.VerifyClient(result.seen, a.Bundle(), domain, noon)
			if err != nil || id.String() != i.ClientID() || len(result.seen) != 2 {
				t.Errorf("the server saw %s (%v) in %d certificates, want %s in 2", id, err, len(result.seen), i.ClientID())
			}
		})
	}
}

// Both sides have certificates of the same kind.
func TestID04KeysAndSignatures(t *testing.T) {
	p384 := expect.Value(ecdsa.GenerateKey(elliptic.P384(), rand.Reader))(t)
	_, ed, err := ed25519.GenerateKey(rand.Reader)
	check(t, err)
	tests := map[string]struct {
		issuer []pki.AuthorityOption
		leaf   []pki.Option
		want   identity.Reason // "": accepted
	}{
		"ID-04 ECDSA P-256":                            {},
		"ID-04 ECDSA P-384":                            {[]pki.AuthorityOption{pki.Signing(p384, x509.ECDSAWithSHA384)}, []pki.Option{pki.Key(p384)}, ""},
		"ID-04 Ed25519":                                {[]pki.AuthorityOption{pki.Signing(ed, x509.PureEd25519)}, []pki.Option{pki.Key(ed)}, ""},
		"ID-04 RSA 3072, signed with PSS":              {[]pki.AuthorityOption{pki.Signing(rsa3072(), x509.SHA256WithRSAPSS)}, []pki.Option{pki.Key(rsa3072())}, ""},
		"ID-04 RSA 3072, signed with PKCS #1 v1.5":     {[]pki.AuthorityOption{pki.Signing(rsa3072(), x509.SHA256WithRSA)}, []pki.Option{pki.Key(rsa3072())}, ""},
		"ID-04 RSA 2048":                               {nil, []pki.Option{pki.Key(rsa2048())}, identity.WeakKey},
		"ID-04 an authority with RSA 2048 and PSS":     {[]pki.AuthorityOption{pki.Signing(rsa2048(), x509.SHA256WithRSAPSS)}, nil, identity.WeakKey},
		"ID-04 an authority with RSA 2048 and PKCS #1": {[]pki.AuthorityOption{pki.Signing(rsa2048(), x509.SHA256WithRSA)}, nil, identity.WeakKey},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			a := expect.Value(pki.NewAuthority(domain, noon, test.issuer...))(t)
			i := expect.Value(identity.Load(options(device(t, a, test.leaf...))))(t)
			result := call(t, i, &tls.Config{Certificates: []tls.Certificate{expect.Value(a.IssueWFM("one", test.leaf...))(t).TLS()}})
			warns(t, i, test.want) // about the own certificate
			if test.want != "" {
				result.refuse(t, test.want)
			} else {
				expect.OK(t, result.err)
			}
		})
	}
}

func TestID10TLS12IsAFallbackThatHasToBeAllowed(t *testing.T) {
	a := authority(t)
	allowed := options(device(t, a))
	allowed.TLS12 = true
	only := func(version uint16, suites ...uint16) *tls.Config {
		return &tls.Config{MinVersion: version, MaxVersion: version, CipherSuites: suites}
	}
	showing := func(svid *pki.SVID, c *tls.Config) *tls.Config {
		c.Certificates = []tls.Certificate{svid.TLS()}
		return c
	}
	tests := map[string]struct {
		options identity.Options
		server  *tls.Config
		version uint16 // 0: refused
	}{
		"ID-10 TLS 1.3 by default":            {options(device(t, a)), only(tls.VersionTLS13), tls.VersionTLS13},
		"ID-10 TLS 1.2 is refused by default": {options(device(t, a)), only(tls.VersionTLS12), 0},
		"ID-10 TLS 1.2 where it is allowed":   {allowed, only(tls.VersionTLS12), tls.VersionTLS12},
		"ID-10 TLS 1.3 all the same":          {allowed, &tls.Config{MinVersion: tls.VersionTLS12}, tls.VersionTLS13},
		"ID-10 TLS 1.1 never":                 {allowed, only(tls.VersionTLS11), 0},
		"ID-10 TLS 1.0 never":                 {allowed, only(tls.VersionTLS10), 0},
		"ID-10 authenticated encryption":      {allowed, only(tls.VersionTLS12, tls.TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256), tls.VersionTLS12},
		"ID-10 no CBC":                        {allowed, only(tls.VersionTLS12, tls.TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA), 0},
		"ID-10 no key exchange without forward secrecy": {
			allowed, showing(expect.Value(a.IssueWFM("one", pki.Key(rsa3072())))(t), only(tls.VersionTLS12, tls.TLS_RSA_WITH_AES_128_GCM_SHA256)), 0,
		},
		"ID-06 another WFM gets nothing with TLS 1.2 either": {allowed, showing(expect.Value(a.IssueWFM("two"))(t), only(tls.VersionTLS12)), 0},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if test.server.Certificates == nil {
				showing(expect.Value(a.IssueWFM("one"))(t), test.server)
			}
			result := call(t, expect.Value(identity.Load(test.options))(t), test.server)
			if test.version == 0 {
				if result.err == nil {
					t.Fatalf("accepted, with version %x", result.state.Version)
				}
				result.keptQuiet(t)
				return
			}
			check(t, result.err)
			expect.Equal(t, result.state.Version, test.version, "version")
		})
	}
}

func TestID13NothingIsResumed(t *testing.T) {
	a := authority(t)
	o := options(device(t, a))
	o.TLS12 = true
	for name, version := range map[string]uint16{"TLS 1.3": tls.VersionTLS13, "TLS 1.2": tls.VersionTLS12} {
		t.Run(name, func(t *testing.T) {
			device := expect.Value(identity.Load(o))(t).TLS()
			// By its own clock the server resumes no session of a certificate that has expired.
			server := &tls.Config{MaxVersion: version, Certificates: []tls.Certificate{expect.Value(a.IssueWFM("one"))(t).TLS()}, Time: clock(noon)}
			server.SetSessionTicketKeys([][32]byte{{1}})
			for range 2 {
				if result := callWith(t, device, server); result.err != nil || result.resumed || result.state.DidResume {
					t.Errorf("resumed: %t (%v)", result.resumed, result.err)
				}
			}
		})
	}
}

// What a WFM tells of the present is believed within the life of what it showed.
func TestPlausibleTimeFitsTheCertificates(t *testing.T) {
	day := 24 * time.Hour
	a := authority(t)
	i := expect.Value(identity.Load(options(device(t, a))))(t)
	expect.Equal(t, i.Plausible(noon), false, "a time is plausible before anybody could have told it")
	server := expect.Value(a.IssueWFM("one", pki.Valid(noon.Add(-day), noon.Add(day))))(t)
	check(t, call(t, i, &tls.Config{Certificates: []tls.Certificate{server.TLS()}}).err)
	for at, want := range map[time.Time]bool{
		noon:               true,
		noon.Add(-day):     true, // no bound to learn from, but harmless
		noon.Add(day):      true,
		noon.Add(2 * day):  false, // its certificate has expired then
		noon.Add(99 * day): false,
	} {
		expect.Equal(t, i.Plausible(at), want, "Plausible(%s)", at)
	}
}
