package wfm_test

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/margolite/margolite/agent/margo"
	"github.com/margolite/margolite/agent/wfm"
	"github.com/margolite/margolite/store"
	"github.com/margolite/margolite/test/expect"
)

// incoming is a spool on disk.
func incoming(t testing.TB, o store.Options) *store.Incoming {
	t.Helper()
	s := expect.Value(store.Open(filepath.Join(t.TempDir(), "margolite.db"), o))(t)
	t.Cleanup(func() { _ = s.Close() })
	return s.Incoming()
}

func withSpool(s wfm.Spool) func(*wfm.Options) { return func(o *wfm.Options) { o.Spool = s } }

// largeFleet has a bundle of some hundred KB that does not compress.
func largeFleet() *fleet {
	noise := rand.New(rand.NewPCG(1, 2))
	return fleetOf(4, func(string) []byte {
		document := make([]byte, 100<<10)
		for i := range document {
			document[i] = byte(noise.Uint32())
		}
		return document
	})
}

// ranges is a server of one artifact that understands ranges, and spoils its
// answers as a test tells it to: cut[i] is where the i-th one breaks off.
type ranges struct {
	content []byte
	cut     []int
	plain   bool // it does not understand ranges
	piece   int  // sends no more at a time

	asked []string // Range of the requests
}

func (s *ranges) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if encoding := r.Header.Get("Accept-Encoding"); encoding != "identity" {
		s.asked = append(s.asked, "Accept-Encoding: "+encoding)
	}
	s.asked = append(s.asked, r.Header.Get("Range"))
	if s.plain {
		r.Header.Del("Range")
	}
	var first int
	if n, _ := fmt.Sscanf(r.Header.Get("Range"), "bytes=%d-", &first); n == 1 && s.piece > 0 && first+s.piece < len(s.content) {
		r.Header.Set("Range", fmt.Sprintf("bytes=%d-%d", first, first+s.piece-1))
	}
	var out http.ResponseWriter = w
	if n := len(s.asked) - 1; n < len(s.cut) {
		out = &cutWriter{w, s.cut[n]}
	}
	http.ServeContent(out, r, "", time.Time{}, bytes.NewReader(s.content))
}

// cutWriter sends no more than it should, though more was announced.
type cutWriter struct {
	http.ResponseWriter

	left int
}

func (w *cutWriter) Write(p []byte) (int, error) {
	if len(p) > w.left {
		p = p[:w.left]
	}
	w.left -= len(p)
	_, _ = w.ResponseWriter.Write(p)
	if w.left == 0 {
		_ = http.NewResponseController(w.ResponseWriter).Flush()
		panic(http.ErrAbortHandler)
	}
	return len(p), nil
}

// DS-25: what came of a bundle does not have to come again. It is asked for without
// encoding, so that it goes on at the bytes that came.
func TestDS25ABundleGoesOnWhereItBrokeOff(t *testing.T) {
	s := serve(t)
	f := largeFleet()
	other := slices.Clone(f.bundle)
	other[1000]++
	for name, test := range map[string]struct {
		server ranges
		before []byte // in the spool
		asked  []string
	}{
		"at once":                       {ranges{}, nil, []string{""}},
		"cut twice":                     {ranges{cut: []int{100000, 50000}}, nil, []string{"", "bytes=100000-", "bytes=150000-"}},
		"a part from before a restart":  {ranges{}, f.bundle[:70000], []string{"bytes=70000-"}},
		"all of it from before":         {ranges{}, f.bundle, nil},
		"something else from before":    {ranges{}, other[:70000], []string{"bytes=70000-", ""}},
		"all of something else":         {ranges{}, other, []string{fmt.Sprintf("bytes=%d-", len(other)), ""}},
		"more than there is":            {ranges{}, append(slices.Clone(f.bundle), 1, 2), []string{fmt.Sprintf("bytes=%d-", len(f.bundle)+2), ""}},
		"a server without ranges":       {ranges{plain: true}, f.bundle[:70000], []string{"bytes=70000-"}},
		"a server that sends in pieces": {ranges{piece: 150000}, f.bundle[:50000], []string{"bytes=50000-", "bytes=200000-", "bytes=350000-"}},
	} {
		t.Run(name, func(t *testing.T) {
			f.publish(s, "")
			server := &test.server
			server.content = f.bundle
			s.handle(f.bundleRoute(), server.ServeHTTP)
			spool := incoming(t, store.Options{})
			if test.before != nil {
				w := expect.Value(spool.Append(f.manifest.Bundle.Digest))(t)
				expect.Value(w.Write(test.before))(t)
				expect.Value(0, w.Close())(t)
			}
			expect.Value(get(t, s.client(t, withSpool(spool)), f))(t)
			expect.Equal(t, server.asked, test.asked, "asked")
			n := expect.Value(spool.Size(f.manifest.Bundle.Digest))(t)
			expect.Equal(t, n, int64(len(f.bundle)), "bytes in the spool for a second start")
		})
	}
}

// A server that drips does not hold the device up; what came is kept.
func TestABundleThatDripsIsGivenUp(t *testing.T) {
	s := serve(t)
	f := largeFleet()
	s.handle(f.bundleRoute(), drip(nil))
	spool := incoming(t, store.Options{})
	_, err := get(t, s.client(t, withSpool(spool), func(o *wfm.Options) {
		o.Timeout = 300 * time.Millisecond
		o.Limits.Speed = 64 << 10
	}), f)
	expect.ErrorWith(t, err, "too long", "error")
	expect.Equal(t, retries(err), true, "to be repeated")
	expect.True(t, expect.Value(spool.Size(f.manifest.Bundle.Digest))(t) != 0, "nothing of it was kept")
}

// A disk without room for the bundle has room for single documents.
func TestAFullSpoolLeavesSingleDocuments(t *testing.T) {
	s := serve(t)
	f := largeFleet()
	f.publish(s, "")
	spool := incoming(t, store.Options{IncomingBytes: 100000})
	expect.Value(get(t, s.client(t, withSpool(spool)), f))(t)
	expect.Equal(t, expect.Value(spool.Size(f.manifest.Bundle.Digest))(t), 0, "bytes stay in the spool")
}

func TestAnErrorOfTheCallerEndsTheFetch(t *testing.T) {
	s, c := pair(t)
	f := newFleet(10, 100)
	f.publish(s, "")
	full := errors.New("no room")
	for name, need := range map[string][]margo.DeploymentRef{"bundle": f.manifest.Deployments, "one": f.manifest.Deployments[:1]} {
		s.took()
		calls := 0
		err := c.Documents(t.Context(), &wfm.Manifest{StateManifest: &f.manifest}, need, func(digest.Digest, []byte) error {
			calls++
			return full
		})
		expect.True(t, err == full && calls == 1 && len(s.took()) == 1, "%s: error %v after %d calls", name, err, calls)
	}
}
