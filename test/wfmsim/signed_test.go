package wfmsim_test

import (
	"bytes"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/margolite/margolite/agent/margo"
	"github.com/margolite/margolite/test/pki"
	"github.com/margolite/margolite/test/wfmsim"
	"github.com/margolite/margolite/test/wfmsim/fault"
	"github.com/margolite/margolite/test/wfmsim/signature"
)

// signedRig is a WFM of rc.1 or rc.2 and a client that signs.
type signedRig struct {
	t        *testing.T
	wfm      *wfmsim.Server
	ordinary *pki.ServerAuthority
	signer   *pki.SVID // of the client
	sign     signature.Signer
	client   *http.Client
	id       string // of the client; empty: not onboarded

	mu  sync.Mutex
	now time.Time // of the WFM, and of the signatures
}

func (r *signedRig) time() time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.now
}

func newSignedRig(t *testing.T, revision wfmsim.Revision, change func(*signedRig, *wfmsim.Options)) *signedRig {
	t.Helper()
	r := &signedRig{t: t, now: time.Now()}
	var err error
	if r.ordinary, err = pki.NewServerAuthority("Public", r.now); err != nil {
		t.Fatal(err)
	}
	if r.signer, err = r.ordinary.IssueSigner(deviceID); err != nil {
		t.Fatal(err)
	}
	r.sign = signature.Signer{Key: r.signer.Key}
	server, err := r.ordinary.IssueServer([]string{"127.0.0.1"})
	if err != nil {
		t.Fatal(err)
	}
	o := wfmsim.Options{
		Revision: revision, SVID: server.TLS(), Depot: server.TLS(), Root: r.ordinary.RootPEM(), Now: r.time,
		Flaws: r.ordinary.Flaws(), Flawed: func(flaw string) (tls.Certificate, error) {
			return r.ordinary.IssueFlawed([]string{"127.0.0.1"}, flaw)
		},
	}
	if change != nil {
		change(r, &o)
	}
	if r.wfm, err = wfmsim.New(o); err != nil {
		t.Fatal(err)
	}
	if err := r.wfm.Start(""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.wfm.Close() })
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: r.ordinary.Pool(), MinVersion: tls.VersionTLS13}}
	t.Cleanup(transport.CloseIdleConnections)
	r.client = &http.Client{Transport: transport, Timeout: 20 * time.Second}
	return r
}

// call sends a request that is signed by sign, or not at all where that is nil.
func (r *signedRig) try(sign *signature.Signer, method, path string, body []byte, header ...string) (answer, error) {
	r.t.Helper()
	request, err := http.NewRequest(method, r.wfm.URL()+path, bytes.NewReader(body))
	if err != nil {
		r.t.Fatal(err)
	}
	if body != nil {
		request.Header.Set("Content-Type", "application/json")
	}
	if sign != nil {
		s := *sign
		if s.Created.IsZero() {
			s.Created = r.time()
		}
		if err := s.Sign(request); err != nil {
			r.t.Fatal(err)
		}
	}
	for i := 0; i < len(header); i += 2 {
		request.Header.Set(header[i], header[i+1])
	}
	got, err := r.client.Do(request)
	if err != nil {
		return answer{}, err
	}
	defer got.Body.Close()
	text, err := io.ReadAll(got.Body)
	return answer{got.StatusCode, got.Header, text}, err
}

func (r *signedRig) call(method, path string, body []byte, header ...string) answer {
	r.t.Helper()
	a, err := r.try(&r.sign, method, path, body, header...)
	if err != nil {
		r.t.Fatalf("%s %s: %v", method, path, err)
	}
	return a
}

// of is a path of the client.
func (r *signedRig) of(path string) string { return "/api/v1/clients/" + r.id + "/" + path }

func onboarding(certificate []byte) []byte {
	text, err := json.Marshal(map[string]string{
		"apiVersion": "onboarding.margo.org/v1alpha1", "kind": "OnboardingRequest",
		"certificate": base64.StdEncoding.EncodeToString(certificate),
	})
	if err != nil {
		panic(err) // of strings
	}
	return text
}

func (r *signedRig) onboard() string {
	r.t.Helper()
	a := r.call(http.MethodPost, "/api/v1/onboarding", onboarding(r.signer.CertificatePEM()))
	var said struct{ ClientID string }
	if err := json.Unmarshal(a.body, &said); err != nil || a.status != http.StatusCreated || said.ClientID == "" {
		r.t.Fatalf("onboarding: %d %s, %v", a.status, a.body, err)
	}
	r.id = said.ClientID
	return said.ClientID
}

func (r *signedRig) publish(id, revision string) wfmsim.Published {
	r.t.Helper()
	p, err := r.wfm.Publish(r.id, deploymentOf(r.t, id, revision))
	if err != nil {
		r.t.Fatal(err)
	}
	return p
}

// refusal is the body of an error before rc.3.
func (a answer) refusal(t *testing.T) (failure, message string) {
	t.Helper()
	var body struct{ Error, Message string }
	if err := json.Unmarshal(a.body, &body); err != nil || body.Error == "" || a.header.Get("Content-Type") != "application/json" {
		t.Errorf("answer %d %s is no {error, message}", a.status, a.body)
	}
	return body.Error, body.Message
}

// withKind is a body of rc.3 as the earlier revisions have it.
func withKind(t *testing.T, body []byte, apiVersion, kind string, without ...string) []byte {
	t.Helper()
	var m map[string]any
	if err := json.Unmarshal(body, &m); err != nil {
		t.Fatal(err)
	}
	m["apiVersion"], m["kind"] = apiVersion, kind
	for _, name := range without {
		delete(m, name)
	}
	text, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func oldStatus(t *testing.T, overall string, components ...string) []byte {
	t.Helper()
	return withKind(t, statusOf(1, overall, components...), "deployment.margo.org/v1alpha1", "DeploymentStatusManifest", "adoptedManifestVersion")
}

func capabilitiesRC2(t *testing.T, id string) []byte {
	t.Helper()
	return withKind(t, capabilitiesOf(id), "device.margo.org/v1alpha1", "DeviceCapabilitiesManifest")
}

const capabilitiesRC1 = `{"apiVersion":"device.margo.org/v1alpha1","kind":"DeviceCapabilitiesManifest","properties":{` +
	`"id":"` + deviceID + `","vendor":"v","modelNumber":"m","serialNumber":"s","roles":["Standalone Device"],` +
	`"resources":{"cpu":{"cores":24,"architecture":"x86_64"},"memory":"59 Gi","storage":"1862 Gi",` +
	`"peripherals":[{"type":"gpu","manufacturer":"NVIDIA"}],"interfaces":[{"type":"ethernet"}]}}}`

func TestAUTH02TheRootIsToldUnsigned(t *testing.T) {
	r := newSignedRig(t, wfmsim.RC2, nil)
	a, err := r.try(nil, http.MethodGet, "/api/v1/onboarding/certificate", nil)
	var said struct{ Certificate string }
	if err != nil || a.status != 200 || json.Unmarshal(a.body, &said) != nil {
		t.Fatalf("got %d %s, %v", a.status, a.body, err)
	}
	if root, err := base64.StdEncoding.DecodeString(said.Certificate); err != nil || !bytes.Equal(root, r.ordinary.RootPEM()) {
		t.Errorf("got %s, %v", root, err)
	}
}

func TestAUTH04ClientsAreOnboarded(t *testing.T) {
	r := newSignedRig(t, wfmsim.RC2, nil)
	id := r.onboard()
	if want := wfmsim.ClientID(r.signer.Chain[0]); id != want {
		t.Errorf("got %s, want %s", id, want)
	}
	if again := r.onboard(); again != id {
		t.Errorf("the second time: %s, then %s", id, again)
	}
	if a := r.call("POST", "/api/v1/onboarding", onboarding(r.signer.Chain[0].Raw)); a.status != 201 || !bytes.Contains(a.body, []byte(id)) {
		t.Errorf("with DER: got %d %s", a.status, a.body)
	}
	if client, err := r.wfm.WaitClient(t.Context()); err != nil || client != id {
		t.Errorf("got %s, %v", client, err)
	}
	// Who is enrolled has an id already.
	other, err := r.ordinary.IssueSigner("other")
	if err != nil {
		t.Fatal(err)
	}
	if err := r.wfm.Enroll("chosen", other.Chain[0]); err != nil {
		t.Fatal(err)
	}
	r.signer, r.sign.Key = other, other.Key
	if id := r.onboard(); id != "chosen" {
		t.Errorf("got %s", id)
	}
	if a := r.call("GET", r.of("deployments"), nil); a.status != 200 {
		t.Errorf("got %d %s", a.status, a.body)
	}
	if err := r.wfm.Forget("chosen"); err != nil {
		t.Fatal(err)
	}
	if a := r.call("GET", r.of("deployments"), nil); a.status != 404 {
		t.Errorf("forgotten: got %d %s", a.status, a.body)
	}
}

func TestOnboardingIsStrict(t *testing.T) {
	r := newSignedRig(t, wfmsim.RC2, func(r *signedRig, o *wfmsim.Options) { o.ClientCAs = r.ordinary.Pool() })
	elsewhere, err := pki.NewServerAuthority("Elsewhere", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	issue := func(authority *pki.ServerAuthority, options ...pki.Option) *pki.SVID {
		t.Helper()
		svid, err := authority.IssueSigner("x", options...)
		if err != nil {
			t.Fatal(err)
		}
		return svid
	}
	short, err := rsa.GenerateKey(rand.Reader, 1024)
	if err != nil {
		t.Fatal(err)
	}
	wide, err := ecdsa.GenerateKey(elliptic.P521(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	_, edwards, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	stranger := issue(elsewhere)
	expired := issue(r.ordinary, pki.Valid(time.Now().Add(-2*time.Hour), time.Now().Add(-time.Hour)))
	good := onboarding(r.signer.CertificatePEM())
	for name, c := range map[string]struct {
		key    crypto.Signer
		body   []byte
		header []string
		status int
		error  string
	}{
		"no signature":               {body: good, header: []string{"Signature", ""}, status: 401, error: "Invalid signature"},
		"another's signature":        {key: stranger.Key, body: good, status: 401, error: "Invalid signature"},
		"a certificate of nobody":    {key: stranger.Key, body: onboarding(stranger.CertificatePEM()), status: 403, error: "Client rejected"},
		"an expired certificate":     {key: expired.Key, body: onboarding(expired.CertificatePEM()), status: 403, error: "Client rejected"},
		"no certificate":             {body: onboarding([]byte("hello")), status: 400, error: "Invalid certificate"},
		"a key":                      {body: onboarding([]byte("-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n")), status: 400, error: "Invalid certificate"},
		"no base64":                  {body: bytes.Replace(good, []byte(`"certificate":"`), []byte(`"certificate":"!`), 1), status: 400, error: "Invalid certificate"},
		"a short RSA key":            {body: onboarding(issue(r.ordinary, pki.Key(short)).CertificatePEM()), status: 400, error: "Invalid certificate"},
		"an unlisted curve":          {body: onboarding(issue(r.ordinary, pki.Key(wide)).CertificatePEM()), status: 400, error: "Invalid certificate"},
		"an unlisted kind of key":    {body: onboarding(issue(r.ordinary, pki.Key(edwards)).CertificatePEM()), status: 400, error: "Invalid certificate"},
		"another kind":               {body: bytes.Replace(good, []byte("OnboardingRequest"), []byte("Onboarding"), 1), status: 400},
		"no kind":                    {body: bytes.Replace(good, []byte(`"kind"`), []byte(`"sort"`), 1), status: 400},
		"the first rc.1's field":     {body: bytes.Replace(good, []byte(`"certificate"`), []byte(`"public_certificate"`), 1), status: 400},
		"no JSON":                    {body: []byte("hello"), status: 400},
		"another content type":       {body: good, header: []string{"Content-Type", "text/plain"}, status: 415},
		"a digest of something else": {body: good, header: []string{"Content-Digest", "sha-256=:47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=:"}, status: 400, error: "Invalid content-digest"},
	} {
		t.Run(name, func(t *testing.T) {
			sign := r.sign
			if c.key != nil {
				sign.Key = c.key
			}
			a, err := r.try(&sign, http.MethodPost, "/api/v1/onboarding", c.body, c.header...)
			if err != nil {
				t.Fatal(err)
			}
			failure, _ := a.refusal(t)
			if a.status != c.status || c.error != "" && failure != c.error {
				t.Errorf("got %d %s", a.status, a.body)
			}
		})
	}
}

func TestClientsWaitToBeApproved(t *testing.T) {
	r := newSignedRig(t, wfmsim.RC2, func(_ *signedRig, o *wfmsim.Options) { o.Approval = true })
	body := onboarding(r.signer.CertificatePEM())
	for range 2 {
		if a := r.call("POST", "/api/v1/onboarding", body); a.status != 403 {
			t.Errorf("got %d %s", a.status, a.body)
		}
	}
	p, err := r.wfm.WaitPending(t.Context())
	if err != nil || len(r.wfm.Pending()) != 1 || p.Subject != "CN="+deviceID {
		t.Fatalf("got %+v, %v", p, err)
	}
	client, err := r.wfm.Approve(p.Fingerprint)
	if err != nil || client != p.Client || r.onboard() != client {
		t.Errorf("got %s, %v", client, err)
	}
	if _, err := r.wfm.Approve(p.Fingerprint); !errors.Is(err, wfmsim.ErrNotPending) {
		t.Errorf("approved again: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := r.wfm.WaitPending(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("nobody waits: %v", err)
	}
}

func TestAUTH08EveryRequestIsSigned(t *testing.T) {
	r := newSignedRig(t, wfmsim.RC2, nil)
	r.onboard()
	r.publish(one, "1.0.0")
	m, err := margo.ParseStateManifest(r.call("GET", r.of("deployments"), nil).body)
	if err != nil {
		t.Fatal(err)
	}
	other, err := r.ordinary.IssueSigner("other")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		method, path string
		body         []byte
		status       int
	}{
		{"GET", r.of("deployments"), nil, 200},
		{"HEAD", r.of("deployments"), nil, 200},
		{"GET", m.Deployments[0].URL, nil, 200},
		{"GET", m.Bundle.URL, nil, 200},
		{"POST", r.of("capabilities/" + deviceID), capabilitiesRC2(t, deviceID), 201},
		{"PUT", r.of("capabilities/" + deviceID), capabilitiesRC2(t, deviceID), 201},
		{"DELETE", r.of("capabilities/" + deviceID), nil, 204},
		{"POST", r.of("deployments/" + one + "/status"), oldStatus(t, "pending", "web", "pending", "db", "pending"), 200},
	} {
		for name, s := range map[string]struct {
			sign   *signature.Signer
			status int
		}{
			"nobody":       {nil, 401},
			"another":      {&signature.Signer{Key: other.Key}, 401},
			"long ago":     {&signature.Signer{Key: r.sign.Key, Created: r.time().Add(-signature.MaxAge - 2*time.Second)}, 401},
			"not yet":      {&signature.Signer{Key: r.sign.Key, Created: r.time().Add(signature.MaxAhead + 2*time.Second)}, 401},
			"not in full":  {&signature.Signer{Key: r.sign.Key, Components: []string{"@method"}}, 401},
			"with more":    {&signature.Signer{Key: r.sign.Key, Components: components(c.body, "@authority"), KeyID: "whatever"}, c.status},
			"as it should": {&r.sign, c.status},
		} {
			var header []string
			if name == "nobody" && c.body != nil {
				header = []string{"Content-Digest", digestOf(c.body)}
			}
			if c.method == "DELETE" && s.status == 204 { // once in each way
				r.call("POST", c.path, capabilitiesRC2(t, deviceID))
			}
			a, err := r.try(s.sign, c.method, c.path, c.body, header...)
			if err != nil || a.status != s.status {
				t.Errorf("%s %s, signed by %s: got %d %s, %v", c.method, c.path, name, a.status, a.body, err)
			}
			if failure := ""; a.status == 401 && c.method != "HEAD" {
				if failure, _ = a.refusal(t); failure != "Invalid signature" {
					t.Errorf("%s: %s", name, failure)
				}
			}
		}
	}
	if a, err := r.try(nil, "POST", r.of("deployments/"+one+"/status"), []byte("{}")); err != nil || a.status != 400 {
		t.Errorf("no digest: got %d %s, %v", a.status, a.body, err)
	}
}

func components(body []byte, more string) []string {
	list := []string{"@method", "@target-uri", more}
	if len(body) > 0 {
		list = append(list, "content-digest")
	}
	return list
}

func digestOf(body []byte) string {
	request, err := http.NewRequest("POST", "https://x.example", bytes.NewReader(body))
	if err != nil {
		panic(err) // of constants
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		panic(err) // documented to never happen
	}
	if err := (signature.Signer{Key: key}).Sign(request); err != nil {
		panic(err)
	}
	return request.Header.Get("Content-Digest")
}

func TestTheInterfaceBeforeRC3(t *testing.T) {
	for _, revision := range []wfmsim.Revision{wfmsim.RC2, wfmsim.RC1} {
		t.Run(string(revision), func(t *testing.T) {
			r := newSignedRig(t, revision, nil)
			r.onboard()
			r.publish(one, "1.0.0")
			a := r.call("GET", r.of("deployments"), nil)
			m, err := margo.ParseStateManifest(a.body)
			if err != nil || a.header.Get("ETag") != etagOf(a.body) {
				t.Fatalf("manifest %s, %v", a.body, err)
			}
			if want := "/api/v1/clients/" + r.id + "/bundles/" + m.Bundle.Digest.String(); m.Bundle.URL != want {
				t.Errorf("bundle at %s", m.Bundle.URL)
			}
			if a := r.call("GET", r.of("deployments"), nil, "If-None-Match", a.header.Get("ETag")); a.status != 304 {
				t.Errorf("got %d", a.status)
			}
			for _, url := range []string{m.Bundle.URL, m.Deployments[0].URL} {
				if a := r.call("GET", url, nil); a.status != 200 || a.header.Get("Cache-Control") != "public, max-age=31536000, immutable" {
					t.Errorf("%s: got %d, %v", url, a.status, a.header)
				}
			}
			capabilities, body := "capabilities/"+deviceID, capabilitiesRC2(t, deviceID)
			if revision == wfmsim.RC1 {
				capabilities, body = "capabilities", []byte(capabilitiesRC1)
			}
			for _, step := range []struct {
				method string
				status int
			}{{"PUT", 404}, {"POST", 201}, {"PUT", 201}, {"POST", 201}} {
				if a := r.call(step.method, r.of(capabilities), body); a.status != step.status {
					t.Errorf("%s: got %d %s, want %d", step.method, a.status, a.body, step.status)
				}
			}
			device, err := r.wfm.WaitDevice(t.Context(), r.id, deviceID)
			if err != nil || device.Properties.Hosting.CPUs[0].Architecture != "amd64" {
				t.Errorf("got %+v, %v", device, err)
			}
			status := r.of("deployments/" + one + "/status")
			if a := r.call("POST", status, oldStatus(t, "installed", "web", "installed", "db", "installed")); a.status != 200 {
				t.Errorf("status: got %d %s", a.status, a.body)
			}
			if err := r.wfm.WaitState(t.Context(), one, margo.Installed, 99); err != nil {
				t.Error(err)
			}
			for path, want := range map[string]int{
				"/api/v1/deployments":                                       404,
				"/api/v1/capabilities/" + deviceID:                          404,
				"/api/v1/clients/else/deployments":                          404,
				r.of("deployment/" + one + "/status"):                       404,
				r.of("deployments/" + one + "/" + m.Bundle.Digest.String()): 404,
				r.of("bundles/" + m.Deployments[0].Digest.String()):         404,
			} {
				a := r.call("GET", path, nil)
				if a.status != want {
					t.Errorf("%s: got %d %s", path, a.status, a.body)
				}
				a.refusal(t)
			}
			if a := r.call("PATCH", r.of("deployments"), nil); a.status != 405 || a.header.Get("Allow") != "GET, HEAD" {
				t.Errorf("PATCH: got %d %v", a.status, a.header)
			}
			if a := r.call("GET", r.of("deployments"), nil, "Accept", "text/html"); a.status != 406 {
				t.Errorf("got %d", a.status)
			}
			r.wfm.Retire(r.id)
			if a := r.call("GET", r.of("deployments"), nil); a.status != 403 {
				t.Errorf("retired: got %d", a.status)
			}
			if a := r.call("POST", "/api/v1/onboarding", onboarding(r.signer.CertificatePEM())); a.status != 403 {
				t.Errorf("retired: onboarding got %d", a.status)
			}
		})
	}
}

func TestBodiesBeforeRC3AreStrict(t *testing.T) {
	swap := func(body []byte, old, new string) []byte {
		t.Helper()
		if !bytes.Contains(body, []byte(old)) {
			t.Fatalf("%s has no %s", body, old)
		}
		return bytes.Replace(body, []byte(old), []byte(new), 1)
	}
	for _, revision := range []wfmsim.Revision{wfmsim.RC2, wfmsim.RC1} {
		r := newSignedRig(t, revision, nil)
		r.onboard()
		r.publish(one, "1.0.0")
		good := oldStatus(t, "installed", "web", "installed", "db", "installed")
		failed := oldStatus(t, "failed", "web", "failed", "db", "pending")
		status := r.of("deployments/" + one + "/status")
		capabilities, described := r.of("capabilities/"+deviceID), capabilitiesRC2(t, deviceID)
		if revision == wfmsim.RC1 {
			capabilities, described = r.of("capabilities"), []byte(capabilitiesRC1)
		}
		type refused struct {
			path   string
			body   []byte
			status int
		}
		cases := map[string]refused{
			"ST-18 a report without kind":        {status, swap(good, `"kind"`, `"sort"`), 422},
			"ST-18 a report of another kind":     {status, swap(good, "DeploymentStatusManifest", "DeploymentStatus"), 422},
			"ST-18 a report without apiVersion":  {status, swap(good, `"apiVersion"`, `"version"`), 422},
			"ST-03 an unknown state":             {status, swap(good, `"installed"`, `"Installed"`), 422},
			"ST-04 an overall state too good":    {status, oldStatus(t, "installed", "web", "installing", "db", "installed"), 422},
			"ST-05 a component too few":          {status, oldStatus(t, "installed", "web", "installed"), 422},
			"ST-09 failed without an error":      {status, swap(failed, `"error"`, `"mistake"`), 422},
			"a report of another deployment":     {status, swap(good, one, two), 422},
			"a report without end":               {status, bytes.Repeat([]byte(" "), 1<<20+1), 413},
			"no JSON":                            {status, []byte("installed"), 400},
			"a list":                             {status, []byte("[]"), 400},
			"capabilities without kind":          {capabilities, swap(described, `"kind"`, `"sort"`), 422},
			"capabilities without apiVersion":    {capabilities, swap(described, `"apiVersion"`, `"version"`), 422},
			"capabilities without serial number": {capabilities, swap(described, `"serialNumber"`, `"number"`), 422},
		}
		if revision == wfmsim.RC2 {
			cases["labels, which rc.2 does not know"] = refused{capabilities, swap(described, `"properties"`, `"labels":{"a":"b"},"properties"`), 422}
			cases["a custom runtime, which rc.2 does not know"] = refused{capabilities, swap(described, `"oci"`, `"custom"`), 422}
			cases["ST-08 an error of somebody else"] = refused{status, swap(failed, `"source":"web"`, `"source":"margolite"`), 422}
			cases["capabilities of another"] = refused{capabilities, capabilitiesRC2(t, "other"), 422}
			cases["GW-03 a child before its gateway"] = refused{capabilities + "/child", capabilitiesRC2(t, deviceID+"/child"), 404}
		} else {
			cases["an unknown role"] = refused{capabilities, swap(described, "Standalone Device", "Gateway"), 422}
			cases["capabilities as rc.2 has them"] = refused{capabilities, capabilitiesRC2(t, deviceID), 422}
		}
		for name, c := range cases {
			t.Run(string(revision)+" "+name, func(t *testing.T) {
				a := r.call("POST", c.path, c.body)
				if a.status != c.status {
					t.Errorf("got %d %s, want %d", a.status, a.body, c.status)
				}
				a.refusal(t)
			})
		}
		if n := len(r.wfm.Statuses("")) + len(r.wfm.Devices("")); n != 0 {
			t.Errorf("%d refused bodies were kept", n)
		}
	}
}

func TestTheEarliestRC1HasAnotherPath(t *testing.T) {
	r := newSignedRig(t, wfmsim.RC1, func(_ *signedRig, o *wfmsim.Options) { o.SingularStatus, o.PutFirst = true, true })
	r.onboard()
	r.publish(one, "1.0.0")
	body := oldStatus(t, "failed", "web", "failed", "db", "failed")
	body = bytes.ReplaceAll(body, []byte(`"source":"web",`), nil) // rc.1 has no source
	for path, want := range map[string]int{"deployment/": 200, "deployments/": 404} {
		if a := r.call("POST", r.of(path+one+"/status"), body); a.status != want {
			t.Errorf("%s: got %d %s", path, a.status, a.body)
		}
	}
	if a := r.call("PUT", r.of("capabilities"), []byte(capabilitiesRC1)); a.status != 201 {
		t.Errorf("PUT first: got %d %s", a.status, a.body)
	}
}

func TestTheEarliestRC1OnboardsByOtherNames(t *testing.T) {
	r := newSignedRig(t, wfmsim.RC1, func(_ *signedRig, o *wfmsim.Options) { o.EarlyOnboarding = true })
	body := onboarding(r.signer.CertificatePEM())
	if a := r.call("POST", "/api/v1/onboarding", body); a.status != 400 {
		t.Errorf("the later name: got %d %s", a.status, a.body)
	}
	body = bytes.Replace(body, []byte(`"certificate"`), []byte(`"public_certificate"`), 1)
	want := `{"client_id":"` + wfmsim.ClientID(r.signer.Chain[0]) + `"}`
	if a := r.call("POST", "/api/v1/onboarding", body); a.status != 201 || string(a.body) != want {
		t.Errorf("got %d %s, want %s", a.status, a.body, want)
	}
}

func TestSignaturesThatComeAgainAreCounted(t *testing.T) {
	r := newSignedRig(t, wfmsim.RC2, nil)
	r.onboard()
	request, err := http.NewRequest("GET", r.wfm.URL()+r.of("deployments"), nil)
	if err != nil {
		t.Fatal(err)
	}
	s := r.sign
	s.Created = r.time()
	if err := s.Sign(request); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		got, err := r.client.Do(request)
		if err != nil || got.StatusCode != 200 {
			t.Fatalf("got %v, %v", got, err)
		}
		_ = got.Body.Close()
	}
	if n := r.wfm.Replayed(); n != 2 {
		t.Errorf("counted %d", n)
	}
	r.mu.Lock()
	r.now = r.now.Add(signature.MaxAge + time.Minute)
	r.mu.Unlock()
	if got, err := r.client.Do(request); err != nil || got.StatusCode != 401 {
		t.Errorf("later: got %v, %v", got, err)
	} else {
		_ = got.Body.Close()
	}
}

func TestARestartKnowsItsClients(t *testing.T) {
	file := filepath.Join(t.TempDir(), "state.json")
	var signer *pki.SVID
	keep := func(r *signedRig, o *wfmsim.Options) {
		o.File = file
		if signer != nil {
			r.signer, r.sign.Key = signer, signer.Key
		}
	}
	before := newSignedRig(t, wfmsim.RC2, keep)
	before.onboard()
	before.publish(one, "1.0.0")
	before.call("POST", before.of("deployments/"+one+"/status"), oldStatus(t, "pending", "web", "pending", "db", "pending"))
	signer = before.signer
	after := newSignedRig(t, wfmsim.RC2, keep)
	after.id = before.id
	if a := after.call("GET", after.of("deployments"), nil); a.status != 200 {
		t.Errorf("got %d %s", a.status, a.body)
	}
	if reports := after.wfm.Statuses(one); len(reports) != 1 || reports[0].Status.State != margo.Pending {
		t.Errorf("got %+v", reports)
	}
}

func TestFaultsBeforeRC3SpeakItsLanguage(t *testing.T) {
	r := newSignedRig(t, wfmsim.RC2, nil)
	r.onboard()
	for _, status := range []int{400, 401, 403, 404, 429, 500, 503} {
		if _, err := r.wfm.Faults().Inject(fault.Fault{Endpoint: wfmsim.EndpointManifest, Client: r.id, Kind: fault.Answer, Status: status, Times: 1}); err != nil {
			t.Fatal(err)
		}
		a := r.call("GET", r.of("deployments"), nil)
		if a.refusal(t); a.status != status || (a.header.Get("Retry-After") != "") != (status == 429 || status == 503) {
			t.Errorf("%d: got %d %s", status, a.status, a.body)
		}
	}
	if a := r.call("GET", r.of("deployments"), nil); a.status != 200 {
		t.Errorf("afterwards: got %d", a.status)
	}
	for _, flaw := range r.ordinary.Flaws() {
		if _, err := r.wfm.Faults().Inject(fault.Fault{Endpoint: wfmsim.EndpointHandshake, Kind: fault.Certificate, What: flaw, Times: 1}); err != nil {
			t.Fatal(err)
		}
		r.client.CloseIdleConnections()
		if a, err := r.try(&r.sign, "GET", r.of("deployments"), nil); err == nil {
			t.Errorf("%s: got %d", flaw, a.status)
		}
	}
	if !strings.HasPrefix(r.wfm.URL(), "https://") {
		t.Errorf("URL %s", r.wfm.URL())
	}
}
