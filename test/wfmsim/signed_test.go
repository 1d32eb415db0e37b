package wfmsim_test

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"io"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/margolite/margolite/agent/identity"
	"github.com/margolite/margolite/agent/margo"
	"github.com/margolite/margolite/test/pki"
	"github.com/margolite/margolite/test/wfmsim"
	"github.com/margolite/margolite/test/wfmsim/fault"
)

// signedRig is a WFM of rc.1 or rc.2 and a client that signs.
type signedRig struct {
	t        *testing.T
	wfm      *wfmsim.Server
	ordinary *pki.ServerAuthority
	signer   *pki.SVID // of the client
	sign     *identity.Signer
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
	r.sign = r.signedBy(r.signer.Key)
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
	r.client = &http.Client{Transport: transport, Timeout: 2 * time.Minute}
	return r
}

// signedBy signs with a key, by the clock of the WFM.
func (r *signedRig) signedBy(key crypto.Signer) *identity.Signer {
	r.t.Helper()
	signer, err := identity.NewSigner(key, r.time)
	if err != nil {
		r.t.Fatal(err)
	}
	return signer
}

// try sends a request that is signed by sign, or not at all where that is nil.
func (r *signedRig) try(sign *identity.Signer, method, path string, body []byte, header ...string) (answer, error) {
	r.t.Helper()
	request, err := http.NewRequest(method, r.wfm.URL()+path, bytes.NewReader(body))
	if err != nil {
		r.t.Fatal(err)
	}
	if body != nil {
		request.Header.Set("Content-Type", "application/json")
	}
	if sign != nil {
		if err := sign.Sign(request, body); err != nil {
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
	a, err := r.try(r.sign, method, path, body, header...)
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
				sign = r.signedBy(c.key)
			}
			a, err := r.try(sign, http.MethodPost, "/api/v1/onboarding", c.body, c.header...)
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
			"a report without kind":           {status, swap(good, `"kind"`, `"sort"`), 422},
			"a report of another kind":        {status, swap(good, "DeploymentStatusManifest", "DeploymentStatus"), 422},
			"a report without apiVersion":     {status, swap(good, `"apiVersion"`, `"version"`), 422},
			"a component too few":             {status, oldStatus(t, "installed", "web", "installed"), 422},
			"a report of another deployment":  {status, swap(good, one, two), 422},
			"no JSON":                         {status, []byte("installed"), 400},
			"capabilities without kind":       {capabilities, swap(described, `"kind"`, `"sort"`), 422},
			"capabilities without apiVersion": {capabilities, swap(described, `"apiVersion"`, `"version"`), 422},
		}
		if revision == wfmsim.RC2 {
			cases["labels, which rc.2 does not know"] = refused{capabilities, swap(described, `"properties"`, `"labels":{"a":"b"},"properties"`), 422}
			cases["a custom runtime, which rc.2 does not know"] = refused{capabilities, swap(described, `"oci"`, `"custom"`), 422}
			cases["an error of somebody else"] = refused{status, swap(failed, `"source":"web"`, `"source":"margolite"`), 422}
			cases["capabilities of another"] = refused{capabilities, capabilitiesRC2(t, "other"), 422}
			cases["a child before its gateway"] = refused{capabilities + "/child", capabilitiesRC2(t, deviceID+"/child"), 404}
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

func TestEveryRequestIsSigned(t *testing.T) {
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
	stranger := r.signedBy(other.Key)
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
		{"GET", "/api/v1/deployments", nil, 404},
		{"GET", "/api/v1/clients/else/deployments", nil, 404},
		{"PATCH", r.of("deployments"), nil, 405},
	} {
		if c.status < 300 {
			unsigned := 401
			if c.body != nil {
				unsigned = 400 // it has no digest either
			}
			for sign, want := range map[*identity.Signer]int{nil: unsigned, stranger: 401} {
				if a, err := r.try(sign, c.method, c.path, c.body); err != nil || a.status != want {
					t.Errorf("%s %s, signed by another or not at all: got %d %s, %v", c.method, c.path, a.status, a.body, err)
				}
			}
		}
		if a := r.call(c.method, c.path, c.body); a.status != c.status {
			t.Errorf("%s %s: got %d %s", c.method, c.path, a.status, a.body)
		}
	}
	for _, status := range []int{400, 401, 403, 404, 429, 500, 503} {
		if _, err := r.wfm.Faults().Inject(fault.Fault{Endpoint: wfmsim.EndpointManifest, Client: r.id, Kind: fault.Answer, Status: status, Times: 1}); err != nil {
			t.Fatal(err)
		}
		a := r.call("GET", r.of("deployments"), nil)
		if a.refusal(t); a.status != status || (a.header.Get("Retry-After") != "") != (status == 429 || status == 503) {
			t.Errorf("%d: got %d %s", status, a.status, a.body)
		}
	}
}
