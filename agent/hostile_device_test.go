package agent_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	golog "log"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	goruntime "runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/margolite/margolite/agent"
	"github.com/margolite/margolite/agent/clock"
	"github.com/margolite/margolite/agent/pace"
	"github.com/margolite/margolite/agent/uplink"
	"github.com/margolite/margolite/capability"
	"github.com/margolite/margolite/store"
	"github.com/margolite/margolite/test/pki"
)

// deviceIn names the environment variable that makes this program the device of
// a test: in a process of its own, its memory, its files and its goroutines are
// counted and nobody else's.
const deviceIn = "MARGOLITE_TEST_DEVICE"

// order is what the process is to do.
type order struct {
	Do   string // sync, look, rest, connect, change, probe
	Time time.Duration
	To   uplink.Options
}

// view is the device after that.
type view struct {
	Err        string // of what it did
	Version    uint64 // of the accepted manifest
	Manifest   string // its digest
	Refused    string
	LastError  string
	NextPoll   time.Time
	Running    []string
	Steps      int // that changed what runs
	Outbox     int
	Disk       int64 // bytes of the state directory
	MostDisk   int64 // the most that incoming artifacts had at a time, since rest
	Memory     int64 // the most above that of rest
	Goroutines int
	Now        time.Time
	Log        string // since the view before
}

// TestIsADevice is that process: an agent with a store, a way to a WFM and a
// runtime in memory. It ends with its standard input.
func TestIsADevice(t *testing.T) {
	dir := os.Getenv(deviceIn)
	if dir == "" {
		t.Skip("only in the process that is the device of a test")
	}
	debug.SetGCPercent(50) // as the agent runs
	orders, answers := json.NewDecoder(os.Stdin), json.NewEncoder(os.NewFile(3, "answers"))
	var first order
	if err := orders.Decode(&first); err != nil {
		t.Fatal(err)
	}
	state := filepath.Join(dir, "state")
	if err := os.MkdirAll(state, 0o700); err != nil {
		t.Fatal(err)
	}
	records, err := store.Open(filepath.Join(state, "margolite.db"), store.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer records.Close()
	known, err := uplink.KnownTime(records)
	if err != nil {
		t.Fatal(err)
	}
	log := &diary{}
	d := &device{
		dir: state, store: records, runtime: newFakeRuntime(), clock: clock.New(time.Now, known), log: log,
		spool: &spool{Incoming: records.Incoming(), dir: state},
	}
	logger := slog.New(slog.NewTextHandler(log, nil))
	golog.SetOutput(slog.NewLogLogger(logger.Handler(), slog.LevelDebug).Writer()) // as the agent has it
	if d.uplink, err = uplink.New(first.To, uplink.Device{
		Records: records, Spool: d.spool, Dir: state, Clock: d.clock, Logger: logger,
	}); err != nil {
		t.Fatal(err)
	}
	d.agent = agent.New(agent.Options{
		Settings: agent.Settings{
			Device: agent.Device{ID: deviceID}, URL: first.To.URL, Poll: pace.Rules{Interval: time.Hour}, Gate: &fakeGate{},
		},
		WFM: d.uplink, Store: records, Runtime: d.runtime, Logger: logger, Now: d.clock.Now,
		Facts: func() (capability.Facts, error) {
			return capability.Facts{
				CPU: capability.CPU{Cores: 1, Architecture: "arm"}, Memory: 64<<20 + d.changes.Load()<<20, Storage: 1 << 30,
			}, nil
		},
	})
	ctx, cancel := context.WithCancel(context.Background())
	var works sync.WaitGroup
	works.Go(func() { _ = d.uplink.Run(ctx) })
	works.Go(func() {
		if err := d.agent.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	defer works.Wait()
	defer cancel()
	for {
		var o order
		if err := orders.Decode(&o); err != nil {
			return
		}
		v, err := d.obey(ctx, o)
		if err == nil {
			err = answers.Encode(v)
		}
		if err != nil {
			t.Error(err)
			return
		}
	}
}

// device is what the process consists of.
type device struct {
	dir     string
	store   *store.Store
	runtime *fakeRuntime
	clock   *clock.Clock
	spool   *spool
	uplink  *uplink.Uplink
	agent   *agent.Agent
	log     *diary
	changes atomic.Uint64
	idle    int64 // bytes of memory at rest
}

func (d *device) obey(ctx context.Context, o order) (*view, error) {
	var err error
	switch o.Do {
	case "sync":
		err = d.agent.Sync(ctx)
	case "probe":
		_, err = d.uplink.Probe(ctx)
	case "connect":
		err = d.uplink.Configure(o.To)
	case "change": // what the device offers
		d.changes.Add(1)
	case "rest":
		if err := d.rest(); err != nil {
			return nil, err
		}
	}
	v, lookErr := d.look(ctx)
	if err != nil && lookErr == nil {
		v.Err = err.Error()
	}
	return v, lookErr
}

// rest begins a new count of the most memory and disk.
func (d *device) rest() error {
	d.spool.most.Store(0)
	debug.FreeOSMemory()
	if err := os.WriteFile("/proc/self/clear_refs", []byte("5"), 0); err != nil {
		return err
	}
	now, err := memory()
	d.idle = now["RssAnon"]
	return err
}

func (d *device) look(ctx context.Context) (*view, error) {
	now, err := memory()
	if err != nil {
		return nil, err
	}
	s, err := d.agent.Status(ctx)
	if err != nil {
		return nil, err
	}
	v := &view{
		Refused: s.WFM.Refused, LastError: s.WFM.LastError, Outbox: s.Outbox, Running: d.runtime.running(),
		Memory: now["VmHWM"] - now["RssFile"] - now["RssShmem"] - d.idle, Goroutines: goruntime.NumGoroutine(),
		MostDisk: d.spool.most.Load(), Now: d.clock.Now(), Log: d.log.take(),
	}
	if s.Manifest != nil {
		v.Version, v.Manifest = s.Manifest.Version, s.Manifest.Digest
	}
	if s.WFM.NextPoll != nil {
		v.NextPoll = *s.WFM.NextPoll
	}
	d.runtime.mu.Lock()
	for step, n := range d.runtime.counts {
		if strings.HasPrefix(step, "apply ") || strings.HasPrefix(step, "remove ") {
			v.Steps += n
		}
	}
	d.runtime.mu.Unlock()
	v.Disk, err = size(d.dir)
	return v, err
}

// memory reads the kinds of memory of this process, in bytes.
func memory() (map[string]int64, error) {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return nil, err
	}
	kinds := map[string]int64{}
	for _, m := range regexp.MustCompile(`(?m)^(VmHWM|RssAnon|RssFile|RssShmem):\s+(\d+) kB$`).FindAllSubmatch(status, -1) {
		n, err := strconv.ParseInt(string(m[2]), 10, 64)
		if err != nil {
			return nil, err
		}
		kinds[string(m[1])] = n << 10
	}
	return kinds, nil
}

// size is what the files of a folder have together.
func size(dir string) (sum int64, err error) {
	err = filepath.WalkDir(dir, func(_ string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return ignoreMissing(err)
		}
		info, err := entry.Info()
		if err == nil {
			sum += info.Size()
		}
		return ignoreMissing(err)
	})
	return sum, err
}

func ignoreMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// spool notes the most that there is of incoming artifacts at a time.
type spool struct {
	*store.Incoming

	dir  string
	most atomic.Int64
}

func (s *spool) Append(d digest.Digest) (io.WriteCloser, error) {
	w, err := s.Incoming.Append(d)
	if err != nil {
		return nil, err
	}
	return &measured{w, s}, nil
}

// measured is a file of the spool: it has the most when it is closed.
type measured struct {
	io.WriteCloser

	spool *spool
}

func (m *measured) Close() error {
	now, err := size(filepath.Join(m.spool.dir, "incoming"))
	m.spool.most.Store(max(m.spool.most.Load(), now))
	return errors.Join(err, m.WriteCloser.Close())
}

// diary keeps what is logged until it is taken.
type diary struct{ log }

func (l *diary) take() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	defer l.text.Reset()
	return l.text.String()
}

// remote is that process, as the test sees it.
type remote struct {
	t       *testing.T
	options uplink.Options
	dir     string
	orders  *json.Encoder
	answers chan *view
	stop    func()
	stderr  bytes.Buffer // once stopped
}

// newRemote starts a device with the identity of a client of the WFM "plant".
func newRemote(t *testing.T, authority *pki.Authority, o uplink.Options) *remote {
	t.Helper()
	d := &remote{t: t, dir: t.TempDir()}
	svid, err := authority.IssueClient(hostileWFM, hostileClient)
	if err != nil {
		t.Fatal(err)
	}
	files, err := pki.WriteFiles(d.dir, svid, authority.Bundle())
	if err != nil {
		t.Fatal(err)
	}
	o.Certificate, o.Key = files.Certificate, files.Key
	if o.TrustBundle == "" {
		o.TrustBundle = files.TrustBundle
	}
	d.options = o
	d.start()
	t.Cleanup(func() { d.stop() })
	return d
}

func (d *remote) start() {
	d.t.Helper()
	answers, theirs, err := os.Pipe()
	if err != nil {
		d.t.Fatal(err)
	}
	process := exec.Command(os.Args[0], "-test.run=^TestIsADevice$")
	process.Env = append(os.Environ(), deviceIn+"="+d.dir, "TMPDIR="+d.dir)
	process.Stderr = &d.stderr
	process.ExtraFiles = []*os.File{theirs}
	orders, err := process.StdinPipe()
	if err == nil {
		err = process.Start()
	}
	theirs.Close()
	if err != nil {
		d.t.Fatal(err)
	}
	d.orders, d.answers = json.NewEncoder(orders), make(chan *view)
	go func() {
		defer close(d.answers)
		defer answers.Close()
		for decoder := json.NewDecoder(answers); ; {
			v := new(view)
			if decoder.Decode(v) != nil {
				return
			}
			d.answers <- v
		}
	}()
	d.stop = func() {
		orders.Close()
		for range d.answers {
		}
		if err := process.Wait(); err != nil {
			d.t.Errorf("the device ended with %v: %s", err, d.stderr.String())
		}
		d.stop = func() {}
	}
	if err := d.orders.Encode(order{To: d.options}); err != nil {
		d.t.Fatal(err)
	}
}

// do gives an order and waits for what comes of it.
func (d *remote) do(what string) *view {
	d.t.Helper()
	return d.obey(order{Do: what})
}

func (d *remote) obey(o order) *view {
	d.t.Helper()
	if err := d.orders.Encode(o); err != nil {
		d.t.Fatalf("the device is gone: %v: %s", err, d.stderr.String())
	}
	select {
	case v := <-d.answers:
		if v == nil {
			d.t.Fatalf("the device is gone: %s", d.stderr.String())
		}
		return v
	case <-time.After(patience * 3):
		d.t.Fatalf("the device does not come to an end of %q", o.Do)
	}
	return nil
}

// connect lets the device ask another server for everything, over new connections.
func (d *remote) connect(url string) {
	d.t.Helper()
	d.options.URL = url
	if v := d.obey(order{Do: "connect", To: d.options}); v.Err != "" {
		d.t.Fatal(v.Err)
	}
}

// eventually waits until the device looks as it should.
func (d *remote) eventually(what string, right func(*view) bool) *view {
	d.t.Helper()
	deadline := time.Now().Add(patience)
	for {
		v := d.do("look")
		if right(v) {
			return v
		}
		if time.Now().After(deadline) {
			d.t.Fatalf("not so: %s: %s", what, v)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func (v *view) String() string {
	b, err := json.Marshal(v)
	return fmt.Sprint(string(b), err)
}
