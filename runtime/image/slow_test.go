package image_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/opencontainers/go-digest"

	"github.com/margolite/margolite/runtime/containerd"
	"github.com/margolite/margolite/runtime/fault"
	"github.com/margolite/margolite/runtime/image"
	"github.com/margolite/margolite/test/containerdtest"
	"github.com/margolite/margolite/test/expect"
)

const (
	// patience is how long what must happen may take on a busy machine.
	patience = 2 * time.Minute
	// window is how long a rate is measured here, and minRate a floor in bytes a minute that drips are below.
	window  = 600 * time.Millisecond
	minRate = 1 << 20
)

// hog gives a part of each blob, and then a byte now and then, until it is told to stop.
type hog struct {
	*watched
	wants  []image.Want
	enough chan struct{}
}

func newHog(t *testing.T, images int) *hog {
	t.Helper()
	h := &hog{watched: watch(t), enough: make(chan struct{})}
	for n := range images {
		want := image.Want{Ref: fmt.Sprintf("%s/hog%d:1", h.host, n)}
		containerdtest.Push(t, containerdtest.Image(t, nil, containerdtest.Blob(t, "hog", 2*dripAfter)), want.Ref)
		h.wants = append(h.wants, want)
	}
	h.set(h.drip)
	return h
}

const dripAfter = 300 << 10 // more than is written to containerd at a time: behind a socket the rest is lost with the slot

func (h *hog) drip(rw http.ResponseWriter, r *http.Request) bool {
	if r.Method != http.MethodGet || !strings.Contains(r.URL.Path, "/blobs/") {
		return false
	}
	return h.ranges(&dripping{ResponseWriter: rw, left: dripAfter, until: h.enough, ctx: r.Context()}, r)
}

// dripping is an answer that comes a byte at a time.
type dripping struct {
	http.ResponseWriter
	left  int             // that come at once
	until <-chan struct{} // nil: for ever
	ctx   context.Context
}

func (d *dripping) Write(p []byte) (n int, err error) {
	for n < len(p) {
		some := p[n:min(len(p), n+max(d.left, 1))]
		if d.left == 0 {
			select {
			case <-d.ctx.Done():
				return n, d.ctx.Err()
			case <-d.until:
				some = p[n:]
			case <-time.After(window / 8):
			}
		}
		m, err := d.ResponseWriter.Write(some)
		n += m
		if err != nil {
			return n, err
		}
		d.left = max(d.left-m, 0)
		d.ResponseWriter.(http.Flusher).Flush()
	}
	return n, nil
}

// pulling are pulls that go on beside a test.
type pulling struct {
	ended chan error
	mu    sync.Mutex
	last  map[string]image.Progress
	news  chan struct{}
}

func startPulls(ctx context.Context, t *testing.T, images *image.Images, wants ...image.Want) *pulling {
	s := &pulling{ended: make(chan error, len(wants)), last: make(map[string]image.Progress), news: make(chan struct{}, 1)}
	ctx, cancel := context.WithCancel(ctx)
	var group sync.WaitGroup
	for _, want := range wants {
		group.Go(func() {
			_, err := pullOne(ctx, images, want, func(p image.Progress) {
				s.mu.Lock()
				s.last[p.Object] = p
				s.mu.Unlock()
				select {
				case s.news <- struct{}{}:
				default:
				}
			})
			s.ended <- err
		})
	}
	t.Cleanup(func() {
		cancel()
		group.Wait()
	})
	return s
}

// await waits until what all pulls said last is as it has to be.
func (s *pulling) await(t *testing.T, what string, is func(map[string]image.Progress) bool) {
	t.Helper()
	deadline := time.After(patience)
	for {
		s.mu.Lock()
		done := is(s.last)
		s.mu.Unlock()
		if done {
			return
		}
		select {
		case <-s.news:
		case err := <-s.ended:
			t.Fatalf("a pull ended: %v", err)
		case <-deadline:
			t.Fatalf("not %s: %v", what, s.last)
		}
	}
}

// count is how many say that they are slow for a reason.
func count(last map[string]image.Progress, why string) (n int) {
	for _, p := range last {
		if strings.Contains(p.Slow, why) {
			n++
		}
	}
	return n
}

func openMeasured(t *testing.T, client containerd.Client, registries map[string]image.Registry) *image.Images {
	t.Helper()
	return openWith(t, image.Options{Client: client, Registries: registries, AtOnce: 1, MinRate: minRate, RateWindow: window})
}

func plainHTTP(all ...*watched) map[string]image.Registry {
	registries := make(map[string]image.Registry)
	for _, w := range all {
		registries[w.host] = image.Registry{PlainHTTP: true}
	}
	return registries
}

// Registries that drip hold up nobody who waits for another one, and everybody who waits for them is told so. What drips
// goes on where it was after others were served.
func TestRegistriesThatDripHoldUpNobodyElse(t *testing.T) {
	each(t, func(t *testing.T, ctx context.Context, client containerd.Client, _ *watched) {
		good, first, second := watch(t), newHog(t, 3), newHog(t, 2)
		present, missing := image.Want{Ref: good.host + "/present:1"}, image.Want{Ref: good.host + "/missing:1"}
		for _, w := range []image.Want{present, missing} {
			containerdtest.Push(t, containerdtest.Busybox(t, nil), w.Ref)
		}
		images := openMeasured(t, client, plainHTTP(good, first.watched, second.watched))
		got := pull(t, images, present)
		hogs := startPulls(ctx, t, images, append(first.wants, second.wants...)...)
		hogs.await(t, "all told that they are slow", func(last map[string]image.Progress) bool {
			return count(last, "less than the minimum of 1048576") > 0 && count(last, "waiting for a download slot: registry "+first.host) > 0
		})
		good.asked("")
		bounded, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		present.Pin = got.Digest
		expect.OK(t, expect.ErrorOf(pullOne(bounded, images, present, nil)))
		expect.Equal(t, good.asked(""), nil, "requests for an image that is present")
		expect.OK(t, expect.ErrorOf(pullOne(bounded, images, missing, nil))) // of another registry
		close(first.enough)
		close(second.enough)
		for range 5 {
			select {
			case err := <-hogs.ended:
				expect.OK(t, err)
			case <-bounded.Done():
				t.Fatal("what dripped does not come")
			}
		}
		resumed := append(first.asked("bytes="), second.asked("bytes=")...)
		expect.True(t, len(resumed) != 0 && !strings.HasSuffix(resumed[0], "bytes=0-"), "resumed with %v", resumed)
	})
}

// A mirror that drips is left for the registry, of which the rest comes. What came from the mirror counts once.
func TestAMirrorThatDripsIsLeft(t *testing.T) {
	client := containerdtest.Embedded(t)
	good, mirror := watch(t), newHog(t, 0)
	big := containerdtest.Image(t, nil, containerdtest.Blob(t, "big", 1<<20))
	containerdtest.Push(t, big, good.host+"/big:1")
	containerdtest.Push(t, big, mirror.host+"/big:1")
	good.set(good.ranges)
	registries := plainHTTP(good, mirror.watched)
	registries[good.host] = image.Registry{PlainHTTP: true, Mirrors: []string{mirror.host}}
	images := openMeasured(t, client, registries)
	good.asked("")
	pull := startPulls(containerdtest.Context(t), t, images, image.Want{Ref: good.host + "/big:1"})
	select {
	case err := <-pull.ended:
		expect.OK(t, err)
	case <-time.After(patience):
		t.Fatal("it does not come")
	}
	last := pull.last[good.host+"/big:1"]
	expect.Equal(t, last.Done, last.Total, "bytes at the end")
	if asked := good.asked("GET"); len(asked) != 1 || !strings.Contains(asked[0], "bytes=") {
		t.Errorf("the registry itself was asked for %v, want the rest of one blob", asked)
	}
}

// A registry that cuts after each byte is asked a few times, however often somebody tries again.
func TestARegistryThatCutsIsAskedRarely(t *testing.T) {
	if testing.Short() {
		t.Skip("in make test-all: long waits")
	}
	client := containerdtest.Embedded(t)
	w := watch(t)
	want := image.Want{Ref: w.host + "/big:1"}
	want.Pin = containerdtest.Push(t, containerdtest.Image(t, nil, containerdtest.Blob(t, "big", 300<<10)), want.Ref)
	w.set(func(rw http.ResponseWriter, r *http.Request) bool {
		if r.Method != http.MethodGet || !strings.Contains(r.URL.Path, "/blobs/") {
			return false
		}
		return w.ranges(&cutting{ResponseWriter: rw}, r)
	})
	images := open(t, client, w.plain())
	const span = 6 * time.Second
	ctx, cancel := context.WithTimeout(containerdtest.Context(t), span)
	defer cancel()
	for ctx.Err() == nil {
		expect.Require(t, expect.ErrorOf(pullOne(ctx, images, want, nil)) != nil, "it came")
	}
	// Two blobs: one request each, and then after 1, 2 and 4 s.
	if asked := w.asked("GET /v2/big/blobs/"); len(asked) > 8 {
		t.Errorf("asked %d times in %s", len(asked), span)
	}
}

// cutting is an answer that ends after a byte.
type cutting struct{ http.ResponseWriter }

func (c *cutting) Write(p []byte) (int, error) {
	_, _ = c.ResponseWriter.Write(p[:1])
	c.ResponseWriter.(http.Flusher).Flush()
	panic(http.ErrAbortHandler)
}

// What a registry is asked before a download, and a download of which nothing comes, ends after a time.
func TestARegistryThatNeverAnswersIsLeft(t *testing.T) {
	client := containerdtest.Embedded(t)
	never := func(rw http.ResponseWriter, r *http.Request) bool {
		(&dripping{ResponseWriter: rw, ctx: r.Context()}).Write(make([]byte, 1<<20)) //nolint:errcheck // the client leaves
		return true
	}
	for name, interfere := range map[string]func(http.ResponseWriter, *http.Request) bool{
		"a manifest that drips": func(rw http.ResponseWriter, r *http.Request) bool {
			if r.Method == http.MethodHead {
				rw.WriteHeader(http.StatusMethodNotAllowed)
				return true
			}
			return strings.Contains(r.URL.Path, "/manifests/") && never(rw, r)
		},
		"a blob that is not answered": func(_ http.ResponseWriter, r *http.Request) bool {
			if strings.Contains(r.URL.Path, "/blobs/") {
				<-r.Context().Done()
				return true
			}
			return false
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := watch(t)
			want := image.Want{Ref: w.host + "/app:1", Policy: image.Always}
			containerdtest.Push(t, containerdtest.Busybox(t, nil), want.Ref)
			w.set(interfere)
			images := openMeasured(t, client, w.plain())
			pull := startPulls(containerdtest.Context(t), t, images, want)
			select {
			case err := <-pull.ended:
				fails(t, err, fault.Unreachable, "", "pull")
			case <-time.After(20 * time.Second): // less than the transport's own time
				t.Error("it is still waited for")
			}
		})
	}
}

// slowDisk is a containerd that takes long to open what has come of a blob, and to keep it.
type slowDisk struct{ containerd.Client }

func (d slowDisk) ContentStore() content.Store { return slowStore{d.Client.ContentStore()} }

type slowStore struct{ content.Store }

func (s slowStore) Writer(ctx context.Context, o ...content.WriterOpt) (content.Writer, error) {
	w, err := s.Store.Writer(ctx, o...)
	return slowWriter{w}, wait(ctx, err)
}

type slowWriter struct{ content.Writer }

func (w slowWriter) Commit(ctx context.Context, size int64, expected digest.Digest, o ...content.Opt) error {
	if err := wait(ctx, nil); err != nil {
		return err
	}
	return w.Writer.Commit(ctx, size, expected, o...)
}

// wait is for longer than a registry may be silent.
func wait(ctx context.Context, err error) error {
	select {
	case <-time.After(3 * window):
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// What this device does itself is not taken for the silence of a registry.
func TestASlowDiskIsNotASilentRegistry(t *testing.T) {
	if testing.Short() {
		t.Skip("in make test-all: a slow disk")
	}
	client := containerdtest.Embedded(t)
	w := watch(t)
	want := image.Want{Ref: w.host + "/app:1"}
	containerdtest.Push(t, containerdtest.Busybox(t, nil), want.Ref)
	images := openMeasured(t, slowDisk{client}, w.plain())
	_, err := pullOne(containerdtest.Context(t), images, want, func(p image.Progress) {
		if strings.Contains(p.Slow, "less than the minimum") {
			t.Error(p.Slow)
		}
	})
	expect.OK(t, err)
}
