package wfm_test

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/margolite/margolite/agent/identity"
	"github.com/margolite/margolite/agent/margo"
	"github.com/margolite/margolite/agent/wfm"
	"github.com/margolite/margolite/store"
	"github.com/margolite/margolite/test/expect"
	"github.com/margolite/margolite/test/pki"
	"github.com/margolite/margolite/test/wfmsim/signature"
)

const (
	deployment = "a3e2f5dc-912e-494f-8395-52cf3769bc06"
	clientID   = "0d6c5d2e-7c2a-4f5e-9a39-8f7e7d6c5b4a"
	below      = "/api/v1/clients/" + clientID + "/"
)

// signedDevice is a device certificate in files.
type signedDevice struct {
	*identity.Device
	leaf *x509.Certificate
}

func p256(t *testing.T) signedDevice {
	t.Helper()
	svid := expect.Value(expect.Value(pki.NewServerAuthority("plant", time.Now()))(t).IssueSigner("edge-01"))(t)
	dir := t.TempDir()
	o := identity.Options{Certificate: filepath.Join(dir, "device.pem"), Key: filepath.Join(dir, "device.key")}
	write(t, o.Certificate, svid.CertificatePEM())
	write(t, o.Key, expect.Value(svid.KeyPEM())(t))
	return signedDevice{expect.Value(identity.LoadDevice(o))(t), svid.Chain[0]}
}

func write(t *testing.T, path string, data []byte) {
	t.Helper()
	check(t, os.WriteFile(path, data, 0o600))
}

// signedServer is a WFM of the revisions before rc.3: TLS with an ordinary
// certificate, and every request checked by another implementation of RFC 9421.
type signedServer struct {
	*server
	t      *testing.T
	device signedDevice
	ca     string // file with the anchor of its certificate
}

func serveSigned(t *testing.T) *signedServer {
	t.Helper()
	s := &signedServer{server: unstarted(), t: t, device: p256(t)}
	s.Config.Handler = http.HandlerFunc(s.check)
	s.StartTLS()
	t.Cleanup(s.Close)
	s.ca = filepath.Join(t.TempDir(), "ca.pem")
	write(t, s.ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}))
	return s
}

// check fails the test for a request that a strict WFM would not accept.
func (s *signedServer) check(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	expect.OK(s.t, err)
	r.Body = io.NopCloser(bytes.NewReader(body))
	if r.URL.Path == "/api/v1/onboarding/certificate" {
		expect.Equal(s.t, r.Header.Get("Signature"), "", "the request for the root certificate is signed")
		s.ServeHTTP(w, r)
		return
	}
	if err := signature.Verify(r, body, s.device.leaf.PublicKey, time.Now()); err != nil {
		s.t.Errorf("%s %s: %v", r.Method, r.URL, err)
		plain(401, `{"error":"Invalid signature"}`)(w, r)
		return
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	s.ServeHTTP(w, r)
}

// client is one of the device that speaks to s and trusts it by its anchor.
func (s *signedServer) client(dialect margo.Revision, change ...func(*wfm.Options)) *wfm.Client {
	s.t.Helper()
	o := wfm.Options{
		URL: s.URL, TLS: expect.Value(identity.ServerTLS(identity.ServerOptions{CA: s.ca}))(s.t),
		Dialect: dialect, ClientID: clientID, Sign: s.device.Sign, Spool: passing{incoming(s.t, store.Options{})}, Timeout: 10 * time.Second,
	}
	for _, c := range change {
		c(&o)
	}
	c := expect.Value(wfm.New(o))(s.t)
	s.t.Cleanup(c.CloseIdle)
	return c
}

func plain(status int, body string) http.HandlerFunc {
	return serveProblem(status, body, "Content-Type", "application/json")
}

func statusReport() []byte {
	return expect.Must(margo.Status{
		DeploymentID: deployment, DeviceID: "edge-01", AdoptedVersion: 7, State: margo.Failed,
		Error:      &margo.Fault{Code: "ERR_IMAGE_PULL", Source: "shop", Message: "no image"},
		Components: []margo.ComponentStatus{{Name: "web", State: margo.Failed, Error: &margo.Fault{Code: "ERR_IMAGE_PULL", Source: "web", Message: "no image"}}},
	}.Marshal())
}

func capabilities(id string) []byte {
	c := margo.Capabilities{Properties: margo.Properties{
		ID: id, Vendor: "Northstar", ModelNumber: "N1", SerialNumber: "1",
		Hosting: &margo.Hosting{
			CPUs: []margo.CPU{{Cores: 4, Architecture: "amd64"}}, Memory: 2 * margo.GiB, Storage: 16 * margo.GiB,
			OTelCollector: true, Runtimes: []string{"oci"}, DeploymentTypes: []margo.DeploymentType{margo.Compose},
		},
	}}
	c.Labels = map[string]any{"example.com/line": "7"}
	return expect.Must(c.Marshal())
}

func TestAUTH02AUTH08RootCertificateComesUnsignedOverATrustedConnection(t *testing.T) {
	s := serveSigned(t)
	root := expect.Value(os.ReadFile(s.ca))(t)
	text := base64.StdEncoding.EncodeToString
	for name, body := range map[string]string{
		"base64 of DER": `{"certificate":"` + text(s.Certificate().Raw) + `"}`,
		"no JSON":       string(root),
	} {
		t.Run(name, func(t *testing.T) {
			s.handle("GET /api/v1/onboarding/certificate", plain(200, body))
			got := expect.Value(s.client(margo.RC2).RootCertificate(t.Context()))(t)
			anchors, err := identity.ParseAnchors(got)
			expect.True(t, err == nil && len(anchors) == 1 && anchors[0].Equal(s.Certificate()), "got %d anchors, %v", len(anchors), err)
		})
	}
	config := expect.Value(identity.ServerTLS(identity.ServerOptions{Root: newTrust(t).authority.BundlePEM()}))(t)
	s.took()
	_, err := s.client(margo.RC2, func(o *wfm.Options) { o.TLS = config }).RootCertificate(t.Context())
	expect.True(t, err != nil && len(s.took()) == 0, "a server that is not trusted was asked: %v", err)
	s.handle("GET /api/v1/onboarding/certificate", plain(200, `{}`))
	expect.ErrorWith(t, expect.ErrorOf(s.client(margo.RC2).RootCertificate(t.Context())), "cannot get root certificate", "an answer without one")
	_, rc3 := pair(t)
	expect.Error(t, expect.ErrorOf(rc3.RootCertificate(t.Context())), errors.ErrUnsupported, "rc.3")
}

func long(n int) string { return strings.Repeat("x", n) }

// That each kind of key signs is shown by identity.TestAUTH09SignaturesOfEachAlgorithmVerifyElsewhere.
func TestAUTH04AUTH05ClientIDIsInAllPaths(t *testing.T) {
	s := serveSigned(t)
	s.handle("POST /api/v1/onboarding", func(w http.ResponseWriter, r *http.Request) {
		expect.Equal(t, expect.Value(io.ReadAll(r.Body))(t), expect.Value(margo.OnboardingRequest(s.device.CertificatePEM(), false))(t), "the request")
		plain(201, `{"clientId":"`+clientID+`"}`)(w, r)
	})
	f := newFleet(2, 100)
	for i, ref := range f.manifest.Deployments { // URLs that lead nowhere, so that paths have to be made
		f.manifest.Deployments[i].URL = "/nowhere"
		s.handle("GET "+below+"deployments/"+ref.ID+"/"+ref.Digest.String(), serveBytes(f.documents[ref.ID]))
	}
	f.manifest.Bundle.URL = "/nowhere"
	s.handle("GET "+below+"bundles/"+f.manifest.Bundle.Digest.String(), serveBytes(f.bundle))
	s.handle("GET "+below+"deployments", serveManifest(f.raw()))
	s.handle("POST "+below+"deployments/"+deployment+"/status", plain(200, ""))
	s.handle("POST "+below+"capabilities/edge-01", plain(201, ""))
	s.handle("DELETE "+below+"capabilities/edge-01", plain(204, ""))

	c := s.client(margo.RC2, func(o *wfm.Options) { o.ClientID = "" })
	expect.Error(t, expect.ErrorOf(c.Manifest(t.Context(), "")), wfm.ErrNotOnboarded, "before onboarding")
	expect.Error(t, c.PostStatus(t.Context(), deployment, statusReport()), wfm.ErrNotOnboarded, "before onboarding")
	expect.Equal(t, expect.Value(c.Onboard(t.Context(), s.device.CertificatePEM()))(t), clientID, "client id")
	for _, c := range map[string]*wfm.Client{"onboarded": c, "made with the id kept": s.client(margo.RC2)} {
		m := expect.Value(c.Manifest(t.Context(), ""))(t)
		expect.Error(t, expect.ErrorOf(c.Manifest(t.Context(), m.ETag)), wfm.ErrNotModified, "second poll")
		for _, need := range [][]margo.DeploymentRef{m.Deployments, m.Deployments[:1]} {
			expect.OK(t, c.Documents(t.Context(), m, need, ignored))
		}
		expect.OK(t, c.PostStatus(t.Context(), deployment, statusReport()))
		expect.OK(t, c.PutCapabilities(t.Context(), "edge-01", capabilities("edge-01")))
		expect.OK(t, c.DeleteCapabilities(t.Context(), "edge-01"))
	}
	_, err := wfm.New(wfm.Options{URL: s.URL, TLS: &tls.Config{}, Dialect: margo.RC2, Sign: s.device.Sign, ClientID: ".."})
	expect.ErrorWith(t, err, "cannot connect", "a client id that leads elsewhere")
}

// Every request of AUTH-05's test and of most others was verified as it
// arrived, by another implementation; what is left to show is that there is no
// way around, and no signature that is sent twice.
func TestAUTH08AUTH11EachAttemptIsSignedAgain(t *testing.T) {
	s := serveSigned(t)
	_, err := wfm.New(wfm.Options{URL: s.URL, TLS: &tls.Config{}, Dialect: margo.RC1})
	expect.ErrorWith(t, err, "without signing", "a client without a signer")
	s.handle("POST "+below+"deployments/"+deployment+"/status", plain(503, ""))
	signatures := 0
	var broken error
	c := s.client(margo.RC2, func(o *wfm.Options) {
		o.Sign = func(r *http.Request, body []byte) error {
			signatures++
			return errors.Join(broken, s.device.Sign(r, body))
		}
	})
	for range 3 {
		expect.ErrorWith(t, c.PostStatus(t.Context(), deployment, statusReport()), "503", "while the WFM is busy")
	}
	if arrived := s.took(); signatures != 3 || len(arrived) != 3 {
		t.Errorf("%d signatures for %d requests", signatures, len(arrived))
	}
	broken = errors.New("the key is gone")
	_, err = c.Manifest(t.Context(), "")
	expect.True(t, errors.Is(err, broken) && retries(err) && len(s.took()) == 0, "error %v", err)
}

func TestOnboardingThatIsRefused(t *testing.T) {
	s := serveSigned(t)
	tests := map[string]struct {
		handler http.HandlerFunc
		want    error
		after   time.Duration // what makes sense
		asked   time.Duration // what the WFM asked for
		text    string
	}{
		"A-61 not approved yet, or rejected": {plain(403, `{"error":"Client rejected"}`), wfm.ErrNotApproved, 10 * time.Minute, 0, "Client rejected"},
		"not approved, with a time":          {serveProblem(403, "", "Retry-After", "3600"), wfm.ErrNotApproved, time.Hour, time.Hour, "not approved"},
		"not approved, with a short time":    {serveProblem(403, "", "Retry-After", "5"), wfm.ErrNotApproved, 10 * time.Minute, 5 * time.Second, "not approved"},
		"a certificate that is not liked":    {plain(400, `{"Error":"Invalid certificate"}`), wfm.ErrCertificateRefused, 10 * time.Minute, 0, "Invalid certificate"},
		"a signature that is not accepted":   {plain(401, `{"error":"Invalid signature","message":"created is too old"}`), wfm.ErrUnauthenticated, 10 * time.Minute, 0, "created is too old"},
		"a certificate that has an id":       {plain(409, `{"Error":"Device signature already exists"}`), wfm.ErrCertificateKnown, 10 * time.Minute, 0, "set wfm.clientId"},
		"no such path":                       {plain(404, ""), nil, 10 * time.Minute, 0, "404"},
		"busy":                               {serveProblem(429, "", "Retry-After", "5"), nil, 5 * time.Second, 5 * time.Second, "429"},
		"broken":                             {plain(500, ""), nil, 0, 0, "500"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			s.handle("POST /api/v1/onboarding", test.handler)
			s.took()
			c := s.client(margo.RC2, func(o *wfm.Options) { o.ClientID = "" })
			_, err := c.Onboard(t.Context(), s.device.CertificatePEM())
			var answer *wfm.Error
			if !errors.As(err, &answer) || !strings.Contains(err.Error(), test.text) {
				t.Fatalf("error %v does not say %q", err, test.text)
			}
			for _, sentinel := range []error{wfm.ErrNotApproved, wfm.ErrCertificateRefused, wfm.ErrCertificateKnown, wfm.ErrUnauthenticated, wfm.ErrClientUnknown} {
				expect.Equal(t, errors.Is(err, sentinel), sentinel == test.want, "error %v is %q", err, sentinel)
			}
			_, after := wfm.Retry(err)
			expect.Equal(t, after, test.after, "to be repeated after")
			expect.Equal(t, wfm.Silence(errors.Join(io.EOF, fmt.Errorf("cannot poll: %w", err))), test.asked, "silence")
			requests := 1
			if answer.Status == 400 {
				requests = 2 // also with the early name of the field
			}
			expect.Equal(t, len(s.took()), requests, "requests")
			expect.Equal(t, c.ClientID(), "", "there is a client id")
		})
	}
	_, rc3 := pair(t)
	expect.Error(t, expect.ErrorOf(rc3.Onboard(t.Context(), nil)), errors.ErrUnsupported, "rc.3")
}

func TestEarlyOnboardingOfRC1(t *testing.T) {
	s := serveSigned(t)
	early := func(answer http.HandlerFunc) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			if bytes.Contains(expect.Value(io.ReadAll(r.Body))(t), []byte("public_certificate")) {
				answer(w, r)
				return
			}
			plain(400, `{"error":"public_certificate is missing"}`)(w, r)
		}
	}
	tests := map[string]struct {
		handler http.HandlerFunc
		id      string
		err     error
	}{
		"approved":   {early(plain(201, `{"client_id":"2"}`)), "2", nil},
		"unapproved": {early(plain(403, "")), "", wfm.ErrNotApproved},
	}
	for name, test := range tests {
		for _, dialect := range []margo.Revision{margo.RC1, margo.RC2} {
			t.Run(name+" to "+dialect.String(), func(t *testing.T) {
				s.handle("POST /api/v1/onboarding", test.handler)
				s.took()
				c := s.client(dialect, func(o *wfm.Options) { o.ClientID = "" })
				id, err := c.Onboard(t.Context(), s.device.CertificatePEM())
				if got := s.took(); id != test.id || !errors.Is(err, test.err) || len(got) != 2 {
					t.Errorf("got %q, %v by requests %q", id, err, got)
				}
			})
		}
	}
}

// The WFM of the Margo sandbox wants the client id where the standard has the device's,
// and knows states by capitalised names, which its documents give away.
func TestTheHabitsOfAWFMAreLearned(t *testing.T) {
	s := serveSigned(t)
	const put = "PUT " + below + "capabilities"
	var puts, states []string
	s.handle(put, func(w http.ResponseWriter, r *http.Request) {
		var body struct{ Properties struct{ ID string } }
		expect.Value(0, json.NewDecoder(r.Body).Decode(&body))(t)
		puts = append(puts, body.Properties.ID)
		if body.Properties.ID != clientID {
			plain(400, `{"Error":"Bad Request: device ID mismatch"}`)(w, r)
		}
	})
	s.handle("POST "+below+"deployments/"+deployment+"/status", func(_ http.ResponseWriter, r *http.Request) {
		var body struct{ Status, Components any }
		expect.Value(0, json.NewDecoder(r.Body).Decode(&body))(t)
		states = append(states, fmt.Sprint(body.Status, body.Components))
	})
	c := s.client(margo.RC1)
	report := func(c *wfm.Client) {
		t.Helper()
		check(t, errors.Join(
			c.PutCapabilities(t.Context(), "edge-01", capabilities("edge-01")), c.PostStatus(t.Context(), deployment, statusReport()),
		))
	}
	report(c)
	sandbox := []byte("kind: ApplicationDeploymentManifest\nmetadata: {id: " + deployment + "}\n")
	s.handle("GET "+below+"deployments/"+deployment+"/"+digest.FromBytes(sandbox).String(), serveBytes(sandbox))
	ref := margo.DeploymentRef{ID: deployment, Digest: digest.FromBytes(sandbox)}
	m := &wfm.Manifest{StateManifest: &margo.StateManifest{Deployments: []margo.DeploymentRef{ref}}}
	check(t, c.Documents(t.Context(), m, m.Deployments, func(digest.Digest, []byte) error { return nil }))
	report(c)
	report(s.client(margo.RC1, func(o *wfm.Options) { o.Habits = c.Habits() })) // after a restart
	expect.Equal(t, puts, []string{"edge-01", clientID, clientID, clientID}, "capabilities")
	for i, capitalised := range []bool{false, true, true} {
		if strings.Contains(states[i], "state:Failed") != capitalised || strings.Contains(states[i], "state:failed") == capitalised {
			t.Errorf("report %d has %s", i, states[i])
		}
	}
}

func TestWhatAnAnswerSaysAboutTheClient(t *testing.T) {
	s := serveSigned(t)
	const invalidClient = `{"type":"https://docs.margo.org/specification/problem-types#invalid-client"}`
	c := s.client(margo.RC2)
	poll := func() error { _, err := c.Manifest(t.Context(), ""); return err }
	put := func() error { return c.PutCapabilities(t.Context(), "edge-01", capabilities("edge-01")) }
	child := func() error { return c.PutCapabilities(t.Context(), "edge-01/a", capabilities("edge-01/a")) }
	post := func() error { return c.PostStatus(t.Context(), deployment, statusReport()) }
	tests := map[string]struct {
		route   string
		handler http.HandlerFunc
		do      func() error
		want    error
	}{
		"404 for the manifest":           {"GET " + below + "deployments", plain(404, ""), poll, wfm.ErrClientUnknown},
		"404 for capabilities":           {"PUT " + below + "capabilities/edge-01", plain(404, ""), put, wfm.ErrClientUnknown},
		"404 for a child's capabilities": {"PUT " + below + "capabilities/edge-01/a", plain(404, ""), child, nil},
		"404 for capabilities of a gateway's": {
			"PUT " + below + "capabilities/edge-01",
			serveProblem(404, `{"type":"`+margo.ProblemBase+`gateway-not-found"}`), put, nil,
		},
		"404 for a status":                  {"POST " + below + "deployments/" + deployment + "/status", plain(404, ""), post, nil},
		"404 for a status, with the reason": {"POST " + below + "deployments/" + deployment + "/status", serveProblem(404, invalidClient), post, wfm.ErrClientUnknown},
		"401":                               {"GET " + below + "deployments", plain(401, `{"error":"Invalid signature"}`), poll, wfm.ErrUnauthenticated},
		"403":                               {"GET " + below + "deployments", plain(403, ""), poll, nil},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			s.handle(test.route, test.handler)
			err := test.do()
			var answer *wfm.Error
			expect.Require(t, errors.As(err, &answer), "error %v", err)
			for _, sentinel := range []error{wfm.ErrClientUnknown, wfm.ErrUnauthenticated, wfm.ErrNotApproved} {
				expect.Equal(t, errors.Is(err, sentinel), sentinel == test.want, "error %v is %q", err, sentinel)
			}
			expect.Equal(t, retries(err), false, "to be repeated at once") // no loop
		})
	}
	// In rc.3 these answers mean nothing of the kind.
	other, rc3 := pair(t)
	for _, status := range []int{401, 404} {
		other.handle(manifestRoute, plain(status, ""))
		if _, err := rc3.Manifest(t.Context(), ""); errors.Is(err, wfm.ErrClientUnknown) || errors.Is(err, wfm.ErrUnauthenticated) {
			t.Errorf("rc.3: %v", err)
		}
	}
}

// Which method and path a WFM has is found out by reports, and remembered.
func TestCAP06MethodsOfTheRevision(t *testing.T) {
	const (
		post, put           = "POST " + below + "capabilities/edge-01", "PUT " + below + "capabilities/edge-01"
		olderPost, olderPut = "POST " + below + "capabilities", "PUT " + below + "capabilities"
		plural, singular    = "POST " + below + "deployments/" + deployment + "/status", "POST " + below + "deployment/" + deployment + "/status"
		statuses            = plural + "es"
	)
	tests := map[string]struct {
		dialect   margo.Revision
		onboarded bool
		status    map[string]int // by route; 404 otherwise
		want      [][]string     // the requests of each report; the last one decides
	}{
		"the first report is a POST, later ones are PUTs": {margo.RC2, true, map[string]int{post: 201, put: 201}, [][]string{{post}, {put}, {put}}},
		"without knowing, PUT is tried first":             {margo.RC2, false, map[string]int{post: 201, put: 201}, [][]string{{put}, {put}}},
		"a PUT of what is not there":                      {margo.RC2, false, map[string]int{post: 201, put: 404}, [][]string{{put, post}, {put, post}}},
		"no PUT at all":                                   {margo.RC2, false, map[string]int{post: 201, put: 405}, [][]string{{put, post}}},
		"no POST at all":                                  {margo.RC2, true, map[string]int{post: 405, put: 201}, [][]string{{post, put}, {put}}},
		"a POST of what is there":                         {margo.RC2, true, map[string]int{post: 409, put: 201}, [][]string{{post, put}, {put}}},
		"the path of rc.1":                                {margo.RC2, false, map[string]int{olderPost: 201, olderPut: 200}, [][]string{{put, post, olderPut}, {olderPut}}},
		"nothing at all":                                  {margo.RC2, false, nil, [][]string{{put, post, olderPut, olderPost}}},
		"a refusal is final":                              {margo.RC2, false, map[string]int{put: 422}, [][]string{{put}}},
		"rc.1, first and later reports":                   {margo.RC1, true, map[string]int{olderPost: 201, olderPut: 201}, [][]string{{olderPost}, {olderPut}}},
		"rc.1, the path of rc.2":                          {margo.RC1, false, map[string]int{post: 201, put: 404}, [][]string{{olderPut, olderPost, put, post}, {put, post}}},

		"status":                          {margo.RC2, false, map[string]int{plural: 200}, [][]string{{plural}, {plural}}},
		"status, statuses":                {margo.RC2, false, map[string]int{statuses: 200}, [][]string{{plural, statuses}, {statuses}}},
		"status, never singular":          {margo.RC2, false, map[string]int{singular: 201}, [][]string{{plural, statuses}, {plural, statuses}}},
		"rc.1, status, singular":          {margo.RC1, false, map[string]int{singular: 201}, [][]string{{plural, statuses, singular}, {singular}}},
		"rc.1, status, singular, refused": {margo.RC1, false, map[string]int{singular: 422}, [][]string{{plural, statuses, singular}, {singular}}},
		"rc.1, status, not known":         {margo.RC1, false, nil, [][]string{{plural, statuses, singular}, {plural, statuses, singular}}},
		"rc.1, status, busy":              {margo.RC1, false, map[string]int{plural: 503}, [][]string{{plural}, {plural}}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			s := serveSigned(t)
			s.handle("POST /api/v1/onboarding", plain(201, `{"clientId":"`+clientID+`"}`))
			for route, status := range test.status {
				s.handle(route, plain(status, ""))
			}
			c := s.client(test.dialect)
			if test.onboarded {
				expect.Value(c.Onboard(t.Context(), s.device.CertificatePEM()))(t)
			}
			s.took()
			for _, want := range test.want {
				var err error
				if want[0] == plural || want[0] == statuses || want[0] == singular {
					err = c.PostStatus(t.Context(), deployment, statusReport())
				} else {
					err = c.PutCapabilities(t.Context(), "edge-01", capabilities("edge-01"))
				}
				expect.Equal(t, err == nil, test.status[want[len(want)-1]]/100 == 2, "success (%v)", err)
				expect.Equal(t, s.took(), want, "requests")
			}
		})
	}
}

func TestCAP06DeleteUnregisters(t *testing.T) {
	s, rc3 := pair(t)
	rc2 := serveSigned(t)
	clients := map[string]struct {
		*server
		client *wfm.Client
		route  string
	}{
		"rc.3": {s, rc3, "DELETE /api/v1/capabilities/gw/one"},
		"rc.2": {rc2.server, rc2.client(margo.RC2), "DELETE " + below + "capabilities/gw/one"},
	}
	for name, c := range clients {
		t.Run(name, func(t *testing.T) {
			for status, want := range map[int]bool{204: true, 200: true, 404: true, 405: false, 403: false, 500: false} {
				c.handle(c.route, func(w http.ResponseWriter, r *http.Request) {
					expect.True(t, r.ContentLength <= 0 && r.Header.Get("Content-Type") == "", "the request has a body")
					w.WriteHeader(status)
				})
				err := c.client.DeleteCapabilities(t.Context(), "gw/one")
				expect.Equal(t, err == nil, want, "%d: success (%v)", status, err)
			}
		})
	}
	expect.Error(t, rc2.client(margo.RC1).DeleteCapabilities(t.Context(), "gw/one"), errors.ErrUnsupported, "rc.1")
}

func TestBodiesAreThoseOfTheDialect(t *testing.T) {
	status, device := expect.Value(margo.ParseStatus(statusReport()))(t), expect.Value(margo.ParseCapabilities(capabilities("edge-01")))(t)
	s := serveSigned(t)
	var sent []string
	for _, route := range []string{"POST " + below + "deployments/" + deployment + "/status", "PUT " + below + "capabilities/edge-01", "PUT " + below + "capabilities"} {
		s.handle(route, func(w http.ResponseWriter, r *http.Request) {
			sent = append(sent, string(expect.Value(io.ReadAll(r.Body))(t)))
			w.WriteHeader(http.StatusCreated)
		})
	}
	for _, dialect := range []margo.Revision{margo.RC2, margo.RC1} {
		sent = nil
		c := s.client(dialect)
		expect.OK(t, c.PostStatus(t.Context(), deployment, statusReport()))
		expect.OK(t, c.PutCapabilities(t.Context(), "edge-01", capabilities("edge-01")))
		want := []string{string(expect.Value(status.MarshalFor(dialect, false))(t)), string(expect.Value(device.MarshalFor(dialect))(t))}
		expect.Equal(t, sent, want, "%s", dialect)
	}
	c := s.client(margo.RC2)
	s.took()
	for name, err := range map[string]error{
		"status":       c.PostStatus(t.Context(), deployment, []byte(`{}`)),
		"capabilities": c.PutCapabilities(t.Context(), "edge-01", []byte(`{}`)),
	} {
		expect.True(t, err != nil && !retries(err) && len(s.took()) == 0, "%s that cannot be translated: %v", name, err)
	}
}

func TestCredentialsAreOneLineOfAFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "secret")
	basic, bearer := identity.BasicFile(path), identity.BearerFile(path)
	for content, want := range map[string][2]string{
		"user:päss word\r\n": {"Basic " + base64.StdEncoding.EncodeToString([]byte("user:päss word")), ""},
		"abc.DEF-123_~+/==":  {"", "Bearer abc.DEF-123_~+/=="},
		"":                   {"", ""},
		"\n":                 {"", ""},
		"user:pass\nmore\n":  {"", ""},
		"a b":                {"", ""},
		"a:" + long(8<<10):   {"", ""},
		"a:\x00":             {"", ""},
		"Bearer:1":           {"Basic QmVhcmVyOjE=", "Bearer Bearer:1"},
	} {
		write(t, path, []byte(content))
		for i, read := range []func() (string, error){basic, bearer} {
			got, err := read()
			if got != want[i] || (err == nil) != (want[i] != "") {
				t.Errorf("%.20q: got %q, %v; want %q", content, got, err, want[i])
			}
			if err != nil && content != "" && content != "\n" && strings.Contains(err.Error(), content) {
				t.Errorf("the error tells the secret: %v", err)
			}
		}
	}
}

func TestManifestThatIsNotAcceptableIsAskedForWithoutAType(t *testing.T) {
	s, c := pair(t)
	s.handle(manifestRoute, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Accept") != "" {
			serveProblem(406, `{"type":"`+margo.ProblemBase+`server-cannot-generate-response"}`)(w, r)
			return
		}
		serveManifest(newFleet(1, 1).raw())(w, r)
	})
	for _, requests := range []int{2, 1} { // remembered
		expect.OK(t, expect.ErrorOf(c.Manifest(t.Context(), "")))
		expect.Equal(t, len(s.took()), requests, "requests")
	}
	c = s.client(t)
	s.handle(manifestRoute, serveProblem(406, ""))
	_, err := c.Manifest(t.Context(), "")
	if got := s.took(); err == nil || len(got) != 2 {
		t.Errorf("requests %q, error %v", got, err)
	}
}

// retries reports whether a client may repeat what failed.
func retries(err error) bool {
	again, _ := wfm.Retry(err)
	return again
}

// ignored is for documents that a test does not look at.
func ignored(digest.Digest, []byte) error { return nil }
