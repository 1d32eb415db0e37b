package wfmsim_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/margolite/margolite/agent/identity"
	"github.com/margolite/margolite/agent/margo"
	"github.com/margolite/margolite/test/expect"
	"github.com/margolite/margolite/test/pki"
	"github.com/margolite/margolite/test/wfmsim"
)

const (
	deviceID = "plant-a-gw-07"
	one      = "a3e2f5dc-912e-494f-8395-52cf3769bc06"
	two      = "ad9b614e-8912-45f4-a523-372358765def"
)

// rig is a WFM and what is needed to talk to it.
type rig struct {
	t         *testing.T
	wfm       *wfmsim.Server
	authority *pki.Authority
	client    *http.Client     // of deviceID
	sign      *identity.Signer // of its requests; nil: they are not signed
}

// newRig starts a WFM; change has the last word on its options.
func newRig(t *testing.T, change func(*wfmsim.Options)) *rig {
	t.Helper()
	authority := expect.Value(pki.NewAuthority("plant.example", time.Now()))(t)
	svid := expect.Value(authority.IssueWFM("wfm-1"))(t)
	o := wfmsim.Options{
		ID:     identity.ID{TrustDomain: "plant.example", WFM: "wfm-1"},
		SVID:   svid.TLS(),
		Bundle: authority.Bundle(),
	}
	if change != nil {
		change(&o)
	}
	r := &rig{t: t, authority: authority}
	r.wfm = expect.Value(wfmsim.New(o))(t)
	expect.Check(t, r.wfm.Start(""))
	t.Cleanup(func() { _ = r.wfm.Close() })
	r.client = r.clientOf("wfm-1", deviceID)
	return r
}

// clientOf makes a client that presents an SVID of its own.
func (r *rig) clientOf(wfm, id string, options ...pki.Option) *http.Client {
	r.t.Helper()
	svid := expect.Value(r.authority.IssueClient(wfm, id, options...))(r.t)
	return r.clientWith(svid.TLS())
}

func (r *rig) clientWith(certificates ...tls.Certificate) *http.Client {
	transport := &http.Transport{TLSClientConfig: &tls.Config{
		Certificates: certificates, MinVersion: tls.VersionTLS13,
		InsecureSkipVerify: true, // who the WFM is, is not what these tests ask
	}}
	r.t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, Timeout: 2 * time.Minute}
}

// answer is what came back.
type answer struct {
	status int
	header http.Header
	body   []byte
}

func (a answer) problem(t *testing.T) margo.ProblemDetail {
	t.Helper()
	expect.Equal(t, a.header.Get("Content-Type"), margo.ProblemMediaType, "answer %d %s is no problem document", a.status, a.body)
	return margo.ParseProblem(a.header.Get("Content-Type"), a.status, a.body)
}

// send signs a request, unless sign is nil.
func (r *rig) send(client *http.Client, sign *identity.Signer, method, path string, body []byte, header ...string) (answer, error) {
	r.t.Helper()
	request := expect.Value(http.NewRequest(method, "https://"+r.wfm.Address()+path, bytes.NewReader(body)))(r.t)
	if body != nil {
		request.Header.Set("Content-Type", "application/json")
	}
	if sign != nil {
		expect.Check(r.t, sign.Sign(request, body))
	}
	for i := 0; i < len(header); i += 2 {
		request.Header.Set(header[i], header[i+1])
	}
	got, err := client.Do(request)
	if err != nil {
		return answer{}, err
	}
	defer got.Body.Close()
	text, err := io.ReadAll(got.Body)
	return answer{got.StatusCode, got.Header, text}, err
}

func (r *rig) call(method, path string, body []byte, header ...string) answer {
	r.t.Helper()
	a, err := r.send(r.client, r.sign, method, path, body, header...)
	expect.Require(r.t, err == nil, "%s %s: %v", method, path, err)
	return a
}

func (r *rig) get(path string, header ...string) answer {
	r.t.Helper()
	return r.call(http.MethodGet, path, nil, header...)
}

// deploymentOf is a document with the components web and db.
func deploymentOf(t *testing.T, id, revision string) []byte {
	t.Helper()
	return expect.Value(wfmsim.Deployment{
		ID: id, Name: "app-" + id[:4], DeviceID: deviceID,
		Components: []wfmsim.Component{
			{Name: "web", Repository: "oci://registry.example/app/web", Revision: revision},
			{Name: "db", Repository: "registry.example/app/db", Revision: revision, Timeout: "5m0s"},
		},
		Parameters: map[string]any{"GREETING": "Hello", "RETRIES": 3},
	}.Document())(t)
}

func (r *rig) publish(id, revision string) wfmsim.Published {
	r.t.Helper()
	p := expect.Value(r.wfm.Publish(deviceID, deploymentOf(r.t, id, revision)))(r.t)
	expect.Equal(r.t, len(p.Warnings), 0, "a document of our own departs from the standard: %q", p.Warnings)
	return p
}

func TestTheManifestIsNegotiated(t *testing.T) {
	r := newRig(t, nil)
	const jws = "application/vnd.margo.manifest.v1.jws+json"
	for accept, want := range map[string]int{
		"":                      200,
		margo.ManifestMediaType: 200,
		jws + ", " + margo.ManifestMediaType + ";q=0.8": 200,
		"*/*":                 200,
		"application/*;q=0.1": 200,
		jws:                   406,
		"text/html":           406,
	} {
		a := r.get("/api/v1/deployments", "Accept", accept)
		expect.Equal(t, a.status, want, "%q", accept)
		expect.True(t, want != 406 || a.problem(t).Kind() == margo.ProblemCannotGenerateResponse, "%q: problem %s", accept, a.body)
	}
}

func TestWhatIsNotThereIsAProblem(t *testing.T) {
	r := newRig(t, nil)
	p := r.publish(one, "1.0.0")
	old := expect.Value(margo.ParseStateManifest(r.get("/api/v1/deployments").body))(t)
	r.publish(one, "2.0.0")
	missing := digest.FromString("missing").String()
	for path, want := range map[string]struct {
		status int
		kind   margo.ProblemKind
	}{
		"/api/v1/deployments/" + one + "/" + missing:           {404, margo.ProblemDeploymentNotFound},
		"/api/v1/deployments/" + two + "/" + p.Digest.String(): {404, margo.ProblemDeploymentNotFound},
		"/api/v1/bundles/" + missing:                           {404, margo.ProblemInvalidBundle},
		old.Bundle.URL:                                         {404, margo.ProblemInvalidBundle},
		old.Deployments[0].URL:                                 {200, ""}, // immutable
		"/api/v1/onboarding":                                   {404, ""},
		"/api/v1/clients/x/deployments":                        {404, ""},
		"/api/v1/deployments/":                                 {404, ""},
		"/api/v1/deployments/" + one:                           {404, ""},
		"/":                                                    {404, ""},
	} {
		a := r.get(path)
		expect.Equal(t, a.status, want.status, "%s", path)
		if a.status == 404 {
			if p := a.problem(t); p.Kind() != want.kind || p.Status != 404 || p.Title == "" || p.Retryable {
				t.Errorf("%s: problem %s", path, a.body)
			}
		}
	}
}

func TestOnlyClientsOfThisWFMAreServed(t *testing.T) {
	r := newRig(t, func(o *wfmsim.Options) { o.Clients = []string{deviceID, "second"} })
	elsewhere := expect.Value(pki.NewAuthority("plant.example", time.Now()))(t)
	stranger := expect.Value(elsewhere.IssueClient("wfm-1", deviceID))(t)
	for name, c := range map[string]struct {
		client *http.Client
		status int // 0: the handshake fails
	}{
		"an accepted client":            {r.clientOf("wfm-1", "second"), 200},
		"a client that is not accepted": {r.clientOf("wfm-1", "third"), 403},
		"a client of another WFM":       {r.clientOf("wfm-2", deviceID), 403},
		"nobody":                        {r.clientWith(), 0},
		"a client of another authority": {r.clientWith(stranger.TLS()), 0},
	} {
		t.Run(name, func(t *testing.T) {
			a, err := r.send(c.client, nil, http.MethodGet, "/api/v1/deployments", nil)
			expect.Require(t, (err != nil) == (c.status == 0) && a.status == c.status, "got %d, %v", a.status, err)
			expect.True(t, c.status != 403 || a.problem(t).Kind() == margo.ProblemNotAuthorized, "problem %s", a.body)
		})
	}
}

// capabilitiesOf is a document as a device that hosts workloads sends it.
func capabilitiesOf(id string) []byte {
	return []byte(`{"properties":{"id":"` + id + `","vendor":"v","modelNumber":"m","serialNumber":"s",` +
		`"cpus":[{"cores":4,"architecture":"amd64"}],"memory":"8Gi","storage":"64Gi","peripherals":[],` +
		`"interfaces":[{"type":"ethernet"}],"otelCollector":true,"supportedRuntimes":["oci"],"supportedDeploymentTypes":["compose"]}}`)
}

func TestCapabilitiesComeAndGo(t *testing.T) {
	r := newRig(t, nil)
	path := "/api/v1/capabilities/" + deviceID
	for _, step := range []struct {
		method, path string
		body         []byte
		status       int
		kind         margo.ProblemKind
	}{
		{"DELETE", path, nil, 404, margo.ProblemDeviceNotFound},
		{"PUT", path + "/child", capabilitiesOf(deviceID + "/child"), 404, margo.ProblemGatewayNotFound},
		{"PUT", path, capabilitiesOf(deviceID), 201, ""},
		{"PUT", path, capabilitiesOf(deviceID), 200, ""},
		{"PUT", path + "/child", capabilitiesOf(deviceID + "/child"), 201, ""},
		{"DELETE", path, nil, 204, ""},
		{"DELETE", path + "/child", nil, 404, margo.ProblemDeviceNotFound}, // went with its gateway
	} {
		a := r.call(step.method, step.path, step.body)
		expect.True(t, a.status == step.status, "%s %s: got %d %s, want %d", step.method, step.path, a.status, a.body, step.status)
		expect.True(t, a.status != 404 || a.problem(t).Kind() == step.kind, "%s %s: problem %s", step.method, step.path, a.body)
	}
	r.call("PUT", path, capabilitiesOf(deviceID))
	got, err := r.wfm.WaitDevice(context.Background(), deviceID, deviceID)
	expect.True(t, err == nil && got.ID == deviceID, "got %+v, %v", got, err)
}

// statusOf is a report of the deployment one; errors belong to failed states.
func statusOf(t *testing.T, version uint64, overall margo.State, components ...string) []byte {
	t.Helper()
	failure := func(state margo.State, source string) *margo.Fault {
		if state != margo.Failed {
			return nil
		}
		return &margo.Fault{Code: "ERR", Source: source, Message: "it failed"}
	}
	s := margo.Status{DeploymentID: one, DeviceID: deviceID, AdoptedVersion: version, State: overall, Error: failure(overall, "app-"+one[:4])}
	for i := 0; i < len(components); i += 2 {
		state := margo.State(components[i+1])
		s.Components = append(s.Components, margo.ComponentStatus{Name: components[i], State: state, Error: failure(state, components[i])})
	}
	return expect.Value(s.Marshal())(t)
}

func TestBadRequestsAreRefused(t *testing.T) {
	r := newRig(t, nil)
	r.publish(two, "1.0.0")
	published := r.publish(one, "1.0.0")
	version := published.Version
	status, caps := "/api/v1/deployments/"+one+"/status", "/api/v1/capabilities/"+deviceID
	good := statusOf(t, version, "installed", "web", "installed", "db", "installed")
	swap := func(body []byte, old, new string) []byte {
		t.Helper()
		expect.Require(t, bytes.Contains(body, []byte(old)), "%s has no %s", body, old)
		return bytes.Replace(body, []byte(old), []byte(new), 1)
	}
	failed := statusOf(t, version, "failed", "web", "failed", "db", "pending")
	for name, c := range map[string]struct {
		path   string
		body   []byte
		header []string
		status int
		kind   margo.ProblemKind
		field  string
	}{
		"another content type":       {path: status, body: good, header: []string{"Content-Type", "text/plain"}, status: 415},
		"another charset":            {path: status, body: good, header: []string{"Content-Type", "application/json; charset=latin1"}, status: 415},
		"an encoded body":            {path: status, body: good, header: []string{"Content-Encoding", "gzip"}, status: 415},
		"a body without end":         {path: status, body: bytes.Repeat([]byte(" "), 1<<20+1), status: 413},
		"no JSON":                    {path: status, body: []byte("installed"), status: 400, kind: margo.ProblemInvalidRequest},
		"a version of the future":    {path: status, body: statusOf(t, version+1, "installed", "web", "installed", "db", "installed"), status: 422, kind: margo.ProblemSemanticError, field: "adoptedManifestVersion"},
		"a version before it":        {path: status, body: statusOf(t, version-1, "installed", "web", "installed", "db", "installed"), status: 422, kind: margo.ProblemSemanticError, field: "adoptedManifestVersion"},
		"a component too few":        {path: status, body: statusOf(t, version, "installed", "web", "installed"), status: 422, kind: margo.ProblemSemanticError, field: "components"},
		"a component too many":       {path: status, body: statusOf(t, version, "installed", "web", "installed", "db", "installed", "x", "installed"), status: 422, kind: margo.ProblemSemanticError, field: "components"},
		"an error of somebody else":  {path: status, body: swap(failed, `"source":"web"`, `"source":"margolite"`), status: 422, kind: margo.ProblemSemanticError, field: "components.0.error.source"},
		"an overall error of nobody": {path: status, body: swap(failed, `"source":"app-`+one[:4], `"source":"x`), status: 422, kind: margo.ProblemSemanticError, field: "status.error.source"},
		"another deployment's path":  {path: "/api/v1/deployments/" + two + "/status", body: good, status: 422, kind: margo.ProblemSemanticError, field: "deploymentId"},
		"an unknown deployment":      {path: "/api/v1/deployments/" + strings.Repeat("0", 8) + one[8:] + "/status", body: swap(good, one[:8], strings.Repeat("0", 8)), status: 404},
		"capabilities of another":    {path: caps, body: capabilitiesOf("other"), status: 422, kind: margo.ProblemSemanticError, field: "properties.id"},
		"labels with a list":         {path: caps, body: swap(capabilitiesOf(deviceID), `"properties"`, `"labels":{"a":[]},"properties"`), status: 422, kind: margo.ProblemSemanticError}, // which the parser lets pass
		"an escaped path":            {path: "/api/v1/capabilities/gw%2Fchild", body: capabilitiesOf("gw/child"), status: 422, kind: margo.ProblemSemanticError, field: "properties.id"},
	} {
		t.Run(name, func(t *testing.T) {
			method := "POST"
			if strings.Contains(c.path, "/capabilities/") {
				method = "PUT"
			}
			a := r.call(method, c.path, c.body, c.header...)
			p := a.problem(t)
			if a.status != c.status || p.Kind() != c.kind || p.Retryable || p.Instance != c.path {
				t.Fatalf("got %d %s, want %d", a.status, a.body, c.status)
			}
			expect.True(t, c.status != 422 || len(p.Errors) != 0, "no errors[] in %s", a.body)
			if c.field != "" && !slices.ContainsFunc(p.Errors, func(e margo.FieldError) bool { return e.Field == c.field }) {
				t.Errorf("no error for %s in %s", c.field, a.body)
			}
		})
	}
	expect.Equal(t, len(r.wfm.Statuses("")), 0, "refused reports were kept")
	expect.Equal(t, len(r.wfm.Devices("")), 0, "refused capabilities were kept")
	gone := expect.Value(r.wfm.Remove(deviceID, one))(t)
	expect.Equal(t, r.call("POST", status, statusOf(t, gone, "installed", "web", "installed", "db", "installed")).status, 422, "installed although removed")
	a, err := r.send(r.clientOf("wfm-1", "other"), nil, http.MethodGet, "/api/v1/deployments/"+one+"/"+published.Digest.String(), nil)
	expect.True(t, err == nil && a.status == 404, "other client's document: %d, %v", a.status, err)
}
