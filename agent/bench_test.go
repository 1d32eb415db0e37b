package agent_test

import (
	"archive/tar"
	"bufio"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	mathrand "math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	goruntime "runtime"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
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
	"github.com/margolite/margolite/test/pki"
)

const (
	manyDeployments = 1000
	largeDocument   = 50 << 10
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
	var requests atomic.Int64
	go func() {
		_ = http.Serve(l, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			requests.Add(1)
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
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() { // each line asks how many requests there were since the last one
		fmt.Println(requests.Swap(0))
	}
	os.Exit(0)
}

// yard is an agent with a real store and a real way to a WFM of its own process.
type yard struct {
	b        *testing.B
	dir      string // of the WFM
	manifest margo.StateManifest
	noise    *mathrand.Rand
	agent    *agent.Agent
	store    *store.Store
	gate     *fakeGate
	counting func() int // requests since the last call
	stop     func()
}

func newYard(b *testing.B) *yard {
	b.Helper()
	check := func(err error) {
		b.Helper()
		if err != nil {
			b.Fatal(err)
		}
	}
	y := &yard{b: b, dir: b.TempDir(), noise: mathrand.New(mathrand.NewPCG(1, 2)), gate: &fakeGate{closed: true}}
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
	y.counting = func() (n int) {
		_, _ = io.WriteString(in, "\n")
		said.Scan()
		if _, err := fmt.Sscan(said.Text(), &n); err != nil {
			b.Fatal(err)
		}
		return n
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
		Settings: agent.Settings{Device: agent.Device{ID: deviceID}, Poll: pace.Rules{Interval: time.Hour}, Gate: y.gate},
		WFM:      knownWFM{client}, Store: y.store,
		Runtime: newFakeRuntime(), Logger: slog.New(slog.DiscardHandler), Now: time.Now,
		Facts: func() (capability.Facts, error) {
			return capability.Facts{CPU: capability.CPU{Cores: 1, Architecture: "arm"}, Memory: 64 << 20, Storage: 1 << 30}, nil
		},
	})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- y.agent.Run(ctx) }()
	y.stop = sync.OnceFunc(func() {
		cancel()
		err := <-done
		client.CloseIdle()
		check(errors.Join(err, y.store.Close()))
	})
	b.Cleanup(y.stop)
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

// document makes a document of a deployment that no compression makes smaller
// by much, and serves it.
func (y *yard) document(i int) margo.DeploymentRef {
	id := fmt.Sprintf("ad9b614e-8912-45f4-a523-%012d", i)
	noise := make([]byte, largeDocument*3/4)
	for j := range noise {
		noise[j] = byte(y.noise.Uint32())
	}
	body := document(id, "1.0.0", "  parameters:", `    a: {value: "`+base64.StdEncoding.EncodeToString(noise)+`", targets: [{pointer: X, components: [main]}]}`)
	d := digest.FromString(body)
	y.write(d.String(), []byte(body))
	return margo.DeploymentRef{ID: id, Digest: d, SizeBytes: uint64(len(body)), URL: "/api/v1/deployments/" + id + "/" + d.String()}
}

func (y *yard) write(name string, content []byte) {
	if err := os.WriteFile(filepath.Join(y.dir, name), content, 0o600); err != nil {
		y.b.Fatal(err)
	}
}

// fill makes n documents, and the bundle of them.
func (y *yard) fill(n int) {
	f, err := os.Create(filepath.Join(y.dir, "bundle"))
	if err != nil {
		y.b.Fatal(err)
	}
	sum := sha256.New()
	z, err := gzip.NewWriterLevel(io.MultiWriter(f, sum), gzip.NoCompression)
	if err != nil {
		y.b.Fatal(err)
	}
	w := tar.NewWriter(z)
	for i := range n {
		ref := y.document(i)
		y.manifest.Deployments = append(y.manifest.Deployments, ref)
		body, err := os.ReadFile(filepath.Join(y.dir, ref.Digest.String()))
		if err == nil {
			err = w.WriteHeader(&tar.Header{Name: ref.ID + ".yaml", Typeflag: tar.TypeReg, Mode: 0o644, Size: int64(len(body))})
		}
		if err == nil {
			_, err = w.Write(body)
		}
		if err != nil {
			y.b.Fatal(err)
		}
	}
	info, err := f.Stat()
	if err = errors.Join(err, w.Close(), z.Close(), f.Close()); err != nil {
		y.b.Fatal(err)
	}
	d := digest.NewDigest(digest.SHA256, sum)
	if err := os.Rename(f.Name(), filepath.Join(y.dir, d.String())); err != nil {
		y.b.Fatal(err)
	}
	y.manifest.Bundle = &margo.Bundle{MediaType: margo.BundleMediaType, Digest: d, SizeBytes: uint64(info.Size()), URL: "/api/v1/bundles/" + d.String()}
}

// publish makes the documents that there are the desired state.
func (y *yard) publish() {
	y.manifest.Version++
	raw, err := json.Marshal(y.manifest)
	if err != nil {
		y.b.Fatal(err)
	}
	y.write("manifest", raw)
}

func (y *yard) sync() {
	if err := y.agent.Sync(context.Background()); err != nil {
		y.b.Fatal(err)
	}
}

// staged waits until every deployment waits for the gate.
func (y *yard) staged() {
	for {
		deployments, err := y.store.Deployments()
		if err != nil {
			y.b.Fatal(err)
		}
		ready := 0
		for _, d := range deployments {
			if d.Phase == string(agent.Staged) {
				ready++
			}
		}
		if left, _ := y.store.CountReports(); ready == manyDeployments && left == 0 {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// ofProcess reads a figure of this process in /proc, in bytes.
func ofProcess(b *testing.B, file, name string) int64 {
	b.Helper()
	data, err := os.ReadFile("/proc/self/" + file)
	if err != nil {
		b.Skip("the kernel does not tell")
	}
	for line := range strings.Lines(string(data)) {
		var n int64
		if rest, ok := strings.CutPrefix(line, name+":"); ok {
			if _, err := fmt.Sscan(rest, &n); err != nil {
				b.Fatal(err)
			}
			if strings.Contains(rest, "kB") {
				n <<= 10
			}
			return n
		}
	}
	b.Skip("the kernel does not tell " + name)
	return 0
}

// peak watches the anonymous memory of this process until it is asked for how
// far above idle it was.
func peak(b *testing.B) (above func() float64) {
	goruntime.GC()
	debug.FreeOSMemory()
	idle := ofProcess(b, "status", "RssAnon")
	stop, most := make(chan struct{}), make(chan int64)
	go func() {
		high := idle
		for {
			select {
			case <-stop:
				most <- high
				return
			case <-time.After(2 * time.Millisecond):
				high = max(high, ofProcess(b, "status", "RssAnon"))
			}
		}
	}()
	return func() float64 {
		close(stop)
		return float64(<-most-idle) / (1 << 20)
	}
}

// BenchmarkFirstBundle takes 1,000 deployments of 50 KB each as one bundle of
// 50 MB. Next to the time until they are accepted it says how far the memory of
// the process rises above idle meanwhile, and while they are staged.
func BenchmarkFirstBundle(b *testing.B) {
	defer debug.SetGCPercent(debug.SetGCPercent(50)) // as the agent runs
	var high float64
	for b.Loop() {
		b.StopTimer()
		y := newYard(b)
		_ = y.agent.Sync(context.Background()) // there is nothing yet
		y.fill(manyDeployments)
		y.publish()
		y.counting()
		rise := peak(b)
		wrote := ofProcess(b, "io", "wchar")
		b.StartTimer()
		y.sync()
		b.StopTimer()
		high = max(high, rise())
		b.ReportMetric(high, "MiB-above-idle")
		b.ReportMetric(float64(ofProcess(b, "io", "wchar")-wrote)/(1<<20), "MiB-written")
		rise = peak(b)
		y.staged()
		b.ReportMetric(rise(), "MiB-above-idle-staging")
		var m goruntime.MemStats
		goruntime.ReadMemStats(&m)
		b.ReportMetric(float64(m.StackInuse)/(1<<20), "MiB-stacks")
		y.stop()
		b.StartTimer()
	}
}

// BenchmarkOneOfManyChanges takes a manifest of 1,000 deployments of which one
// has another document.
func BenchmarkOneOfManyChanges(b *testing.B) {
	defer debug.SetGCPercent(debug.SetGCPercent(50))
	y := newYard(b)
	y.fill(manyDeployments)
	y.publish()
	y.sync()
	y.staged()
	y.counting()
	var requests, writes, wrote int64
	for b.Loop() {
		b.StopTimer()
		i := y.noise.IntN(manyDeployments)
		y.manifest.Deployments[i] = y.document(i)
		y.publish()
		y.staged()
		y.counting()
		before, bytes := y.store.Writes(), ofProcess(b, "io", "wchar")
		b.StartTimer()
		y.sync()
		b.StopTimer()
		wrote += ofProcess(b, "io", "wchar") - bytes
		y.staged()
		writes += y.store.Writes() - before
		requests += int64(y.counting())
		b.StartTimer()
	}
	b.ReportMetric(float64(requests)/float64(b.N), "requests/op")
	b.ReportMetric(float64(writes)/float64(b.N), "commits/op")
	b.ReportMetric(float64(wrote)/float64(b.N), "B-written/op")
}

// BenchmarkUnchangedPoll polls while nothing changes, the way to the WFM and
// back included.
func BenchmarkUnchangedPoll(b *testing.B) {
	defer debug.SetGCPercent(debug.SetGCPercent(50))
	y := newYard(b)
	y.fill(1)
	y.publish()
	for range 10 { // until nothing is left to be done
		y.sync()
		time.Sleep(50 * time.Millisecond)
	}
	y.counting()
	before, writes := goruntime.NumGoroutine(), y.store.Writes()
	b.ReportAllocs()
	for b.Loop() {
		y.sync()
	}
	b.ReportMetric(float64(y.counting())/float64(b.N), "requests/op")
	b.ReportMetric(float64(y.store.Writes()-writes)/float64(b.N), "commits/op")
	b.ReportMetric(float64(goruntime.NumGoroutine()-before), "goroutines-more")
}
