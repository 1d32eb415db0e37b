package wfmsim_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/tls"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/margolite/margolite/agent/identity"
	"github.com/margolite/margolite/agent/margo"
	"github.com/margolite/margolite/test/pki"
	"github.com/margolite/margolite/test/wfmsim"
	"github.com/margolite/margolite/test/wfmsim/fault"
)

// ordinary is an authority of ordinary certificates with one for this machine.
func ordinary(t *testing.T) (*pki.ServerAuthority, tls.Certificate) {
	t.Helper()
	authority, err := pki.NewServerAuthority("Public", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	certificate, err := authority.IssueServer([]string{"127.0.0.1", "localhost"})
	if err != nil {
		t.Fatal(err)
	}
	return authority, certificate.TLS()
}

func TestArtifactsComeInRanges(t *testing.T) {
	r := newRig(t, nil)
	r.publish(one, "1.0.0")
	m := r.manifest()
	for name, url := range map[string]string{"document": m.Deployments[0].URL, "bundle": m.Bundle.URL} {
		whole := r.get(url)
		body, etag := whole.body, whole.header.Get("ETag")
		if whole.header.Get("Accept-Ranges") != "bytes" {
			t.Errorf("%s: header %v", name, whole.header)
		}
		size := len(body)
		for _, c := range []struct {
			header []string
			status int
			body   []byte
			piece  string
		}{
			{[]string{"Range", "bytes=0-9"}, 206, body[:10], "0-9"},
			{[]string{"Range", "bytes=10-"}, 206, body[10:], "10-"},
			{[]string{"Range", "bytes=-10"}, 206, body[size-10:], ""},
			{[]string{"Range", "bytes=10-99999999"}, 206, body[10:], "10-"},
			{[]string{"Range", "bytes=10-", "If-Range", etag}, 206, body[10:], "10-"},
			{[]string{"Range", "bytes=10-", "If-Range", `"else"`}, 200, body, ""},
			{[]string{"Range", "bytes=10-", "If-Range", "W/" + etag}, 200, body, ""},
			{[]string{"Range", "bytes=10-", "If-None-Match", etag}, 304, nil, ""},
			{[]string{"Range", "bytes=0-1,5-6"}, 200, body, ""},
			{[]string{"Range", "lines=0-1"}, 200, body, ""},
			{[]string{"Range", "bytes=9-3"}, 200, body, ""},
			{[]string{"Range", "bytes=99999999-"}, 416, nil, ""},
		} {
			a := r.get(url, c.header...)
			if a.status != c.status || !bytes.Equal(a.body, c.body) {
				t.Errorf("%s with %q: got %d and %d bytes", name, c.header, a.status, len(a.body))
			}
			if got := a.header.Get("Content-Range"); c.status == 206 && !strings.HasPrefix(got, "bytes "+c.piece) || (c.status == 200) != (got == "") && c.status != 206 && c.status != 304 && c.status != 416 {
				t.Errorf("%s with %q: Content-Range %q", name, c.header, got)
			}
			if c.status == 206 && a.header.Get("ETag") != etag {
				t.Errorf("%s with %q: ETag %q", name, c.header, a.header.Get("ETag"))
			}
		}
		if a := r.call("HEAD", url, nil, "Range", "bytes=0-1"); a.status != 200 || len(a.body) != 0 {
			t.Errorf("%s: HEAD got %d", name, a.status)
		}
	}
	if _, err := r.wfm.Faults().Inject(fault.Fault{Endpoint: wfmsim.EndpointBundle, Kind: fault.IgnoreRange}); err != nil {
		t.Fatal(err)
	}
	if a := r.get(m.Bundle.URL, "Range", "bytes=10-"); a.status != 200 {
		t.Errorf("a server without ranges: got %d", a.status)
	}
}

func TestURLsMayBeAbsentOrStale(t *testing.T) {
	for _, form := range []wfmsim.URLForm{wfmsim.Absent, wfmsim.Legacy} {
		r := newRig(t, func(o *wfmsim.Options) { o.URLs, o.Prefix = form, "/a" })
		p := r.publish(one, "1.0.0")
		body := r.get("/a/api/v1/deployments").body
		if form == wfmsim.Absent {
			if bytes.Contains(body, []byte(`"url"`)) {
				t.Errorf("got %s", body)
			}
		} else {
			m, err := margo.ParseStateManifest(body)
			if err != nil || !strings.HasPrefix(m.Bundle.URL, "/a/api/v1/clients/former-") || r.get(m.Bundle.URL).status != 404 {
				t.Errorf("got %s, %v", body, err)
			}
		}
		if a := r.get("/a/api/v1/deployments/" + one + "/" + p.Digest.String()); a.status != 200 {
			t.Errorf("the usual URL: got %d", a.status)
		}
	}
}

func TestTheOtherOriginNoticesCredentials(t *testing.T) {
	authority, certificate := ordinary(t)
	r := newRig(t, func(o *wfmsim.Options) { o.URLs, o.Depot = wfmsim.OtherOrigin, certificate })
	r.publish(one, "1.0.0")
	m := r.manifest()
	roots := &tls.Config{RootCAs: authority.Pool()}
	stranger := &http.Client{Transport: &http.Transport{TLSClientConfig: roots, DisableKeepAlives: true}}
	fetch := func(client *http.Client, url string, header ...string) *http.Response {
		t.Helper()
		request, err := http.NewRequest(http.MethodGet, url, nil)
		if err != nil {
			t.Fatal(err)
		}
		for i := 0; i < len(header); i += 2 {
			request.Header.Set(header[i], header[i+1])
		}
		answer, err := client.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(answer.Body)
		if err != nil || answer.StatusCode == 200 && !strings.HasSuffix(url, digest.FromBytes(body).String()) {
			t.Errorf("%s: %v, %s", url, err, body)
		}
		return answer
	}
	for _, url := range []string{m.Bundle.URL, m.Deployments[0].URL} {
		if !strings.HasPrefix(url, r.wfm.Depot().URL()+"/") || fetch(stranger, url).StatusCode != 200 ||
			fetch(stranger, url, "Range", "bytes=1-2").StatusCode != 206 {
			t.Errorf("not to be had at %s", url)
		}
	}
	if shown := r.wfm.Depot().Shown(); len(shown) != 0 {
		t.Errorf("got %q", shown)
	}
	svid, err := r.authority.IssueClient("wfm-1", deviceID)
	if err != nil {
		t.Fatal(err)
	}
	// Go's client shows a certificate only to those who name its issuer, or when
	// told so.
	chain := svid.TLS()
	roots = roots.Clone()
	roots.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &chain, nil }
	careless := &http.Client{Transport: &http.Transport{TLSClientConfig: roots, DisableKeepAlives: true}}
	fetch(careless, m.Bundle.URL, "Authorization", "Bearer x", "Signature", "sig1=:AAAA:")
	if shown := r.wfm.Depot().Shown(); len(shown) != 3 || !strings.HasPrefix(shown[0], "Authorization at /"+deviceID+"/bundles/") {
		t.Errorf("got %q", shown)
	}
	if n := r.wfm.Depot().Requests().Count(wfmsim.EndpointDepot); n != 5 {
		t.Errorf("counted %d", n)
	}
	if fetch(stranger, r.wfm.Depot().URL()+"/else").StatusCode != 404 {
		t.Error("nothing was found")
	}
}

func TestAGatewayWantsCredentialsOnEveryRequest(t *testing.T) {
	authority, certificate := ordinary(t)
	const basic, bearer = "Basic ZGV2aWNlOnNlY3JldA==", "Bearer token-1"
	r := newRig(t, func(o *wfmsim.Options) {
		o.SVID, o.ID, o.Bundle = certificate, identity.ID{}, nil
		o.Authorization = map[string]string{basic: deviceID, bearer: "other"}
	})
	r.client = &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: authority.Pool()}}}
	r.publish(one, "1.0.0")
	for header, c := range map[string]struct{ status, deployments int }{
		"": {401, 0}, "Basic ZGV2aWNlOndyb25n": {401, 0}, "Bearer token-2": {401, 0}, basic: {200, 1}, bearer: {200, 0},
	} {
		a := r.get("/api/v1/deployments", "Authorization", header)
		if a.status != c.status || a.status == 401 && len(a.header.Values("WWW-Authenticate")) != 2 {
			t.Errorf("%q: got %d %s", header, a.status, a.body)
		}
		if m, err := margo.ParseStateManifest(a.body); c.status == 200 && (err != nil || len(m.Deployments) != c.deployments) {
			t.Errorf("%q: got %s, %v", header, a.body, err)
		}
	}
	if a := r.call("PUT", "/api/v1/capabilities/"+deviceID, capabilitiesOf(deviceID), "Authorization", basic); a.status != 201 {
		t.Errorf("got %d %s", a.status, a.body)
	}
	r.wfm.SetAuthorization(map[string]string{"Bearer token-2": deviceID})
	if a := r.get("/api/v1/deployments", "Authorization", basic); a.status != 401 {
		t.Errorf("rotated: got %d", a.status)
	}
	r.wfm.Retire(deviceID)
	if a := r.get("/api/v1/deployments", "Authorization", "Bearer token-2"); a.status != 403 || !a.problem(t).Retired() {
		t.Errorf("retired: got %d %s", a.status, a.body)
	}
}

func TestAGatewayStandsBeforeSignedRequestsToo(t *testing.T) {
	r := newSignedRig(t, wfmsim.RC2, func(_ *signedRig, o *wfmsim.Options) {
		o.Authorization = map[string]string{"Bearer t": ""}
	})
	body := onboarding(r.signer.CertificatePEM())
	if a := r.call("POST", "/api/v1/onboarding", body); a.status != 401 || a.header.Get("WWW-Authenticate") == "" {
		t.Errorf("got %d %s", a.status, a.body)
	}
	if a := r.call("POST", "/api/v1/onboarding", body, "Authorization", "Bearer t"); a.status != 201 {
		t.Errorf("got %d %s", a.status, a.body)
	}
}

func TestFlawedCertificatesAreShown(t *testing.T) {
	var authority *pki.Authority
	r := newRig(t, func(o *wfmsim.Options) {
		o.Flaws = (&pki.Authority{}).Flaws()
		o.Flawed = func(flaw string) (tls.Certificate, error) { return authority.IssueFlawed("wfm-1", flaw) }
	})
	authority = r.authority
	for _, flaw := range authority.Flaws() {
		if _, err := r.wfm.Faults().Inject(fault.Fault{Endpoint: wfmsim.EndpointHandshake, Kind: fault.Certificate, What: flaw, Times: 1}); err != nil {
			t.Fatal(err)
		}
		var refusal *identity.Error
		if _, err := r.agentClient().Manifest(t.Context(), ""); !errors.As(err, &refusal) {
			t.Errorf("%s: %v", flaw, err)
		}
	}
	if _, err := r.agentClient().Manifest(t.Context(), ""); err != nil {
		t.Error(err)
	}
	for _, kind := range []fault.Kind{fault.OldTLS, fault.Refuse} {
		if _, err := r.wfm.Faults().Inject(fault.Fault{Endpoint: wfmsim.EndpointHandshake, Kind: kind, Times: 1}); err != nil {
			t.Fatal(err)
		}
		if _, err := r.agentClient().Manifest(t.Context(), ""); err == nil {
			t.Errorf("%s: accepted", kind)
		}
	}
	if _, err := r.wfm.Faults().Inject(fault.Fault{Endpoint: wfmsim.EndpointHandshake, Kind: fault.Certificate, What: "ugly"}); err == nil {
		t.Error("an unknown flaw was injected")
	}
}

// Every twist is named by the ETag and the digests that belong to it, so that
// nothing but the twist itself is wrong.
func TestTwists(t *testing.T) {
	r := newRig(t, nil)
	r.publish(one, "1.0.0")
	r.publish(two, "1.0.0")
	honest := r.manifest()
	acceptable := map[string]bool{ // to margo's strict parser, which sees no bundle
		"version-exponent": true, "version-decimal": true, "version-max": true, "version-lower": true, "version-same": true,
		"duplicate": true, "id-case": true, "id-no-uuid": true, "empty": true, "deep": false,
	}
	for _, twist := range wfmsim.Twists() {
		t.Run(twist, func(t *testing.T) {
			r.wfm.Faults().Clear("")
			if _, err := r.wfm.Faults().Inject(fault.Fault{
				Endpoint: wfmsim.EndpointManifest, Client: deviceID, Kind: fault.Twist, What: twist, Bytes: 20_000, Times: 1,
			}); err != nil {
				t.Fatal(err)
			}
			a := r.get("/api/v1/deployments")
			if a.status != 200 || a.header.Get("ETag") != etagOf(a.body) || bytes.Equal(a.body, r.get("/api/v1/deployments").body) {
				t.Fatalf("got %d %v %.300s", a.status, a.header, a.body)
			}
			m, err := margo.ParseStateManifest(a.body)
			ofBundle := strings.HasPrefix(twist, "bundle-") && twist != "bundle-empty"
			if want := acceptable[twist] || ofBundle; (err == nil) != want {
				t.Errorf("acceptable: %v, want %v", err, want)
			}
			if err != nil || m.Bundle == nil {
				return
			}
			archive := r.get(m.Bundle.URL)
			if archive.status != 200 || digest.FromBytes(archive.body) != m.Bundle.Digest {
				t.Fatalf("bundle: got %d", archive.status)
			}
			if ofBundle && m.Bundle.Digest == honest.Bundle.Digest {
				t.Error("it is the usual bundle")
			}
			if entries, size, err := unpack(archive.body); ofBundle {
				t.Logf("%d entries, %d bytes, %v", entries, size, err)
				switch twist {
				case "bundle-many":
					if entries != 20_002 {
						t.Error("too few")
					}
				case "bundle-bomb":
					if size < 20_000 {
						t.Error("too small")
					}
				}
			}
		})
	}
	if a := r.get(honest.Bundle.URL); a.status != 200 {
		t.Errorf("afterwards: got %d", a.status)
	}
}

func unpack(archive []byte) (entries int, size int64, err error) {
	zr, err := gzip.NewReader(bytes.NewReader(archive))
	if err != nil {
		return 0, 0, err
	}
	for tr := tar.NewReader(zr); ; {
		_, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return entries, size, nil
		}
		if err != nil {
			return entries, size, err
		}
		entries++
		n, err := io.Copy(io.Discard, tr)
		if size += n; err != nil {
			return entries, size, err
		}
	}
}

func TestOneDigestOfManyIsWrong(t *testing.T) {
	r := newRig(t, nil)
	r.publish(one, "1.0.0")
	r.publish(two, "1.0.0")
	honest := r.manifest()
	if _, err := r.wfm.Faults().Inject(fault.Fault{Kind: fault.WrongDigest, Name: strings.ToUpper(two)}); err != nil {
		t.Fatal(err)
	}
	m := r.manifest()
	if m.Deployments[0] != honest.Deployments[0] || m.Deployments[1].Digest == honest.Deployments[1].Digest {
		t.Errorf("got %+v", m.Deployments)
	}
}

func TestAWFMThatIsSetUpAnewBeginsWithOne(t *testing.T) {
	r := newRig(t, nil)
	r.publish(one, "1.0.0")
	r.publish(two, "1.0.0")
	if _, err := r.wfm.Remove(deviceID, two); err != nil {
		t.Fatal(err)
	}
	if err := r.wfm.Restart(deviceID); err != nil {
		t.Fatal(err)
	}
	if m := r.manifest(); m.Version != 1 || len(m.Deployments) != 1 {
		t.Errorf("got %+v", m)
	}
	a := r.call("POST", "/api/v1/deployments/"+one+"/status", statusOf(1, "installed", "web", "installed", "db", "installed"))
	if a.status != 201 {
		t.Errorf("got %d %s", a.status, a.body)
	}
	if p := r.publish(one, "2.0.0"); p.Version != 2 {
		t.Errorf("got %+v", p)
	}
}

func TestProblemsOfAnyTypeAreAnswered(t *testing.T) {
	r := newRig(t, nil)
	for what, check := range map[string]func(margo.ProblemDetail) bool{
		"wfm-client-relationship-retired": margo.ProblemDetail.Retired,
		"https://vendor.example/odd":      func(p margo.ProblemDetail) bool { return p.Type == "https://vendor.example/odd" && p.Title == "Odd" },
	} {
		if _, err := r.wfm.Faults().Inject(fault.Fault{Kind: fault.Answer, Status: 403, What: what, Value: "Odd", Times: 1}); err != nil {
			t.Fatal(err)
		}
		if a := r.get("/api/v1/deployments"); !check(a.problem(t)) {
			t.Errorf("%s: got %s", what, a.body)
		}
	}
	date := time.Now().Add(time.Hour).UTC().Format(http.TimeFormat)
	for after, want := range map[string]string{"": "1", "7": "7", date: date, fault.NoRetryAfter: ""} {
		if _, err := r.wfm.Faults().Inject(fault.Fault{Kind: fault.Answer, Status: 503, RetryAfter: after, Times: 1}); err != nil {
			t.Fatal(err)
		}
		if a := r.get("/api/v1/deployments"); a.header.Get("Retry-After") != want || !a.problem(t).Retryable {
			t.Errorf("%q: got %q, %s", after, a.header.Get("Retry-After"), a.body)
		}
	}
}

func TestTheSchemasRefuseWhatTheParserLetsPass(t *testing.T) {
	r := newRig(t, nil)
	body := bytes.Replace(capabilitiesOf(deviceID), []byte(`"properties"`), []byte(`"labels":{"a":[]},"properties"`), 1)
	if _, err := margo.ParseCapabilities(body); err != nil {
		t.Fatalf("it does not let it pass any more: %v", err)
	}
	a := r.call("PUT", "/api/v1/capabilities/"+deviceID, body)
	if p := a.problem(t); a.status != 422 || len(p.Errors) == 0 || !strings.HasSuffix(p.Errors[0].Message, "[schema]") {
		t.Errorf("got %d %s", a.status, a.body)
	}
}

func TestUnsoundOptionsAreRefused(t *testing.T) {
	_, certificate := ordinary(t)
	for name, o := range map[string]wfmsim.Options{
		"an unknown revision":             {Revision: "2.0.0", SVID: certificate},
		"rc.2 without a certificate":      {Revision: wfmsim.RC2},
		"another origin without the same": {Revision: wfmsim.RC2, SVID: certificate, URLs: wfmsim.OtherOrigin},
	} {
		if _, err := wfmsim.New(o); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}
