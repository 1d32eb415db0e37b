package image_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/opencontainers/go-digest"

	"github.com/margolite/margolite/runtime/containerd"
	"github.com/margolite/margolite/runtime/embedded"
	"github.com/margolite/margolite/runtime/fault"
	"github.com/margolite/margolite/runtime/image"
	"github.com/margolite/margolite/test/containerdtest"
	"github.com/margolite/margolite/test/expect"
	"github.com/margolite/margolite/test/ociimage"
)

// startAt starts an embedded containerd in a directory, until stop is called or the test ends.
func startAt(t *testing.T, dir string) (client containerd.Client, stop func()) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	server := expect.Value(embedded.Start(t.Context(), embedded.Options{
		Root: filepath.Join(dir, "root"), State: filepath.Join(dir, "state"), Logger: containerdtest.Logger(t),
		Check: func(string) error { return nil }, Namespace: containerdtest.Namespace,
	}))(t)
	client = expect.Value(server.Client(t.Context(), containerdtest.Namespace))(t)
	stop = sync.OnceFunc(func() {
		expect.OK(t, errors.Join(client.Close(), server.Close()))
	})
	t.Cleanup(stop)
	return client, stop
}

func blobFile(dir string, d digest.Digest) string {
	return filepath.Join(dir, "root/io.containerd.content.v1.content/blobs", d.Algorithm().String(), d.Encoded())
}

func TestWhatIsLostOrDamagedIsFetchedAgain(t *testing.T) {
	dir := containerdtest.Dir(t)
	client, _ := startAt(t, dir)
	ctx := containerdtest.Context(t)
	w := watch(t)
	app := build(t, "", "app")
	ref := w.push(t, "app:1", app)
	images := open(t, client, w.plain())
	var config, layer digest.Digest
	for d, blob := range app.Blobs {
		if bytes.HasPrefix(blob, []byte("\x1f\x8b")) {
			layer = d
		} else {
			config = d
		}
	}
	remove := func(d digest.Digest) error { return os.Remove(blobFile(dir, d)) }
	empty := func(d digest.Digest) error { return os.Truncate(blobFile(dir, d), 0) }
	damage := func(d digest.Digest) error {
		data, err := os.ReadFile(blobFile(dir, d))
		if err != nil {
			return err
		}
		data[len(data)-1] ^= 1
		if err := os.Chmod(blobFile(dir, d), 0o600); err != nil {
			return err
		}
		return os.WriteFile(blobFile(dir, d), data, 0o600)
	}
	for name, harm := range map[string]func(digest.Digest) error{"lost": remove, "empty": empty, "damaged": damage} {
		for part, d := range map[string]digest.Digest{"manifest": app.Digest, "configuration": config, "layer": layer} {
			t.Run(part+" "+name, func(t *testing.T) {
				got := pull(t, images, image.Want{Ref: ref, Pin: app.Digest})
				expect.Check(t, harm(d))
				if d == layer { // it is needed only when what was unpacked is gone as well
					expect.Check(t, snapshotsOf(t, client, images).Remove(ctx, got.ChainID.String()))
				}
				fails(t, expect.ErrorOf(images.Get(ctx, ref, app.Digest, "")), fault.NotFound, "", "get")
				w.asked("")
				pull(t, images, image.Want{Ref: ref, Pin: app.Digest})
				if asked := w.asked("GET"); len(asked) != 1 || !strings.Contains(asked[0], d.String()) {
					t.Errorf("asked for %v, want %s", asked, d)
				}
				expect.OK(t, expect.ErrorOf(images.Get(ctx, ref, app.Digest, "")))
			})
		}
	}
}

func TestWhatWasUnpackedBeforeAKillIsNotUnpackedAgain(t *testing.T) {
	each(t, func(t *testing.T, ctx context.Context, client containerd.Client, w *watched) {
		app := build(t, "", "app")
		want := image.Want{Ref: w.push(t, "app:1", app), Pin: app.Digest}
		expect.ErrorWith(t, expect.ErrorOf(pullOne(ctx, open(t, dyingAtRecord{client}, w.plain()), want, nil)), "killed", "pull")
		collect(t, client)
		unpacked := time.Now()
		images := open(t, client, w.plain())
		w.asked("")
		got := pull(t, images, want)
		expect.Equal(t, w.asked(""), nil, "requests")
		snapshot := expect.Value(snapshotsOf(t, client, images).Stat(ctx, got.ChainID.String()))(t)
		expect.Equal(t, snapshot.Created.After(unpacked), false, "unpacked after the first attempt")
		expect.Equal(t, len(leasesOf(t, client)), 0, "leases that are left")
	})
}

// dyingAtRecord is as dead when an image is unpacked, and has no record yet.
type dyingAtRecord struct{ containerd.Client }

func (d dyingAtRecord) ContentStore() content.Store { return deadStore{d.Client.ContentStore()} }

type deadStore struct{ content.Store }

func (s deadStore) Update(ctx context.Context, info content.Info, fields ...string) (content.Info, error) {
	if strings.Contains(strings.Join(fields, " "), "gc.ref.snapshot") {
		return content.Info{}, errors.New("killed")
	}
	return s.Store.Update(ctx, info, fields...)
}

func TestPruneLeavesDownloadsThatSomebodyWaitsFor(t *testing.T) {
	each(t, func(t *testing.T, ctx context.Context, client containerd.Client, w *watched) {
		want := pushBig(t, w)
		w.set(w.cut)
		images := open(t, client, w.plain())
		fails(t, expect.ErrorOf(pullOne(ctx, images, image.Want{Ref: w.host + "/big:1", Pin: want, For: "waiting"}, nil)), fault.Unreachable, "", "cut pull")
		begun := func() (bytes int64) {
			for _, s := range expect.Value(client.ContentStore().ListStatuses(ctx))(t) {
				bytes += s.Offset
			}
			return bytes
		}
		expect.Equal(t, expect.Value(images.Prune(ctx, nil, map[string]bool{"waiting": true}))(t), nil, "removed")
		collect(t, client)
		if begun() < cutAt/2 {
			t.Errorf("%d bytes are left of what somebody waits for", begun())
		}
		expect.Equal(t, len(expect.Value(images.Prune(ctx, nil, map[string]bool{"another": true}))(t)), 1, "removed")
		expect.Equal(t, begun(), 0, "bytes that are left of what nobody waits for")
	})
}

// forgetful is a containerd whose answers to commits of snapshots are lost.
type forgetful struct{ containerd.Client }

func (f forgetful) SnapshotService(name string) snapshots.Snapshotter {
	return unanswered{f.Client.SnapshotService(name)}
}

type unanswered struct{ snapshots.Snapshotter }

func (u unanswered) Commit(ctx context.Context, name, key string, o ...snapshots.Opt) error {
	if err := u.Snapshotter.Commit(ctx, name, key, o...); err != nil {
		return err
	}
	return errors.New("the answer is lost")
}

// A layer that was committed stays whole, also when nobody was told.
func TestALayerWhoseCommitWasNotHeardOfIsWhole(t *testing.T) {
	client, _ := startAt(t, containerdtest.Dir(t))
	ctx := containerdtest.Context(t)
	w := watch(t)
	plain := expect.Value(ociimage.Tar([]ociimage.Entry{{Name: "valve", Data: []byte("open")}}))(t)
	want := image.Want{Ref: w.host + "/app:1"}
	containerdtest.Push(t, containerdtest.Image(t, nil, plain), want.Ref)
	expect.ErrorWith(t, expect.ErrorOf(pullOne(ctx, open(t, forgetful{client}, w.plain()), want, nil)), "the answer is lost", "pull")
	images := open(t, client, w.plain())
	got := pull(t, images, want)
	mounts := expect.Value(snapshotsOf(t, client, images).Prepare(ctx, "above", got.ChainID.String()))(t)
	layer := ""
	for _, o := range mounts[0].Options {
		if dir, ok := strings.CutPrefix(o, "lowerdir="); ok {
			layer = dir
		}
	}
	expect.Equal(t, string(expect.Value(os.ReadFile(filepath.Join(layer, "valve")))(t)), "open", "file of the layer")
}
