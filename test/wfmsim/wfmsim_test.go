package wfmsim_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"path/filepath"
	"slices"
	"strconv"
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
	client    *http.Client // of deviceID
}

// newRig starts a WFM; change has the last word on its options.
func newRig(t *testing.T, change func(*wfmsim.Options)) *rig {
	t.Helper()
	authority, err := pki.NewAuthority("plant.example", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	svid, err := authority.IssueWFM("wfm-1")
	if err != nil {
		t.Fatal(err)
	}
	o := wfmsim.Options{
		ID:     identity.ID{TrustDomain: "plant.example", WFM: "wfm-1"},
		SVID:   svid.TLS(),
		Bundle: authority.Bundle(),
	}
	if change != nil {
		change(&o)
	}
	r := &rig{t: t, authority: authority}
	if r.wfm, err = wfmsim.New(o); err != nil {
		t.Fatal(err)
	}
	if err := r.wfm.Start(""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.wfm.Close() })
	r.client = r.clientOf("wfm-1", deviceID)
	return r
}

// clientOf makes a client that presents an SVID of its own.
func (r *rig) clientOf(wfm, id string, options ...pki.Option) *http.Client {
	r.t.Helper()
	svid, err := r.authority.IssueClient(wfm, id, options...)
	if err != nil {
		r.t.Fatal(err)
	}
	return r.clientWith(svid.TLS())
}

func (r *rig) clientWith(certificates ...tls.Certificate) *http.Client {
	transport := &http.Transport{TLSClientConfig: &tls.Config{
		Certificates: certificates, MinVersion: tls.VersionTLS13,
		InsecureSkipVerify: true, // who the WFM is, is not what these tests ask
	}}
	r.t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, Timeout: 20 * time.Second}
}

// answer is what came back.
type answer struct {
	status int
	header http.Header
	body   []byte
}

func (a answer) problem(t *testing.T) margo.ProblemDetail {
	t.Helper()
	if a.header.Get("Content-Type") != margo.ProblemMediaType {
		t.Errorf("answer %d %s is no problem document", a.status, a.body)
	}
	return margo.ParseProblem(a.header.Get("Content-Type"), a.status, a.body)
}

func (r *rig) try(client *http.Client, method, path string, body []byte, header ...string) (answer, error) {
	r.t.Helper()
	request, err := http.NewRequest(method, "https://"+r.wfm.Address()+path, bytes.NewReader(body))
	if err != nil {
		r.t.Fatal(err)
	}
	if body != nil {
		request.Header.Set("Content-Type", "application/json")
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
	a, err := r.try(r.client, method, path, body, header...)
	if err != nil {
		r.t.Fatalf("%s %s: %v", method, path, err)
	}
	return a
}

func (r *rig) get(path string, header ...string) answer {
	r.t.Helper()
	return r.call(http.MethodGet, path, nil, header...)
}

func (r *rig) manifest() *margo.StateManifest {
	r.t.Helper()
	a := r.get("/api/v1/deployments")
	m, err := margo.ParseStateManifest(a.body)
	if err != nil {
		r.t.Fatalf("manifest %s: %v", a.body, err)
	}
	return m
}

// deploymentOf is a document with the components web and db.
func deploymentOf(t *testing.T, id, revision string) []byte {
	t.Helper()
	text, err := wfmsim.Deployment{
		ID: id, Name: "app-" + id[:4], DeviceID: deviceID,
		Components: []wfmsim.Component{
			{Name: "web", Repository: "oci://registry.example/app/web", Revision: revision},
			{Name: "db", Repository: "registry.example/app/db", Revision: revision, Timeout: "5m0s"},
		},
		Parameters: map[string]any{"GREETING": "Hello", "RETRIES": 3},
	}.Document()
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func (r *rig) publish(id, revision string) wfmsim.Published {
	r.t.Helper()
	p, err := r.wfm.Publish(deviceID, deploymentOf(r.t, id, revision))
	if err != nil {
		r.t.Fatal(err)
	}
	if len(p.Warnings) != 0 {
		r.t.Errorf("a document of our own departs from the standard: %q", p.Warnings)
	}
	return p
}

func etagOf(body []byte) string { return `"` + digest.FromBytes(body).String() + `"` }

func TestTheFirstManifestIsEmpty(t *testing.T) {
	r := newRig(t, nil)
	a := r.get("/api/v1/deployments")
	if a.status != 200 || a.header.Get("Content-Type") != margo.ManifestMediaType ||
		a.header.Get("Cache-Control") != "private" || a.header.Get("ETag") != etagOf(a.body) {
		t.Errorf("got %d, %v", a.status, a.header)
	}
	m := r.manifest()
	if m.Version != 1 || m.Bundle != nil || len(m.Deployments) != 0 || !bytes.Contains(a.body, []byte(`"bundle":null`)) {
		t.Errorf("got %s", a.body)
	}
}

func TestDocumentsAreServedAsTheyWerePublished(t *testing.T) {
	r := newRig(t, nil)
	r.publish(two, "1.0.0")
	r.publish(one, "1.0.0")
	m := r.manifest()
	if m.Version != 3 || len(m.Deployments) != 2 || m.Deployments[0].ID != one {
		t.Fatalf("got %+v", m)
	}
	want := map[digest.Digest][]byte{}
	for _, ref := range m.Deployments {
		a := r.get(ref.URL)
		if a.status != 200 || !bytes.Equal(a.body, deploymentOf(t, ref.ID, "1.0.0")) ||
			digest.FromBytes(a.body) != ref.Digest || uint64(len(a.body)) != ref.SizeBytes {
			t.Errorf("%s: got %d, %s", ref.URL, a.status, a.body)
		}
		if a.header.Get("Content-Type") != "application/yaml" || a.header.Get("ETag") != `"`+ref.Digest.String()+`"` ||
			a.header.Get("Cache-Control") != "private, max-age=31536000, immutable" {
			t.Errorf("%s: header %v", ref.URL, a.header)
		}
		want[ref.Digest] = a.body
	}

	a := r.get(m.Bundle.URL)
	if a.status != 200 || a.header.Get("Content-Type") != margo.BundleMediaType ||
		digest.FromBytes(a.body) != m.Bundle.Digest || a.header.Get("ETag") != `"`+m.Bundle.Digest.String()+`"` {
		t.Fatalf("bundle: got %d, %v", a.status, a.header)
	}
	zr, err := gzip.NewReader(bytes.NewReader(a.body))
	if err != nil {
		t.Fatal(err)
	}
	for tr := tar.NewReader(zr); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(tr)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(want[digest.FromBytes(body)], body) || strings.Contains(h.Name, "/") {
			t.Errorf("bundle has %s", h.Name)
		}
		delete(want, digest.FromBytes(body))
	}
	if len(want) != 0 {
		t.Errorf("bundle lacks %d documents", len(want))
	}
}

func TestEqualStatesHaveEqualBytes(t *testing.T) {
	bodies := map[string]bool{}
	for range 2 {
		r := newRig(t, nil)
		r.publish(one, "1.0.0")
		r.publish(two, "1.0.0")
		bodies[string(r.get("/api/v1/deployments").body)] = true
	}
	if len(bodies) != 1 {
		t.Errorf("got %v", bodies)
	}
}

func TestVersionsIncreaseWithTheDesiredState(t *testing.T) {
	r := newRig(t, nil)
	first := r.publish(one, "1.0.0")
	if again := r.publish(one, "1.0.0"); again.Version != first.Version {
		t.Errorf("publishing what is there: version %d", again.Version)
	}
	r.publish(one, "1.1.0")
	reverted := r.publish(one, "1.0.0")
	if reverted.Version != first.Version+2 || reverted.Digest != first.Digest {
		t.Errorf("reverted to %+v, first was %+v", reverted, first)
	}
	version, err := r.wfm.Remove(deviceID, strings.ToUpper(one))
	if err != nil || version != first.Version+3 {
		t.Errorf("removed with version %d, %v", version, err)
	}
	if _, err := r.wfm.Remove(deviceID, one); !errors.Is(err, wfmsim.ErrNotFound) {
		t.Errorf("removed again: %v", err)
	}
	if m := r.manifest(); m.Version != version || m.Bundle != nil {
		t.Errorf("got %+v", m)
	}
	if err := r.wfm.SetVersion(deviceID, 1<<64-1); err != nil {
		t.Fatal(err)
	}
	if m := r.manifest(); m.Version != 1<<64-1 {
		t.Errorf("got %d", m.Version)
	}
	// Another client has a sequence of its own, and nothing of this one's.
	a, err := r.try(r.clientOf("wfm-1", "other"), http.MethodGet, "/api/v1/deployments", nil)
	if err != nil || !bytes.Contains(a.body, []byte(`"manifestVersion":1,`)) {
		t.Errorf("other client: %s, %v", a.body, err)
	}
	a, err = r.try(r.clientOf("wfm-1", "other"), http.MethodGet, "/api/v1/deployments/"+one+"/"+first.Digest.String(), nil)
	if err != nil || a.status != 404 {
		t.Errorf("other client's document: %d, %v", a.status, err)
	}
}

func TestWhatTheClientHasIsNotSentAgain(t *testing.T) {
	r := newRig(t, nil)
	p := r.publish(one, "1.0.0")
	m := r.manifest()
	for name, path := range map[string]string{
		"manifest": "/api/v1/deployments", "document": m.Deployments[0].URL, "bundle": m.Bundle.URL,
	} {
		etag := r.get(path).header.Get("ETag")
		for condition, want := range map[string]int{
			etag: 304, "W/" + etag: 304, `"x", ` + etag: 304, "*": 304, `"sha256:` + p.Digest.Encoded()[:10] + `"`: 200,
		} {
			a := r.get(path, "If-None-Match", condition)
			if a.status != want || a.header.Get("ETag") != etag || (want == 304 && len(a.body) != 0) {
				t.Errorf("%s with %s: got %d, ETag %s", name, condition, a.status, a.header.Get("ETag"))
			}
		}
	}
}

func TestTheManifestIsNegotiated(t *testing.T) {
	r := newRig(t, nil)
	const jws = "application/vnd.margo.manifest.v1.jws+json"
	for accept, want := range map[string]int{
		"":                      200,
		margo.ManifestMediaType: 200,
		jws + ", " + margo.ManifestMediaType + ";q=0.8": 200,
		"*/*":                                 200,
		"application/*;q=0.1":                 200,
		jws:                                   406,
		"text/html":                           406,
		margo.ManifestMediaType + ";q=0, */*": 406,
	} {
		a := r.get("/api/v1/deployments", "Accept", accept)
		if a.status != want {
			t.Errorf("%q: got %d, want %d", accept, a.status, want)
		}
		if want == 406 && a.problem(t).Kind() != margo.ProblemCannotGenerateResponse {
			t.Errorf("%q: problem %s", accept, a.body)
		}
	}
}

func TestWhatIsNotThereIsAProblem(t *testing.T) {
	r := newRig(t, nil)
	p := r.publish(one, "1.0.0")
	old := r.manifest()
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
		if a.status != want.status {
			t.Errorf("%s: got %d, want %d", path, a.status, want.status)
		}
		if a.status == 404 {
			if p := a.problem(t); p.Kind() != want.kind || p.Status != 404 || p.Title == "" || p.Retryable {
				t.Errorf("%s: problem %s", path, a.body)
			}
		}
	}
}

func TestMethodsAreThoseOfTheStandard(t *testing.T) {
	r := newRig(t, nil)
	for path, allowed := range map[string][]string{
		"/api/v1/deployments":                         {"GET", "HEAD"},
		"/api/v1/bundles/sha256:0":                    {"GET", "HEAD"},
		"/api/v1/deployments/" + one + "/sha256:0":    {"GET", "HEAD"},
		"/api/v1/deployments/" + one + "/status":      {"POST"},
		"/api/v1/capabilities/" + deviceID:            {"PUT", "DELETE"},
		"/api/v1/capabilities/" + deviceID + "/child": {"PUT", "DELETE"},
	} {
		for _, method := range []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"} {
			a := r.call(method, path, nil)
			if refused := a.status == http.StatusMethodNotAllowed; refused == slices.Contains(allowed, method) {
				t.Errorf("%s %s: got %d", method, path, a.status)
			} else if refused && a.header.Get("Allow") != strings.Join(allowed, ", ") {
				t.Errorf("%s %s: Allow %q", method, path, a.header.Get("Allow"))
			}
		}
	}
}

func TestOnlyClientsOfThisWFMAreServed(t *testing.T) {
	r := newRig(t, func(o *wfmsim.Options) { o.Clients = []string{deviceID, "second"} })
	elsewhere, err := pki.NewAuthority("plant.example", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	stranger, err := elsewhere.IssueClient("wfm-1", deviceID)
	if err != nil {
		t.Fatal(err)
	}
	wfm, err := r.authority.IssueWFM("wfm-2")
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	for name, c := range map[string]struct {
		client *http.Client
		status int // 0: the handshake fails
	}{
		"an accepted client":            {r.clientOf("wfm-1", "second"), 200},
		"a client that is not accepted": {r.clientOf("wfm-1", "third"), 403},
		"a client of another WFM":       {r.clientOf("wfm-2", deviceID), 403},
		"nobody":                        {r.clientWith(), 0},
		"a client of another authority": {r.clientWith(stranger.TLS()), 0},
		"another WFM":                   {r.clientWith(wfm.TLS()), 0},
		"an expired certificate":        {r.clientOf("wfm-1", deviceID, pki.Valid(now.Add(-2*time.Hour), now.Add(-time.Hour))), 0},
		"two URIs":                      {r.clientOf("wfm-1", deviceID, pki.URIs("spiffe://plant.example/margo/wfm/wfm-1/client/a", "spiffe://plant.example/b")), 0},
		"another trust domain":          {r.clientOf("wfm-1", deviceID, pki.URIs("spiffe://other.example/margo/wfm/wfm-1/client/a")), 0},
		"a certificate authority":       {r.clientOf("wfm-1", deviceID, pki.IsCA), 0},
	} {
		t.Run(name, func(t *testing.T) {
			a, err := r.try(c.client, http.MethodGet, "/api/v1/deployments", nil)
			if (err != nil) != (c.status == 0) || a.status != c.status {
				t.Fatalf("got %d, %v", a.status, err)
			}
			if c.status == 403 && a.problem(t).Kind() != margo.ProblemNotAuthorized {
				t.Errorf("problem %s", a.body)
			}
		})
	}
	t.Run("TLS 1.2", func(t *testing.T) {
		old := r.clientOf("wfm-1", deviceID)
		config := old.Transport.(*http.Transport).TLSClientConfig
		config.MinVersion, config.MaxVersion = tls.VersionTLS12, tls.VersionTLS12
		if a, err := r.try(old, http.MethodGet, "/api/v1/deployments", nil); err == nil {
			t.Errorf("got %d", a.status)
		}
	})
	t.Run("a retired client on a connection that stays", func(t *testing.T) {
		r.get("/api/v1/deployments")
		r.wfm.Retire(deviceID)
		a := r.get("/api/v1/deployments")
		if p := a.problem(t); a.status != 403 || p.Kind() != margo.ProblemNotAuthorized || !p.Retired() {
			t.Errorf("got %d, %s", a.status, a.body)
		}
		r.wfm.Reinstate(deviceID)
		if a := r.get("/api/v1/deployments"); a.status != 200 {
			t.Errorf("taken back: got %d", a.status)
		}
	})
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
		if a.status != step.status {
			t.Errorf("%s %s: got %d %s, want %d", step.method, step.path, a.status, a.body, step.status)
		}
		if a.status == 404 && a.problem(t).Kind() != step.kind {
			t.Errorf("%s %s: problem %s", step.method, step.path, a.body)
		}
	}
	r.call("PUT", path, capabilitiesOf(deviceID))
	got, err := r.wfm.WaitDevice(context.Background(), deviceID, deviceID)
	if err != nil || got.Properties.ID != deviceID {
		t.Errorf("got %+v, %v", got, err)
	}
}

// statusOf is a report of the deployment one; errors belong to failed states.
func statusOf(version uint64, overall string, components ...string) []byte {
	type failure struct {
		Code    string `json:"code"`
		Source  string `json:"source"`
		Message string `json:"message"`
	}
	type state struct {
		Name  string   `json:"name,omitempty"`
		State string   `json:"state"`
		Error *failure `json:"error,omitempty"`
	}
	report := map[string]any{"deploymentId": one, "deviceId": deviceID, "adoptedManifestVersion": version}
	top := state{State: overall}
	if overall == "failed" {
		top.Error = &failure{"ERR", "app-" + one[:4], "it failed"}
	}
	report["status"] = top
	list := []state{}
	for i := 0; i < len(components); i += 2 {
		c := state{Name: components[i], State: components[i+1]}
		if c.State == "failed" {
			c.Error = &failure{"ERR", c.Name, "it failed"}
		}
		list = append(list, c)
	}
	report["components"] = list
	text, err := json.Marshal(report)
	if err != nil {
		panic(err) // of strings and numbers
	}
	return text
}

func TestReportsAreKeptInOrder(t *testing.T) {
	r := newRig(t, nil)
	version := r.publish(one, "1.0.0").Version
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	waited := make(chan error, 1)
	go func() { waited <- r.wfm.WaitState(ctx, one, margo.Installed, version) }()

	path := "/api/v1/deployments/" + one + "/status"
	bodies := [][]byte{
		statusOf(version, "pending", "web", "pending", "db", "pending"),
		statusOf(version, "installing", "web", "installed", "db", "installing"),
		statusOf(version, "failed", "web", "installed", "db", "failed"),
		statusOf(version, "installed", "db", "installed", "web", "installed"),
	}
	for i, body := range bodies {
		want := 200
		if i == 0 {
			want = 201
		}
		if a := r.call("POST", path, body, "Content-Type", "application/json; charset=utf-8"); a.status != want {
			t.Errorf("report %d: got %d %s", i, a.status, a.body)
		}
	}
	if err := <-waited; err != nil {
		t.Error(err)
	}
	reports := r.wfm.Statuses(strings.ToUpper(one))
	if len(reports) != len(bodies) {
		t.Fatalf("got %d reports", len(reports))
	}
	for i, report := range reports {
		if report.Number != i+1 || !bytes.Equal(report.Body, bodies[i]) || report.Client != deviceID || report.Time.IsZero() {
			t.Errorf("report %d: %+v", i, report)
		}
	}
	if reports[2].Status.Components[1].Error.Source != "db" {
		t.Errorf("got %+v", reports[2].Status)
	}

	// Removal is reported against the version that does not list it any more.
	gone, err := r.wfm.Remove(deviceID, one)
	if err != nil {
		t.Fatal(err)
	}
	for _, state := range []string{"removing", "removed"} {
		if a := r.call("POST", path, statusOf(gone, state, "web", state, "db", state)); a.status != 200 {
			t.Errorf("%s: got %d %s", state, a.status, a.body)
		}
	}
	if a := r.call("POST", path, statusOf(gone, "installed", "web", "installed", "db", "installed")); a.status != 422 {
		t.Errorf("installed although removed: got %d", a.status)
	}
}

func TestBadRequestsAreRefused(t *testing.T) {
	r := newRig(t, nil)
	r.publish(two, "1.0.0")
	version := r.publish(one, "1.0.0").Version
	status, caps := "/api/v1/deployments/"+one+"/status", "/api/v1/capabilities/"+deviceID
	good := statusOf(version, "installed", "web", "installed", "db", "installed")
	swap := func(body []byte, old, new string) []byte {
		t.Helper()
		if !bytes.Contains(body, []byte(old)) {
			t.Fatalf("%s has no %s", body, old)
		}
		return bytes.Replace(body, []byte(old), []byte(new), 1)
	}
	failed := statusOf(version, "failed", "web", "failed", "db", "pending")
	number := `"adoptedManifestVersion":` + strconv.FormatUint(version, 10)
	for name, c := range map[string]struct {
		path   string
		body   []byte
		header []string
		status int
		kind   margo.ProblemKind
		field  string
	}{
		"another content type":       {path: status, body: good, header: []string{"Content-Type", "text/plain"}, status: 415},
		"no content type":            {path: status, body: good, header: []string{"Content-Type", ""}, status: 415},
		"another charset":            {path: status, body: good, header: []string{"Content-Type", "application/json; charset=latin1"}, status: 415},
		"an encoded body":            {path: status, body: good, header: []string{"Content-Encoding", "gzip"}, status: 415},
		"a body without end":         {path: status, body: bytes.Repeat([]byte(" "), 1<<20+1), status: 413},
		"no body":                    {path: status, body: []byte{}, status: 400, kind: margo.ProblemInvalidRequest},
		"no JSON":                    {path: status, body: []byte("installed"), status: 400, kind: margo.ProblemInvalidRequest},
		"half a document":            {path: status, body: good[:len(good)/2], status: 400, kind: margo.ProblemInvalidRequest},
		"no adopted version":         {path: status, body: swap(good, number+",", ""), status: 422, kind: margo.ProblemSemanticError, field: "adoptedManifestVersion"},
		"adopted version 0":          {path: status, body: statusOf(0, "installed", "web", "installed", "db", "installed"), status: 422, kind: margo.ProblemSemanticError, field: "adoptedManifestVersion"},
		"a version of the future":    {path: status, body: statusOf(version+1, "installed", "web", "installed", "db", "installed"), status: 422, kind: margo.ProblemSemanticError, field: "adoptedManifestVersion"},
		"a version before it":        {path: status, body: statusOf(version-1, "installed", "web", "installed", "db", "installed"), status: 422, kind: margo.ProblemSemanticError, field: "adoptedManifestVersion"},
		"an unknown state":           {path: status, body: swap(good, `"installed"`, `"Installed"`), status: 422, kind: margo.ProblemSemanticError},
		"a component too few":        {path: status, body: statusOf(version, "installed", "web", "installed"), status: 422, kind: margo.ProblemSemanticError, field: "components"},
		"a component too many":       {path: status, body: statusOf(version, "installed", "web", "installed", "db", "installed", "x", "installed"), status: 422, kind: margo.ProblemSemanticError, field: "components"},
		"an overall state too good":  {path: status, body: statusOf(version, "installed", "web", "installing", "db", "installed"), status: 422, kind: margo.ProblemSemanticError, field: "status.state"},
		"failed without an error":    {path: status, body: swap(failed, `,"error":{"code":"ERR","source":"web","message":"it failed"}`, ""), status: 422, kind: margo.ProblemSemanticError},
		"an error of somebody else":  {path: status, body: swap(failed, `"source":"web"`, `"source":"margolite"`), status: 422, kind: margo.ProblemSemanticError, field: "components.0.error.source"},
		"an overall error of nobody": {path: status, body: swap(failed, `"source":"app-`+one[:4], `"source":"x`), status: 422, kind: margo.ProblemSemanticError, field: "status.error.source"},
		"another deployment's path":  {path: "/api/v1/deployments/" + two + "/status", body: good, status: 422, kind: margo.ProblemSemanticError, field: "deploymentId"},
		"an unknown deployment":      {path: "/api/v1/deployments/" + strings.Repeat("0", 8) + one[8:] + "/status", body: swap(good, one[:8], strings.Repeat("0", 8)), status: 404},
		"capabilities of another":    {path: caps, body: capabilitiesOf("other"), status: 422, kind: margo.ProblemSemanticError, field: "properties.id"},
		"capabilities with kind":     {path: caps, body: swap(capabilitiesOf(deviceID), "{", `{"kind":"DeviceCapabilitiesManifest",`), status: 422, kind: margo.ProblemSemanticError, field: "kind"},
		"capabilities without model": {path: caps, body: swap(capabilitiesOf(deviceID), `"modelNumber":"m",`, ""), status: 422, kind: margo.ProblemSemanticError, field: "properties.modelNumber"},
		"capabilities as a list":     {path: caps, body: []byte("[]"), status: 400, kind: margo.ProblemInvalidRequest},
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
			if c.status == 422 && len(p.Errors) == 0 {
				t.Errorf("no errors[] in %s", a.body)
			}
			if c.field != "" && !slices.ContainsFunc(p.Errors, func(e margo.FieldError) bool { return e.Field == c.field }) {
				t.Errorf("no error for %s in %s", c.field, a.body)
			}
		})
	}
	if reports := r.wfm.Statuses(""); len(reports) != 0 {
		t.Errorf("%d refused reports were kept", len(reports))
	}
	if devices := r.wfm.Devices(""); len(devices) != 0 {
		t.Errorf("refused capabilities were kept: %v", devices)
	}
}

func TestAPrefixIsPartOfEveryURL(t *testing.T) {
	for form, begins := range map[wfmsim.URLForm]string{
		wfmsim.OriginRelative: "/v1alpha2/margo/api/v1/",
		wfmsim.WithoutPrefix:  "/api/v1/",
		wfmsim.Absolute:       "https://",
	} {
		r := newRig(t, func(o *wfmsim.Options) { o.Prefix, o.URLs = "/v1alpha2/margo", form })
		r.publish(one, "1.0.0")
		if a := r.get("/api/v1/deployments"); a.status != 404 {
			t.Errorf("without the prefix: got %d", a.status)
		}
		m, err := margo.ParseStateManifest(r.get("/v1alpha2/margo/api/v1/deployments").body)
		if err != nil {
			t.Fatal(err)
		}
		for _, url := range []string{m.Bundle.URL, m.Deployments[0].URL} {
			if !strings.HasPrefix(url, begins) {
				t.Errorf("%v: URL %s", form, url)
			}
			want := 200
			if form == wfmsim.WithoutPrefix {
				want = 404
			}
			if a := r.get(strings.TrimPrefix(url, "https://"+r.wfm.Address())); a.status != want {
				t.Errorf("%s: got %d", url, a.status)
			}
		}
		if !strings.HasSuffix(r.wfm.URL(), "/v1alpha2/margo") {
			t.Errorf("base URL %s", r.wfm.URL())
		}
	}
}

func TestDocumentsAreCompressedForThoseWhoAsk(t *testing.T) {
	r := newRig(t, func(o *wfmsim.Options) { o.Gzip = true })
	p := r.publish(one, "1.0.0")
	url := "/api/v1/deployments/" + one + "/" + p.Digest.String()
	packed := r.get(url, "Accept-Encoding", "gzip")
	if packed.header.Get("Content-Encoding") != "gzip" || packed.header.Get("Vary") != "Accept-Encoding" {
		t.Fatalf("header %v", packed.header)
	}
	zr, err := gzip.NewReader(bytes.NewReader(packed.body))
	if err != nil {
		t.Fatal(err)
	}
	if body, err := io.ReadAll(zr); err != nil || digest.FromBytes(body) != p.Digest {
		t.Errorf("got %s, %v", body, err)
	}
	for _, accept := range []string{"identity", "gzip;q=0"} {
		if a := r.get(url, "Accept-Encoding", accept); digest.FromBytes(a.body) != p.Digest {
			t.Errorf("%s: got %v", accept, a.header)
		}
	}
}

func TestAWFMGoesAwayAndComesBack(t *testing.T) {
	r := newRig(t, nil)
	p := r.publish(one, "1.0.0")
	address := r.wfm.Address()
	if err := r.wfm.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := r.try(r.client, http.MethodGet, "/api/v1/deployments", nil); err == nil {
		t.Error("it answers although it is gone")
	}
	next := r.publish(two, "1.0.0") // decided meanwhile
	if err := r.wfm.Start(""); err != nil {
		t.Fatal(err)
	}
	if m := r.manifest(); m.Version != next.Version || next.Version != p.Version+1 || r.wfm.Address() != address {
		t.Errorf("version %d at %s", m.Version, r.wfm.Address())
	}
}

func TestARestartContinuesTheState(t *testing.T) {
	file := filepath.Join(t.TempDir(), "state.json")
	keep := func(o *wfmsim.Options) { o.File = file }
	before := newRig(t, keep)
	version := before.publish(one, "1.0.0").Version
	before.publish(two, "1.0.0")
	if _, err := before.wfm.Remove(deviceID, two); err != nil {
		t.Fatal(err)
	}
	before.call("PUT", "/api/v1/capabilities/"+deviceID, capabilitiesOf(deviceID))
	before.call("POST", "/api/v1/deployments/"+one+"/status", statusOf(version, "installed", "web", "installed", "db", "installed"))
	manifest := before.get("/api/v1/deployments").body
	if err := before.wfm.Close(); err != nil {
		t.Fatal(err)
	}

	after := newRig(t, keep)
	if got := after.get("/api/v1/deployments").body; !bytes.Equal(got, manifest) {
		t.Errorf("got %s, before %s", got, manifest)
	}
	if m := after.manifest(); after.get(m.Deployments[0].URL).status != 200 || after.get(m.Bundle.URL).status != 200 {
		t.Error("documents are gone")
	}
	reports := after.wfm.Statuses(one)
	if len(reports) != 1 || reports[0].Status.State != margo.Installed {
		t.Errorf("reports %+v", reports)
	}
	if a := after.call("PUT", "/api/v1/capabilities/"+deviceID, capabilitiesOf(deviceID)); a.status != 200 {
		t.Errorf("capabilities were forgotten: got %d", a.status)
	}
	if p := after.publish(one, "2.0.0"); p.Version != version+3 {
		t.Errorf("version %d, want %d", p.Version, version+3)
	}
}

func TestWhatIsNoDocumentIsNotPublished(t *testing.T) {
	r := newRig(t, nil)
	if _, err := r.wfm.Publish(deviceID, []byte("hello: world")); err == nil {
		t.Error("it was published")
	}
	if v := r.wfm.Version(deviceID); v != 1 {
		t.Errorf("version %d", v)
	}
	// Unless a test insists.
	p, err := r.wfm.PublishBytes(deviceID, one, []byte("hello: world"))
	if err != nil || r.get("/api/v1/deployments/"+one+"/"+p.Digest.String()).status != 200 {
		t.Errorf("got %+v, %v", p, err)
	}
	if list := r.wfm.Deployments(deviceID); len(list) != 1 || list[0].Name != "" || list[0].Since != 2 {
		t.Errorf("got %+v", list)
	}
	body := []byte(`{"deploymentId":"` + one + `","adoptedManifestVersion":2,"status":{"state":"failed","error":{"code":"E","source":"x","message":"m"}},"components":[]}`)
	if a := r.call("POST", "/api/v1/deployments/"+one+"/status", body); a.status != 201 {
		t.Errorf("report about it: got %d %s", a.status, a.body)
	}
}

func TestATestMayWriteTheManifestItself(t *testing.T) {
	r := newRig(t, nil)
	document, bundle := []byte("a document"), []byte("a bundle")
	claimed := digest.FromString("something else")
	r.wfm.SetRaw(deviceID, wfmsim.Raw{
		Manifest:  []byte("not even JSON"),
		Documents: map[digest.Digest][]byte{claimed: document},
		Bundles:   map[digest.Digest][]byte{claimed: bundle},
	})
	if a := r.get("/api/v1/deployments"); string(a.body) != "not even JSON" || a.header.Get("ETag") != etagOf(a.body) {
		t.Errorf("got %s, %v", a.body, a.header)
	}
	if a := r.get("/api/v1/deployments/" + one + "/" + claimed.String()); !bytes.Equal(a.body, document) {
		t.Errorf("document: got %d %s", a.status, a.body)
	}
	if a := r.get("/api/v1/bundles/" + claimed.String()); !bytes.Equal(a.body, bundle) {
		t.Errorf("bundle: got %d %s", a.status, a.body)
	}
	r.wfm.SetRaw(deviceID, wfmsim.Raw{Manifest: []byte("x"), ETag: `W/"weak"`})
	if a := r.get("/api/v1/deployments"); a.header.Get("ETag") != `W/"weak"` {
		t.Errorf("ETag %s", a.header.Get("ETag"))
	}
	r.publish(one, "1.0.0")
	if m := r.manifest(); m.Version != 2 {
		t.Errorf("publishing does not end it: %+v", m)
	}
}

func TestFaults(t *testing.T) {
	for name, c := range map[string]struct {
		fault fault.Fault
		check func(t *testing.T, r *rig, m *margo.StateManifest)
	}{
		"an overloaded WFM says when to come back": {
			fault.Fault{Endpoint: wfmsim.EndpointManifest, Kind: fault.Answer, Status: 503, RetryAfter: "7"},
			func(t *testing.T, r *rig, _ *margo.StateManifest) {
				a := r.get("/api/v1/deployments")
				if p := a.problem(t); a.status != 503 || a.header.Get("Retry-After") != "7" || !p.Retryable || p.Backoff != margo.BackoffExponential {
					t.Errorf("got %d %s", a.status, a.body)
				}
			},
		},
		"429 always has the header": {
			fault.Fault{Endpoint: wfmsim.EndpointManifest, Kind: fault.Answer, Status: 429},
			func(t *testing.T, r *rig, _ *margo.StateManifest) {
				if a := r.get("/api/v1/deployments"); a.status != 429 || a.header.Get("Retry-After") == "" {
					t.Errorf("got %d, %v", a.status, a.header)
				}
			},
		},
		"a bundle is not available": {
			fault.Fault{Endpoint: wfmsim.EndpointBundle, Kind: fault.Answer, Status: 404},
			func(t *testing.T, r *rig, m *margo.StateManifest) {
				if a := r.get(m.Bundle.URL); a.status != 404 || a.problem(t).Kind() != margo.ProblemInvalidBundle {
					t.Errorf("got %d %s", a.status, a.body)
				}
			},
		},
		"a document is not available": {
			fault.Fault{Endpoint: wfmsim.EndpointDocument, Kind: fault.Answer, Status: 404},
			func(t *testing.T, r *rig, m *margo.StateManifest) {
				if a := r.get(m.Deployments[0].URL); a.status != 404 || a.problem(t).Kind() != margo.ProblemDeploymentNotFound {
					t.Errorf("got %d %s", a.status, a.body)
				}
			},
		},
		"a document has wrong bytes": {
			fault.Fault{Endpoint: wfmsim.EndpointDocument, Kind: fault.Corrupt, Bytes: 3},
			func(t *testing.T, r *rig, m *margo.StateManifest) {
				a := r.get(m.Deployments[0].URL)
				if uint64(len(a.body)) != m.Deployments[0].SizeBytes || digest.FromBytes(a.body) == m.Deployments[0].Digest {
					t.Errorf("got %s", a.body)
				}
			},
		},
		"a bundle ends in the middle": {
			fault.Fault{Endpoint: wfmsim.EndpointBundle, Kind: fault.Cut, Bytes: 100},
			func(t *testing.T, r *rig, m *margo.StateManifest) {
				if a, err := r.try(r.client, http.MethodGet, m.Bundle.URL, nil); err == nil || len(a.body) != 100 {
					t.Errorf("got %d bytes, %v", len(a.body), err)
				}
			},
		},
		"a manifest has another ETag": {
			fault.Fault{Endpoint: wfmsim.EndpointManifest, Kind: fault.Header, Name: "ETag", Value: `"x"`},
			func(t *testing.T, r *rig, _ *margo.StateManifest) {
				if a := r.get("/api/v1/deployments"); a.header.Get("ETag") != `"x"` {
					t.Errorf("ETag %s", a.header.Get("ETag"))
				}
			},
		},
		"a manifest names a document that nobody has": {
			fault.Fault{Endpoint: wfmsim.EndpointManifest, Kind: fault.WrongDigest},
			func(t *testing.T, r *rig, honest *margo.StateManifest) {
				m := r.manifest()
				if m.Deployments[0].Digest == honest.Deployments[0].Digest || r.get(m.Deployments[0].URL).status != 404 {
					t.Errorf("got %+v", m.Deployments[0])
				}
			},
		},
		"the time is another": {
			fault.Fault{Endpoint: wfmsim.EndpointManifest, Kind: fault.Header, Name: "Date", Value: "Thu, 01 Jan 1970 00:00:00 GMT"},
			func(t *testing.T, r *rig, _ *margo.StateManifest) {
				if a := r.get("/api/v1/deployments"); a.header.Get("Date") != "Thu, 01 Jan 1970 00:00:00 GMT" {
					t.Errorf("Date %s", a.header.Get("Date"))
				}
			},
		},
		"the handshake is refused": {
			fault.Fault{Endpoint: wfmsim.EndpointHandshake, Kind: fault.Refuse, Times: 1},
			func(t *testing.T, r *rig, _ *margo.StateManifest) {
				fresh := r.clientOf("wfm-1", deviceID)
				if a, err := r.try(fresh, http.MethodGet, "/api/v1/deployments", nil); err == nil {
					t.Errorf("got %d", a.status)
				}
				if _, err := r.try(fresh, http.MethodGet, "/api/v1/deployments", nil); err != nil {
					t.Errorf("the second time: %v", err)
				}
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, nil)
			r.publish(one, "1.0.0")
			m := r.manifest()
			if _, err := r.wfm.Faults().Inject(c.fault); err != nil {
				t.Fatal(err)
			}
			c.check(t, r, m)
			r.wfm.Faults().Clear("")
			if a := r.get("/api/v1/deployments"); a.status != 200 {
				t.Errorf("afterwards: got %d", a.status)
			}
		})
	}
}

func TestRequestsAreRecordedWithWhoAsked(t *testing.T) {
	r := newRig(t, nil)
	r.get("/api/v1/deployments", "If-None-Match", `"x"`)
	r.get("/nowhere")
	requests := r.wfm.Requests().Requests()
	if len(requests) != 2 {
		t.Fatalf("got %+v", requests)
	}
	if got := requests[0]; got.Endpoint != wfmsim.EndpointManifest || got.Client != deviceID || got.Status != 200 || got.Header["If-None-Match"] != `"x"` {
		t.Errorf("got %+v", got)
	}
	if got := requests[1]; got.Endpoint != wfmsim.EndpointOther || got.Status != 404 {
		t.Errorf("got %+v", got)
	}
	if n := r.wfm.Requests().Count(wfmsim.EndpointManifest); n != 1 {
		t.Errorf("counted %d", n)
	}
}

func TestAWaitThatEndsSaysWhatWasReported(t *testing.T) {
	r := newRig(t, nil)
	version := r.publish(one, "1.0.0").Version
	r.call("POST", "/api/v1/deployments/"+one+"/status", statusOf(version, "pending", "web", "pending", "db", "pending"))
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	err := r.wfm.WaitState(ctx, one, margo.Installed, version)
	if !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), `"state":"pending"`) {
		t.Errorf("got %v", err)
	}
}

func TestOptionsThatMakeNoWFMAreRefused(t *testing.T) {
	authority, err := pki.NewAuthority("plant.example", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	svid, err := authority.IssueWFM("wfm-1")
	if err != nil {
		t.Fatal(err)
	}
	good := wfmsim.Options{ID: identity.ID{TrustDomain: "plant.example", WFM: "wfm-1"}, SVID: svid.TLS(), Bundle: authority.Bundle()}
	for name, change := range map[string]func(*wfmsim.Options){
		"no identity":           func(o *wfmsim.Options) { o.ID = identity.ID{} },
		"a client's identity":   func(o *wfmsim.Options) { o.ID.Client = "x" },
		"no certificate":        func(o *wfmsim.Options) { o.SVID = tls.Certificate{} },
		"no trust bundle":       func(o *wfmsim.Options) { o.Bundle = nil },
		"a prefix like a file":  func(o *wfmsim.Options) { o.Prefix = "api" },
		"a prefix like a slash": func(o *wfmsim.Options) { o.Prefix = "/" },
	} {
		o := good
		change(&o)
		if _, err := wfmsim.New(o); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}
