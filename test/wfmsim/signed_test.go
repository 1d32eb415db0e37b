package wfmsim_test

import (
	"bytes"
	"crypto"
	"encoding/json"
	"net/http"
	"testing"
	"time"

	"github.com/margolite/margolite/agent/identity"
	"github.com/margolite/margolite/agent/margo"
	"github.com/margolite/margolite/test/expect"
	"github.com/margolite/margolite/test/pki"
	"github.com/margolite/margolite/test/wfmsim"
)

// signedRig is a WFM of rc.2 and a client that signs.
type signedRig struct {
	*rig
	ordinary *pki.ServerAuthority
	signer   *pki.SVID // of the client
	id       string    // of the client; empty: not onboarded
}

func newSignedRig(t *testing.T) *signedRig {
	t.Helper()
	ordinary := expect.Value(pki.NewServerAuthority("Public", time.Now()))(t)
	r := &signedRig{ordinary: ordinary}
	r.signer = expect.Value(ordinary.IssueSigner(deviceID))(t)
	server := expect.Value(ordinary.IssueServer([]string{"127.0.0.1"}))(t)
	r.rig = newRig(t, func(o *wfmsim.Options) {
		*o = wfmsim.Options{Revision: margo.RC2, SVID: server.TLS(), ClientCAs: ordinary.Pool()}
	})
	r.sign = r.signedBy(r.signer.Key)
	return r
}

func (r *signedRig) signedBy(key crypto.Signer) *identity.Signer {
	r.t.Helper()
	return expect.Value(identity.NewSigner(key, nil))(r.t)
}

// of is a path of the client.
func (r *signedRig) of(path string) string { return "/api/v1/clients/" + r.id + "/" + path }

func onboarding(certificate []byte) []byte {
	return expect.Must(margo.OnboardingRequest(certificate, false))
}

func (r *signedRig) onboard() {
	r.t.Helper()
	a := r.call(http.MethodPost, "/api/v1/onboarding", onboarding(r.signer.CertificatePEM()))
	var err error
	if r.id, err = margo.ParseOnboarding(a.body); err != nil || a.status != http.StatusCreated {
		r.t.Fatalf("onboarding: %d %s, %v", a.status, a.body, err)
	}
}

func TestOnboardingIsStrict(t *testing.T) {
	r := newSignedRig(t)
	elsewhere := expect.Value(pki.NewServerAuthority("Elsewhere", time.Now()))(t)
	issue := func(authority *pki.ServerAuthority, options ...pki.Option) *pki.SVID {
		t.Helper()
		return expect.Value(authority.IssueSigner("x", options...))(t)
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
		"another kind":               {body: bytes.Replace(good, []byte("OnboardingRequest"), []byte("Onboarding"), 1), status: 400},
		"the first rc.1's field":     {body: bytes.Replace(good, []byte(`"certificate"`), []byte(`"public_certificate"`), 1), status: 400},
		"another content type":       {body: good, header: []string{"Content-Type", "text/plain"}, status: 415},
		"a digest of something else": {body: good, header: []string{"Content-Digest", "sha-256=:47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=:"}, status: 400, error: "Invalid content-digest"},
	} {
		t.Run(name, func(t *testing.T) {
			sign := r.sign
			if c.key != nil {
				sign = r.signedBy(c.key)
			}
			a := expect.Value(r.send(r.client, sign, http.MethodPost, "/api/v1/onboarding", c.body, c.header...))(t)
			var said struct{ Error string }
			if err := json.Unmarshal(a.body, &said); err != nil || a.status != c.status || said.Error == "" || c.error != "" && said.Error != c.error {
				t.Errorf("got %d %s, %v", a.status, a.body, err)
			}
		})
	}
}

func TestEveryRequestIsSigned(t *testing.T) {
	r := newSignedRig(t)
	r.onboard()
	expect.Value(r.wfm.Publish(r.id, deploymentOf(t, one, "1.0.0")))(t)
	m := expect.Value(margo.ParseStateManifest(r.call("GET", r.of("deployments"), nil).body))(t)
	other := expect.Value(r.ordinary.IssueSigner("other"))(t)
	stranger := r.signedBy(other.Key)
	device := expect.Value(margo.ParseCapabilities(capabilitiesOf(deviceID)))(t)
	capabilities := expect.Value(device.MarshalFor(margo.RC2))(t)
	report := expect.Value(margo.Status{
		DeploymentID: one, DeviceID: deviceID, AdoptedVersion: 1, State: margo.Pending,
		Components: []margo.ComponentStatus{{Name: "web", State: margo.Pending}, {Name: "db", State: margo.Pending}},
	}.MarshalFor(margo.RC2, false))(t)
	for _, c := range []struct {
		method, path string
		body         []byte
		status       int
	}{
		{"GET", r.of("deployments"), nil, 200},
		{"HEAD", r.of("deployments"), nil, 200},
		{"GET", m.Deployments[0].URL, nil, 200},
		{"GET", m.Bundle.URL, nil, 200},
		{"POST", r.of("capabilities/" + deviceID), capabilities, 201},
		{"PUT", r.of("capabilities/" + deviceID), capabilities, 201},
		{"DELETE", r.of("capabilities/" + deviceID), nil, 204},
		{"POST", r.of("deployments/" + one + "/status"), report, 200},
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
				if a, err := r.send(r.client, sign, c.method, c.path, c.body); err != nil || a.status != want {
					t.Errorf("%s %s, signed by another or not at all: got %d %s, %v", c.method, c.path, a.status, a.body, err)
				}
			}
		}
		if a := r.call(c.method, c.path, c.body); a.status != c.status {
			t.Errorf("%s %s: got %d %s", c.method, c.path, a.status, a.body)
		}
	}
}
