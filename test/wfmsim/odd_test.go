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
