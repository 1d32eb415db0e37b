package image_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/errdefs"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/klauspost/compress/zstd"
	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/margolite/margolite/runtime/containerd"
	"github.com/margolite/margolite/runtime/fault"
	"github.com/margolite/margolite/runtime/image"
	"github.com/margolite/margolite/test/containerdtest"
	"github.com/margolite/margolite/test/dockerregistry"
	"github.com/margolite/margolite/test/expect"
	"github.com/margolite/margolite/test/ociimage"
)

// watched is a registry that remembers what it was asked for, and may be told to misbehave.
type watched struct {
	host string
	next http.Handler

	mu        sync.Mutex
	log       []string                                      // "GET /v2/... bytes=..."
	interfere func(http.ResponseWriter, *http.Request) bool // answers instead of the registry when it returns true
}

func (w *watched) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	w.mu.Lock()
	w.log = append(w.log, strings.TrimSpace(r.Method+" "+r.URL.Path+" "+r.Header.Get("Range")))
	interfere := w.interfere
	w.mu.Unlock()
	if interfere != nil && interfere(rw, r) {
		return
	}
	w.next.ServeHTTP(rw, r)
}

func (w *watched) set(interfere func(http.ResponseWriter, *http.Request) bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.interfere = interfere
}

// asked returns the requests since the last call that hold the text.
func (w *watched) asked(text string) []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var out []string
	for _, line := range w.log {
		if strings.Contains(line, text) {
			out = append(out, line)
		}
	}
	w.log = nil
	return out
}

func (w *watched) plain() map[string]image.Registry {
	return map[string]image.Registry{w.host: {PlainHTTP: true}}
}

func watch(t testing.TB) *watched {
	w := &watched{next: registry.New(registry.Logger(log.New(io.Discard, "", 0)))}
	server := httptest.NewServer(w)
	t.Cleanup(server.Close)
	w.host = strings.TrimPrefix(server.URL, "http://")
	return w
}

// each runs a test with each kind of containerd, and a registry.
func each(t *testing.T, test func(*testing.T, context.Context, containerd.Client, *watched)) {
	containerdtest.OnEach(t, func(t *testing.T, backend containerdtest.Backend) {
		test(t, containerdtest.Context(t), backend.Start(t), watch(t))
	})
}

// fresh is a containerd of the test's own, and a registry.
func fresh(t *testing.T) (context.Context, containerd.Client, *watched) {
	return containerdtest.Context(t), containerdtest.Embedded(t), watch(t)
}

func pullOne(ctx context.Context, images *image.Images, want image.Want, progress func(image.Progress)) (*image.Image, error) {
	pulled, err := images.Pull(ctx, []image.Want{want}, progress)
	if err != nil {
		return nil, err
	}
	return pulled[0], nil
}

// pull pulls an image that has to come.
func pull(t testing.TB, images *image.Images, want image.Want) *image.Image {
	t.Helper()
	return expect.Value(pullOne(containerdtest.Context(t), images, want, nil))(t)
}

// snapshotsOf are those that images are unpacked to.
func snapshotsOf(t testing.TB, client containerd.Client, images *image.Images) snapshots.Snapshotter {
	t.Helper()
	name := expect.Value(images.Snapshotter(containerdtest.Context(t)))(t)
	return client.SnapshotService(name)
}

func open(t testing.TB, client containerd.Client, registries map[string]image.Registry) *image.Images {
	return openWith(t, image.Options{Client: client, Registries: registries})
}

func openWith(t testing.TB, o image.Options) *image.Images {
	t.Helper()
	o.Logger = containerdtest.Logger(t)
	return image.New(o)
}

func kind(err error) fault.Code {
	var e *fault.Error
	if errors.As(err, &e) {
		return e.Code
	}
	return ""
}

// fails expects an error of a kind, with a part in its text; "": none.
func fails(t testing.TB, err error, as fault.Code, part, what string) {
	t.Helper()
	if kind(err) != as || (err == nil) != (as == "") || err != nil && !strings.Contains(err.Error(), part) {
		t.Errorf("%s: got error %v of kind %q, want one of kind %q with %q", what, err, kind(err), as, part)
	}
}

func TestPullBringsAnImageOnce(t *testing.T) {
	each(t, func(t *testing.T, ctx context.Context, client containerd.Client, w *watched) {
		want := containerdtest.Push(t, containerdtest.Busybox(t, func(c *v1.ImageConfig) {
			c.Entrypoint, c.Cmd, c.User, c.WorkingDir = []string{"/bin/sh"}, []string{"-c", "true"}, "nobody", "/tmp"
			c.StopSignal, c.Volumes = "SIGINT", map[string]struct{}{"/data": {}}
		}), w.host+"/app:1")
		images := open(t, client, w.plain())

		var last image.Progress
		reports := 0
		var unpacks []int
		got, err := pullOne(ctx, images, image.Want{Ref: w.host + "/app:1"}, func(p image.Progress) {
			if p.Unpacks != 0 {
				unpacks = append(unpacks, p.Unpacks)
			}
			expect.True(t, p.Done <= p.Total && p.Done >= last.Done, "progress goes from %v to %v", last, p)
			last = p
			reports++
		})
		expect.Check(t, err)
		expect.Equal(t, got.Digest, want, "digest")
		expect.Equal(t, got.Name, w.host+"/app@"+want.String(), "name")
		if c := got.Config.Config; c.User != "nobody" || c.WorkingDir != "/tmp" || c.StopSignal != "SIGINT" || len(c.Volumes) != 1 || len(c.Entrypoint) != 1 {
			t.Errorf("configuration is %+v", c)
		}
		if last.Done != last.Total || last.Done == 0 || reports < 3 || last.Object != w.host+"/app:1" {
			t.Errorf("%d reports, the last %+v", reports, last)
		}
		expect.True(t, len(unpacks) == 1 && unpacks[0] >= 1, "it is told that %v layers are to be unpacked, want one number", unpacks)
		expect.OK(t, expect.ErrorOf(snapshotsOf(t, client, images).Stat(ctx, got.ChainID.String())))

		w.asked("")
		expect.Equal(t, pull(t, images, image.Want{Ref: w.host + "/app:1", Pin: want}).ChainID, got.ChainID, "second pull")
		expect.Equal(t, w.asked(""), nil, "requests of the second pull")
		expect.Equal(t, expect.Value(images.Get(ctx, w.host+"/app:1", want, ""))(t).Digest, want, "get")
		fails(t, expect.ErrorOf(images.Get(ctx, w.host+"/app:1", digest.FromString(""), "")), fault.NotFound, "", "get of what is not there")
		collect(t, client)
		expect.OK(t, expect.ErrorOf(images.Get(ctx, w.host+"/app:1", want, ""))) // after garbage collection
		expect.Equal(t, len(leasesOf(t, client)), 0, "leases that are left")
	})
}

func TestPullGoesOnWhereItWasCut(t *testing.T) {
	each(t, func(t *testing.T, ctx context.Context, client containerd.Client, w *watched) {
		want := pushBig(t, w)
		w.set(w.cut)
		_, err := pullOne(ctx, open(t, client, w.plain()), image.Want{Ref: w.host + "/big:1", Pin: want}, nil)
		fails(t, err, fault.Unreachable, "", "cut pull")
		collect(t, client) // leaves what has come
		w.asked("")
		w.set(w.ranges)
		first := int64(-1)
		_, err = pullOne(ctx, open(t, client, w.plain()), image.Want{Ref: w.host + "/big:1", Pin: want}, func(p image.Progress) {
			if first < 0 && p.Total > bigSize && p.Done > bigSize/2 {
				first = p.Done
			}
			expect.True(t, p.Done <= p.Total, "progress %v", p)
		})
		expect.Check(t, err)
		asked := w.asked("GET")
		var offset int64
		expect.Require(t, len(asked) == 1, "second pull asked for %v, want the rest of one blob", asked)
		if _, err := fmt.Sscanf(asked[0][strings.Index(asked[0], " bytes="):], " bytes=%d-", &offset); err != nil || offset < cutAt/2 {
			t.Errorf("second pull asked for %v, want it to go on from about %d", asked, cutAt)
		}
		expect.True(t, first >= offset, "first report is %d, want what was there: %d", first, offset)
	})
}

func TestPullStartsAgainWhereARegistryCannotGoOn(t *testing.T) {
	ctx, client, w := fresh(t) // which refuses open ranges
	want := pushBig(t, w)
	w.set(w.cut)
	fails(t, expect.ErrorOf(pullOne(ctx, open(t, client, w.plain()), image.Want{Ref: w.host + "/big:1", Pin: want}, nil)), fault.Unreachable, "", "cut pull")
	w.set(nil)
	_, err := pullOne(ctx, open(t, client, w.plain()), image.Want{Ref: w.host + "/big:1", Pin: want}, func(p image.Progress) {
		expect.True(t, p.Done <= p.Total && p.Done >= 0, "progress %v", p)
	})
	expect.OK(t, err)
}

func TestLayersAreUnpackedWhateverTheirCompression(t *testing.T) {
	_, client, w := fresh(t)
	plain := containerdtest.Blob(t, "file", 1<<20)
	var packed bytes.Buffer
	z, err := zstd.NewWriter(&packed)
	expect.Check(t, err)
	_, err = z.Write(plain)
	expect.Check(t, errors.Join(err, z.Close()))
	for name, layer := range map[string]ociimage.Layer{
		"zstd":                  {Archive: plain, Packed: packed.Bytes(), MediaType: v1.MediaTypeImageLayerZstd},
		"zstd that claims gzip": {Archive: plain, Packed: packed.Bytes(), MediaType: v1.MediaTypeImageLayerGzip},
		"none":                  {Archive: plain, Packed: plain, MediaType: v1.MediaTypeImageLayer},
		"none that claims gzip": {Archive: plain, Packed: plain, MediaType: v1.MediaTypeImageLayerGzip},
	} {
		t.Run(name, func(t *testing.T) {
			ref := w.push(t, strings.ReplaceAll(name, " ", "-")+":1", expect.Value(ociimage.Build(ociimage.Image{Layers: []ociimage.Layer{layer}}))(t))
			pull(t, open(t, client, w.plain()), image.Want{Ref: ref})
		})
	}
}

func TestLayersThatAreNotWhatTheImageSaysAreRefused(t *testing.T) {
	each(t, func(t *testing.T, ctx context.Context, client containerd.Client, w *watched) {
		layer := ociimage.Layer{Archive: []byte("another"), Packed: containerdtest.Blob(t, "file", 100), MediaType: v1.MediaTypeImageLayer}
		ref := w.push(t, "app:1", expect.Value(ociimage.Build(ociimage.Image{Layers: []ociimage.Layer{layer}}))(t))
		fails(t, expect.ErrorOf(pullOne(ctx, open(t, client, w.plain()), image.Want{Ref: ref}, nil)), fault.InvalidPackage, "", "pull")
	})
}

const (
	bigSize = 6 << 20
	cutAt   = 4 << 20
)

func pushBig(t *testing.T, w *watched) digest.Digest {
	return containerdtest.Push(t, containerdtest.Image(t, nil, containerdtest.Blob(t, "big", bigSize)), w.host+"/big:1")
}

// cut breaks off big blobs, and then does not answer any more.
func (w *watched) cut(rw http.ResponseWriter, r *http.Request) bool {
	if r.Method != http.MethodGet || !strings.Contains(r.URL.Path, "/blobs/") {
		return false
	}
	if r.Header.Get("Range") != "" {
		rw.WriteHeader(http.StatusServiceUnavailable)
		return true
	}
	body := w.body(r)
	if len(body) < cutAt {
		return false
	}
	rw.Header().Set("Content-Length", fmt.Sprint(len(body)))
	_, _ = rw.Write(body[:cutAt])
	panic(http.ErrAbortHandler)
}

// ranges serves what is asked for of a blob.
func (w *watched) ranges(rw http.ResponseWriter, r *http.Request) bool {
	if r.Method != http.MethodGet || !strings.Contains(r.URL.Path, "/blobs/") {
		return false
	}
	whole := r.Clone(r.Context())
	whole.Header.Del("Range")
	http.ServeContent(rw, r, "", time.Time{}, bytes.NewReader(w.body(whole)))
	return true
}

// body is what the registry itself answers.
func (w *watched) body(r *http.Request) []byte {
	answer := httptest.NewRecorder()
	w.next.ServeHTTP(answer, r)
	return answer.Body.Bytes()
}

// damage answers with other bytes of the same size when the path holds the text.
func (w *watched) damage(path string) func(http.ResponseWriter, *http.Request) bool {
	return func(rw http.ResponseWriter, r *http.Request) bool {
		if r.Method != http.MethodGet || !strings.Contains(r.URL.Path, path) {
			return false
		}
		rw.Header().Set("Content-Type", v1.MediaTypeImageManifest)
		_, _ = rw.Write(bytes.Repeat([]byte(" "), len(w.body(r))))
		return true
	}
}

func TestPullSaysWhyItFails(t *testing.T) {
	ctx, client, w := fresh(t)
	w.push(t, "foreign:1", index(t, build(t, "linux/s390x", "foreign")))
	pushComponent(t, w.host+"/component:1.0.0", nil)
	closed := unusedAddress(t)
	other := digest.FromString("other")

	for name, test := range map[string]struct {
		ref       string
		pin       digest.Digest
		interfere func(http.ResponseWriter, *http.Request) bool
		want      fault.Code
	}{
		"no such tag":                              {ref: w.host + "/app:2", want: fault.NotFound},
		"no such repository":                       {ref: w.host + "/nothing:1", want: fault.NotFound},
		"no such digest":                           {ref: w.host + "/app:1", pin: other, want: fault.NotFound},
		"nobody listens":                           {ref: closed + "/app:1", want: fault.Unreachable},
		"no such host":                             {ref: "registry.invalid/app:1", want: fault.Unreachable},
		"the reference makes no sense":             {ref: "NOT A REFERENCE", want: fault.InvalidPackage},
		"only for another machine":                 {ref: w.host + "/foreign:1", want: fault.Unsupported},
		"not an image":                             {ref: w.host + "/component:1.0.0", want: fault.InvalidPackage},
		"the registry is broken":                   {ref: w.host + "/app:1", want: fault.Unreachable, interfere: answer(500)},
		"a captive portal":                         {ref: w.host + "/app:1", want: fault.Unreachable, interfere: portal},
		"nobody may":                               {ref: w.host + "/app:1", want: fault.Denied, interfere: answer(403)},
		"somebody may":                             {ref: w.host + "/app:1", want: fault.Denied, interfere: answer(401)},
		"blobs hold something else":                {ref: w.host + "/app:1", want: fault.Garbled, interfere: w.damage("/blobs/")},
		"the manifest is not what the digest says": {ref: w.host + "/app:1", want: fault.Garbled, interfere: w.damage("/manifests/")},
		"a redirect leads to plain HTTP elsewhere": {ref: w.host + "/app:1", want: fault.Refused, interfere: func(rw http.ResponseWriter, r *http.Request) bool {
			if !strings.Contains(r.URL.Path, "/blobs/") {
				return false
			}
			http.Redirect(rw, r, "http://"+closed+r.URL.Path+"?secret=1", http.StatusTemporaryRedirect)
			return true
		}},
		"a token service is reached by plain HTTP": {ref: w.host + "/app:1", want: fault.Refused, interfere: func(rw http.ResponseWriter, r *http.Request) bool {
			rw.Header().Set("WWW-Authenticate", `Bearer realm="http://`+closed+`/token",service="x"`)
			rw.WriteHeader(http.StatusUnauthorized)
			return true
		}},
	} {
		t.Run(name, func(t *testing.T) {
			pushed := containerdtest.Push(t, containerdtest.Busybox(t, nil), w.host+"/app:1") // one that nobody has
			w.set(test.interfere)
			defer w.set(nil)
			images := open(t, client, w.plain())
			_, err := pullOne(ctx, images, image.Want{Ref: test.ref, Pin: test.pin}, nil)
			fails(t, err, test.want, "", test.ref)
			expect.True(t, err == nil || !strings.Contains(err.Error(), "secret"), "tells a secret: %v", err)
			if test.interfere != nil { // what was wrong is forgotten
				w.set(nil)
				pull(t, images, image.Want{Ref: test.ref, Pin: pushed})
			}
		})
	}
}

func TestPlainHTTPIsSpokenOnlyWhereItIsConfigured(t *testing.T) {
	ctx, client, w := fresh(t)
	containerdtest.Push(t, containerdtest.Busybox(t, nil), w.host+"/app:1")
	w.asked("")
	_, err := pullOne(ctx, open(t, client, nil), image.Want{Ref: w.host + "/app:1"}, nil)
	fails(t, err, fault.Refused, "plainHTTP: true", "pull")
	expect.Equal(t, w.asked(""), nil, "requests")
}

func TestPKG12MirrorsAreAskedFirst(t *testing.T) {
	client := containerdtest.Embedded(t)
	ctx := containerdtest.Context(t)
	origin, mirror := watch(t), watch(t)
	app := containerdtest.Busybox(t, nil)
	want := containerdtest.Push(t, app, origin.host+"/app:1")
	containerdtest.Push(t, app, mirror.host+"/app:1")
	both := map[string]image.Registry{
		origin.host: {PlainHTTP: true, Mirrors: []string{unusedAddress(t), mirror.host}},
		mirror.host: {PlainHTTP: true},
	}
	origin.asked("")
	images := open(t, client, both)
	got := pull(t, images, image.Want{Ref: origin.host + "/app:1"})
	expect.Equal(t, got.Name, origin.host+"/app@"+want.String(), "name")
	expect.Equal(t, origin.asked(""), nil, "requests to the registry itself")

	// What the mirror does not have or damages comes from the registry itself.
	second := containerdtest.Busybox(t, nil)
	containerdtest.Push(t, second, origin.host+"/second:1")
	pull(t, images, image.Want{Ref: origin.host + "/second:1"})
	third := containerdtest.Busybox(t, nil)
	containerdtest.Push(t, third, origin.host+"/third:1")
	containerdtest.Push(t, third, mirror.host+"/third:1")
	mirror.set(mirror.damage("/blobs/"))
	pull(t, images, image.Want{Ref: origin.host + "/third:1"})
	// That a mirror does not have it is not the last word when the registry itself is silent.
	gone := open(t, client, map[string]image.Registry{
		"gone.invalid": {PlainHTTP: true, Mirrors: []string{mirror.host}}, mirror.host: {PlainHTTP: true},
	})
	fails(t, expect.ErrorOf(gone.Look(ctx, image.Want{Ref: "gone.invalid/fourth:1"}, nil)), fault.Unreachable, "", "silent registry")
}

func TestPruneLeavesWhatIsKept(t *testing.T) {
	each(t, func(t *testing.T, ctx context.Context, client containerd.Client, w *watched) {
		images := open(t, client, w.plain())
		var pulled []*image.Image
		for _, tag := range []string{"keep:1", "drop:1"} {
			containerdtest.Push(t, containerdtest.Busybox(t, nil), w.host+"/"+tag)
			pulled = append(pulled, pull(t, images, image.Want{Ref: w.host + "/" + tag}))
		}
		foreign := foreignRecord(t, client, pulled[0])
		expect.Equal(t, expect.Value(images.Prune(ctx, map[string]bool{pulled[0].Name: true}, nil))(t), []string{pulled[1].Name}, "removed")
		expect.Equal(t, expect.Value(images.List(ctx))(t), []string{pulled[0].Name}, "left")
		expect.Error(t, expect.ErrorOf(client.ContentStore().Info(ctx, pulled[1].Digest)), errdefs.ErrNotFound, "content of what was removed")
		expect.OK(t, expect.ErrorOf(images.Get(ctx, w.host+"/keep:1", pulled[0].Digest, "")))
		expect.OK(t, expect.ErrorOf(client.ImageService().Get(ctx, foreign)))
	})
}

// Killed between the removal of an image and the collection of its content, a
// process leaves content that nobody refers to, and the next one frees it.
func TestPruneGoesOnAfterAKill(t *testing.T) {
	each(t, func(t *testing.T, ctx context.Context, client containerd.Client, w *watched) {
		images := open(t, client, w.plain())
		containerdtest.Push(t, containerdtest.Busybox(t, nil), w.host+"/drop:1")
		got := pull(t, images, image.Want{Ref: w.host + "/drop:1"})
		expect.ErrorWith(t, expect.ErrorOf(open(t, dyingAtCollection{client}, w.plain()).Prune(ctx, nil, nil)), "killed", "prune")
		expect.Equal(t, len(expect.Value(open(t, client, w.plain()).Prune(ctx, nil, nil))(t)), 0, "images that the next one removes")
		expect.Error(t, expect.ErrorOf(client.ContentStore().Info(ctx, got.Digest)), errdefs.ErrNotFound, "content of what was removed")
		expect.Equal(t, len(leasesOf(t, client)), 0, "leases that are left")
	})
}

// dyingAtCollection is as dead when a collection is asked for.
type dyingAtCollection struct{ containerd.Client }

func (d dyingAtCollection) LeasesService() leases.Manager {
	return deadLeases{d.Client.LeasesService()}
}

type deadLeases struct{ leases.Manager }

func (deadLeases) Delete(context.Context, leases.Lease, ...leases.DeleteOpt) error {
	return errors.New("killed")
}

func TestPullFromDockersRegistry(t *testing.T) {
	host := dockerregistry.Start(t, "")
	each(t, func(t *testing.T, _ context.Context, client containerd.Client, _ *watched) {
		want := containerdtest.Push(t, containerdtest.Busybox(t, nil), host+"/group/app:1")
		images := open(t, client, map[string]image.Registry{host: {PlainHTTP: true}})
		expect.Equal(t, pull(t, images, image.Want{Ref: host + "/group/app:1"}).Digest, want, "digest")
	})
}

// collect runs containerd's garbage collection.
func collect(t *testing.T, client containerd.Client) {
	t.Helper()
	ctx := containerdtest.Context(t)
	lease := expect.Value(client.LeasesService().Create(ctx, leases.WithRandomID()))(t)
	expect.Check(t, client.LeasesService().Delete(ctx, lease, leases.SynchronousDelete))
}

func answer(code int) func(http.ResponseWriter, *http.Request) bool { return answerAt("", code) }

// answerAt answers where the path holds the text.
func answerAt(path string, code int) func(http.ResponseWriter, *http.Request) bool {
	return func(rw http.ResponseWriter, r *http.Request) bool {
		if !strings.Contains(r.URL.Path, path) {
			return false
		}
		rw.WriteHeader(code)
		return true
	}
}

// portal answers in place of a registry, as networks do that want somebody to log in.
func portal(rw http.ResponseWriter, _ *http.Request) bool {
	rw.Header().Set("Content-Type", "Text/HTML; charset=utf-8")
	_, _ = io.WriteString(rw, "<!doctype html><title>Log in to use this network</title>")
	return true
}

// unusedAddress is a loopback address at which nobody listens.
func unusedAddress(t *testing.T) string {
	l := expect.Value(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer l.Close()
	return l.Addr().String()
}

// foreignRecord makes an image record that is not of this package.
func foreignRecord(t *testing.T, client containerd.Client, like *image.Image) string {
	record := images.Image{Name: "somebody.else/app:1", Target: v1.Descriptor{
		MediaType: v1.MediaTypeImageManifest, Digest: like.Digest, Size: 1,
	}}
	expect.OK(t, expect.ErrorOf(client.ImageService().Create(containerdtest.Context(t), record)))
	return record.Name
}

func leasesOf(t testing.TB, client containerd.Client) []leases.Lease {
	t.Helper()
	return expect.Value(client.LeasesService().List(containerdtest.Context(t)))(t)
}
