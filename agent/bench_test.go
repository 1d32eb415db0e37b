package agent_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	goruntime "runtime"
	"runtime/debug"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/margolite/margolite/agent"
	"github.com/margolite/margolite/agent/control"
	"github.com/margolite/margolite/agent/identity"
	"github.com/margolite/margolite/agent/margo"
	"github.com/margolite/margolite/agent/pace"
	"github.com/margolite/margolite/agent/wfm"
	"github.com/margolite/margolite/capability"
	"github.com/margolite/margolite/store"
	"github.com/margolite/margolite/test/ociimage"
	"github.com/margolite/margolite/test/pki"
)

// servedFrom names the environment variable that makes this program the WFM of
// a benchmark: in a process of its own, its memory is not counted.
const servedFrom = "MARGOLITE_BENCHMARK_WFM"

// TestServesBenchmarks is that process; it ends with its standard input.
func TestServesBenchmarks(t *testing.T) {
	dir := os.Getenv(servedFrom)
	if dir == "" {
		t.Skip("only in the process that serves a benchmark")
	}
	certificate, err := tls.LoadX509KeyPair(filepath.Join(dir, "certificate"), filepath.Join(dir, "key"))
	if err != nil {
		t.Fatal(err)
	}
	l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{certificate}, ClientAuth: tls.RequireAnyClientCert,
	})
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = http.Serve(l, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			switch {
			case r.Method != http.MethodGet:
				_, _ = io.Copy(io.Discard, r.Body)
			case r.URL.Path == "/api/v1/deployments":
				raw, err := os.ReadFile(filepath.Join(dir, "manifest"))
				if err != nil {
					http.NotFound(w, r)
					return
				}
				etag := `"` + digest.FromBytes(raw).String() + `"`
				w.Header().Set("Content-Type", margo.ManifestMediaType)
				w.Header().Set("ETag", etag)
				if r.Header.Get("If-None-Match") == etag {
					w.WriteHeader(http.StatusNotModified)
					return
				}
				_, _ = w.Write(raw)
			default:
				w.Header().Set("ETag", `"`+path.Base(r.URL.Path)+`"`)
				http.ServeFile(w, r, filepath.Join(dir, path.Base(r.URL.Path)))
			}
		}))
	}()
	fmt.Println(l.Addr())
	_, _ = io.Copy(io.Discard, os.Stdin)
	os.Exit(0)
}

// yard is an agent with a real store and a real way to a WFM of its own process.
type yard struct {
	b     *testing.B
	dir   string // of the WFM
	agent *agent.Agent
	store *store.Store
}

func newYard(b *testing.B) *yard {
	b.Helper()
	check := func(err error) {
		b.Helper()
		if err != nil {
			b.Fatal(err)
		}
	}
	y := &yard{b: b, dir: b.TempDir()}
	authority, err := pki.NewAuthority("factory.example", time.Now())
	check(err)
	server, err := authority.IssueWFM("one")
	check(err)
	key, err := server.KeyPEM()
	check(err)
	check(os.WriteFile(filepath.Join(y.dir, "certificate"), server.CertificatePEM(), 0o600))
	check(os.WriteFile(filepath.Join(y.dir, "key"), key, 0o600))

	// #nosec: it is this program
	child := exec.Command(os.Args[0], "-test.run=^TestServesBenchmarks$")
	child.Env = append(os.Environ(), servedFrom+"="+y.dir)
	in, err := child.StdinPipe()
	check(err)
	out, err := child.StdoutPipe()
	check(err)
	check(child.Start())
	b.Cleanup(func() { _ = in.Close(); _ = child.Wait() }) // also one that never got further
	said := bufio.NewScanner(out)
	said.Scan()
	address := said.Text()
	if _, _, err := net.SplitHostPort(address); err != nil {
		b.Fatalf("the WFM says %q", address)
	}
	own, err := authority.IssueClient("one", deviceID)
	check(err)
	files, err := pki.WriteFiles(b.TempDir(), own, authority.Bundle())
	check(err)
	id, err := identity.Load(identity.Options{Certificate: files.Certificate, Key: files.Key, TrustBundle: files.TrustBundle})
	check(err)
	y.store, err = store.Open(filepath.Join(b.TempDir(), "margolite.db"), store.Options{})
	check(err)
	client, err := wfm.New(wfm.Options{URL: "https://" + address, TLS: id.TLS(), Spool: y.store.Incoming()})
	check(err)
	y.agent = agent.New(agent.Options{
		Settings: agent.Settings{Device: agent.Device{ID: deviceID}, Poll: pace.Rules{Interval: time.Hour}, Gate: &fakeGate{closed: true}},
		WFM:      knownWFM{client}, Store: y.store,
		Runtime: newFakeRuntime(), Logger: slog.New(slog.DiscardHandler), Now: time.Now,
		Facts: func() (capability.Facts, error) {
			return capability.Facts{CPU: capability.CPU{Cores: 1, Architecture: "arm"}, Memory: 64 << 20, Storage: 1 << 30}, nil
		},
	})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- y.agent.Run(ctx) }()
	b.Cleanup(func() {
		cancel()
		err := <-done
		client.CloseIdle()
		check(errors.Join(err, y.store.Close()))
	})
	return y
}

// knownWFM is a client with the name of its WFM.
type knownWFM struct{ *wfm.Client }

func (knownWFM) Identity(context.Context) (string, error) {
	return "spiffe://factory.example/margo/wfm/one", nil
}

func (knownWFM) DeleteCapabilities(context.Context, string) error { return nil }

func (knownWFM) ClientID() string { return "" }

func (knownWFM) Audience() string { return "spiffe://factory.example/margo/wfm/one" }

func (knownWFM) Describe() control.IdentityStatus { return control.IdentityStatus{} }

// publish makes one deployment the desired state.
func (y *yard) publish() {
	y.b.Helper()
	body := []byte(document(first, "1.0.0"))
	bundle, err := ociimage.TarGzip([]ociimage.Entry{{Name: first + ".yaml", Data: body}})
	if err != nil {
		y.b.Fatal(err)
	}
	d, of := digest.FromBytes(body), digest.FromBytes(bundle)
	raw, err := (&margo.StateManifest{
		Version:     1,
		Bundle:      &margo.Bundle{MediaType: margo.BundleMediaType, Digest: of, URL: "/api/v1/bundles/" + of.String()},
		Deployments: []margo.DeploymentRef{{ID: first, Digest: d, URL: "/api/v1/deployments/" + first + "/" + d.String()}},
	}).Marshal()
	if err != nil {
		y.b.Fatal(err)
	}
	for name, content := range map[string][]byte{d.String(): body, of.String(): bundle, "manifest": raw} {
		if err := os.WriteFile(filepath.Join(y.dir, name), content, 0o600); err != nil {
			y.b.Fatal(err)
		}
	}
}

func (y *yard) sync() {
	if err := y.agent.Sync(context.Background()); err != nil {
		y.b.Fatal(err)
	}
}

// BenchmarkUnchangedPoll polls while nothing changes, the way to the WFM and
// back included.
func BenchmarkUnchangedPoll(b *testing.B) {
	defer debug.SetGCPercent(debug.SetGCPercent(50))
	y := newYard(b)
	y.publish()
	for range 10 { // until nothing is left to be done
		y.sync()
		time.Sleep(50 * time.Millisecond)
	}
	before, writes := goruntime.NumGoroutine(), y.store.Writes()
	b.ReportAllocs()
	for b.Loop() {
		y.sync()
	}
	b.ReportMetric(float64(y.store.Writes()-writes)/float64(b.N), "commits/op")
	b.ReportMetric(float64(goruntime.NumGoroutine()-before), "goroutines-more")
}
