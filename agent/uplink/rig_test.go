package uplink_test

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/margolite/margolite/agent"
	"github.com/margolite/margolite/agent/clock"
	"github.com/margolite/margolite/agent/identity"
	"github.com/margolite/margolite/agent/margo"
	"github.com/margolite/margolite/agent/uplink"
	"github.com/margolite/margolite/agent/wfm"
	"github.com/margolite/margolite/capability"
	"github.com/margolite/margolite/store"
	"github.com/margolite/margolite/test/expect"
	"github.com/margolite/margolite/test/gitserver"
	"github.com/margolite/margolite/test/pki"
	"github.com/margolite/margolite/test/wfmsim"
)

// Who is who.
const (
	trustDomain  = "factory.example"
	wfmID        = "plant"
	clientID     = "gateway-7"
	deviceID     = "edge-01"
	deploymentID = "ad9b614e-8912-45f4-a523-372358765def"
	host         = "127.0.0.1"
)

// public are the anchors that the system of these tests trusts.
var public [2]*pki.ServerAuthority

func TestMain(m *testing.M) { os.Exit(runTests(m)) }

// runTests makes a system with anchors of its own, before anybody looks at them.
func runTests(m *testing.M) int {
	dir := expect.Must(os.MkdirTemp("", "uplink-"))
	defer os.RemoveAll(dir)
	var anchors []byte
	for i := range public {
		public[i] = expect.Must(pki.NewServerAuthority(fmt.Sprint("Public ", i), time.Now()))
		anchors = append(anchors, public[i].RootPEM()...)
	}
	file := filepath.Join(dir, "anchors.pem")
	err := errors.Join(os.WriteFile(file, anchors, 0o600), os.Setenv("SSL_CERT_FILE", file), os.Setenv("SSL_CERT_DIR", dir))
	if err != nil {
		panic(err)
	}
	return m.Run()
}

// site is a device and what it needs to know of a WFM.
type site struct {
	t       *testing.T
	dir     string
	records *memory
	git     *gitserver.Server // nil: the desired state is in no repository
	log     *syncBuffer
	now     func() time.Time // the device's clock
	options uplink.Options
}

func newSite(t *testing.T) *site {
	t.Helper()
	return &site{t: t, dir: t.TempDir(), records: &memory{records: map[string][]byte{}, commits: map[string]int{}}, log: &syncBuffer{}, now: time.Now}
}

// device is what an uplink uses, anew after each start.
func (s *site) device() uplink.Device {
	known, err := uplink.KnownTime(s.records)
	if err != nil {
		s.t.Log(err)
	}
	return uplink.Device{
		Records: s.records, Dir: s.dir, Clock: clock.New(s.now, known),
		Logger: slog.New(slog.NewTextHandler(s.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
	}
}

// start makes an uplink as a start of the agent does.
func (s *site) start() *uplink.Uplink {
	s.t.Helper()
	return expect.Value(uplink.New(s.options, s.device()))(s.t)
}

// file is a path on the device.
func (s *site) file(name string) string { return filepath.Join(s.dir, name) }

func (s *site) write(name string, content []byte) string {
	s.t.Helper()
	file := s.file(name)
	check(s.t, os.WriteFile(file, content, 0o600))
	return file
}

// writePair writes what the device shows, or signs with.
func (s *site) writePair(svid *pki.SVID) {
	s.t.Helper()
	s.options.Certificate = s.write("device.pem", svid.CertificatePEM())
	s.options.Key = s.write("device.key", expect.Value(svid.KeyPEM())(s.t))
}

// open starts a WFM that ends with the test.
func open(t *testing.T, o wfmsim.Options) *wfmsim.Server {
	t.Helper()
	server := expect.Value(wfmsim.New(o))(t)
	check(t, server.Start(""))
	t.Cleanup(func() { _ = server.Close() })
	return server
}

// mutual is a WFM of rc.3 whose client the site is.
func (s *site) mutual(change func(*wfmsim.Options)) (*wfmsim.Server, *pki.Authority) {
	s.t.Helper()
	authority := expect.Value(pki.NewAuthority(trustDomain, time.Now()))(s.t)
	o := wfmsim.Options{
		ID: identity.ID{TrustDomain: trustDomain, WFM: wfmID}, SVID: expect.Value(authority.IssueWFM(wfmID))(s.t).TLS(), Bundle: authority.Bundle(),
		Clients: []string{clientID},
	}
	if change != nil {
		change(&o)
	}
	server := open(s.t, o)
	s.writePair(expect.Value(authority.IssueClient(wfmID, clientID))(s.t))
	s.options.TrustBundle = s.write("bundle.json", expect.Value(authority.BundleJSON())(s.t))
	s.options.URL = server.URL()
	return server, authority
}

// signed is a WFM before rc.3, which nobody introduced the device to.
func (s *site) signed(revision margo.Revision, change func(*wfmsim.Options)) (*wfmsim.Server, *pki.ServerAuthority) {
	s.t.Helper()
	authority := expect.Value(pki.NewServerAuthority("Plant", time.Now()))(s.t)
	o := wfmsim.Options{Revision: revision, SVID: expect.Value(authority.IssueServer([]string{host}))(s.t).TLS(), Root: authority.RootPEM()}
	if change != nil {
		change(&o)
	}
	w := open(s.t, o)
	s.introduce(authority)
	s.options.CA = s.write("ca.pem", authority.RootPEM())
	s.options.URL = w.URL()
	s.options.Revision = revision
	return w, authority
}

// introduce gives the site a new certificate to sign with.
func (s *site) introduce(authority *pki.ServerAuthority) *pki.SVID {
	s.t.Helper()
	signer := expect.Value(authority.IssueSigner(deviceID))(s.t)
	s.writePair(signer)
	return signer
}

// gateway is a WFM of rc.3 behind a gateway that wants these credentials.
func (s *site) gateway(scheme, secret string) (*wfmsim.Server, *pki.ServerAuthority) {
	s.t.Helper()
	authority := expect.Value(pki.NewServerAuthority("Gateway", time.Now()))(s.t)
	w := open(s.t, wfmsim.Options{SVID: expect.Value(authority.IssueServer([]string{host}))(s.t).TLS(), Authorization: credentials(scheme, secret), Clients: []string{clientID}})
	file := s.write("secret", []byte(secret+"\n"))
	if s.options.Authorization.Bearer = file; scheme == "Basic" {
		s.options.Authorization = uplink.Authorization{Basic: file}
	}
	s.options.CA = s.write("ca.pem", authority.RootPEM())
	s.options.URL = w.URL()
	return w, authority
}

func credentials(scheme, secret string) map[string]string {
	if scheme == "Basic" {
		secret = base64.StdEncoding.EncodeToString([]byte(secret))
	}
	return map[string]string{scheme + " " + secret: clientID}
}

// repository is a Git repository that holds the desired state; what the site
// knew of a WFM becomes where the reports go.
func (s *site) repository() *gitserver.Server {
	s.t.Helper()
	if _, err := gitserver.Program(); err != nil {
		s.t.Skip("needs git")
	}
	server := expect.Value(gitserver.New(s.t.TempDir(), expect.Value(public[0].IssueServer([]string{host}))(s.t).TLS()))(s.t)
	check(s.t, server.Start())
	s.t.Cleanup(func() { _ = server.Close() })
	s.git = server
	var known []byte
	if s.options.CA != "" {
		known = expect.Value(os.ReadFile(s.options.CA))(s.t)
	}
	s.options.CA = s.write("ca.pem", append(known, public[0].RootPEM()...))
	s.options.Reports, s.options.URL = s.options.URL, "git+"+server.URL()
	s.options.Git.Branch = "main"
	return server
}

// document is a deployment, in one of its revisions.
func document(t *testing.T, revision string) []byte {
	t.Helper()
	return expect.Value(wfmsim.Deployment{
		ID: deploymentID, Name: "app", DeviceID: deviceID,
		Components: []wfmsim.Component{{Name: "main", Repository: "registry.example/app", Revision: revision}},
	}.Document())(t)
}

// status is a report about it.
func status(t *testing.T, state margo.State, version uint64) []byte {
	t.Helper()
	return expect.Value(margo.Status{
		DeploymentID: deploymentID, DeviceID: deviceID, AdoptedVersion: version, State: state,
		Components: []margo.ComponentStatus{{Name: "main", State: state}},
	}.Marshal())(t)
}

// capabilities is what the device reports of itself.
func capabilities(t *testing.T) []byte {
	t.Helper()
	return expect.Value(agent.Describe(agent.Device{ID: deviceID, Vendor: "v", ModelNumber: "m", SerialNumber: "s"}, func() (capability.Facts, error) {
		return capability.Facts{CPU: capability.CPU{Cores: 1, Architecture: "arm"}, Memory: 64 << 20, Storage: 1 << 30}, nil
	}, slog.New(slog.DiscardHandler)))(t)
}

// asked is how often an endpoint was called.
func asked(w *wfmsim.Server, endpoint string) int { return w.Requests().Count(endpoint) }

// poll asks for the manifest and its documents, which must succeed.
func poll(t *testing.T, u *uplink.Uplink) *wfm.Manifest {
	t.Helper()
	m := expect.Value(u.Manifest(t.Context(), ""))(t)
	got := 0
	check(t, u.Documents(t.Context(), m, m.Deployments, func(d digest.Digest, body []byte) error {
		expect.Equal(t, digest.FromBytes(body), d, "digest of a document")
		expect.Equal(t, expect.Value(margo.ParseDeployment(body))(t).ID, deploymentID, "document %s is not read", body)
		got++
		return nil
	}))
	expect.Equal(t, got, len(m.Deployments), "documents")
	return m
}

// scope is whose manifests are obeyed.
func scope(t *testing.T, u *uplink.Uplink) string {
	t.Helper()
	return expect.Value(u.Identity(t.Context()))(t)
}

// fails checks why an identity cannot be used.
func fails(t *testing.T, err error, reason identity.Reason) {
	t.Helper()
	if known, ok := errors.AsType[*identity.Error](err); !ok || known.Reason != reason {
		t.Errorf("got %v, want reason %q", err, reason)
	}
}

// memory keeps records as a store does, and can fail.
type memory struct {
	mu      sync.Mutex
	records map[string][]byte
	commits map[string]int // by verb
	before  func(verb string) error
}

func (m *memory) Setting(name string) ([]byte, bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	record, ok := m.records[name]
	return record, ok, nil
}

func (m *memory) Commit(verb string, c store.Change) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.before != nil {
		if err := m.before(verb); err != nil {
			return err
		}
	}
	m.commits[verb]++
	maps.Copy(m.records, c.Settings)
	return nil
}

func (m *memory) set(name string, record []byte) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.records[name] = record
}

func (m *memory) fail(before func(verb string) error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.before = before
}

func (m *memory) count(verb string) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.commits[verb]
}

// syncBuffer is a log that is written while it is read.
type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

var check = expect.Check
