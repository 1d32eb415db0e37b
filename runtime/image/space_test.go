package image_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/core/introspection"
	"golang.org/x/sys/unix"

	"github.com/margolite/margolite/runtime/containerd"
	"github.com/margolite/margolite/runtime/fault"
	"github.com/margolite/margolite/runtime/image"
	"github.com/margolite/margolite/test/containerdtest"
	"github.com/margolite/margolite/test/expect"
	"github.com/margolite/margolite/test/ociimage"
)

// disk is a small file system with an embedded containerd on it.
type disk struct {
	t      *testing.T
	dir    string
	client containerd.Client
	w      *watched
}

func newDisk(t *testing.T, options string) *disk {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	dir := containerdtest.Dir(t)
	mountSmall(t, dir, options)
	client, _ := startAt(t, dir)
	return &disk{t, dir, client, watch(t)}
}

func mountSmall(t *testing.T, dir, options string) {
	t.Helper()
	expect.Check(t, unix.Mount("tmpfs", dir, "tmpfs", 0, options))
	t.Cleanup(func() { expect.OK(t, unix.Unmount(dir, unix.MNT_DETACH)) })
}

// images open the disk with a reserve.
func (d *disk) images(o image.Options) *image.Images {
	d.t.Helper()
	o.Client, o.Registries = d.client, d.w.plain()
	return openWith(d.t, o)
}

// push puts an image of one layer of so many bytes, that cannot be compressed, into the registry.
func (d *disk) push(name string, bytes int) image.Want {
	ref := d.w.host + "/" + name + ":1"
	containerdtest.Push(d.t, containerdtest.Image(d.t, nil, containerdtest.Blob(d.t, name, bytes)), ref)
	return image.Want{Ref: ref}
}

func (d *disk) statfs() (fs unix.Statfs_t) {
	d.t.Helper()
	expect.Check(d.t, unix.Statfs(d.dir, &fs))
	return fs
}

func (d *disk) free() int64 {
	fs := d.statfs()
	return int64(fs.Bfree) * int64(fs.Bsize)
}

// leave fills the disk until so many bytes are free, and returns what empties it.
func (d *disk) leave(bytes int64) (empty func()) {
	d.t.Helper()
	ballast := filepath.Join(d.dir, "ballast")
	f := expect.Value(os.Create(ballast))(d.t)
	defer f.Close()
	var err error = unix.ENOSPC
	for errors.Is(err, unix.ENOSPC) { // containerd writes meanwhile
		err = unix.Fallocate(int(f.Fd()), 0, 0, d.free()-bytes)
	}
	expect.Check(d.t, err)
	return func() {
		d.t.Helper()
		expect.Check(d.t, os.Remove(ballast))
	}
}

// An image of 4 MiB needs 12 by the estimate: the download, and twice that unpacked. The reserve is not for it.
func TestTheReserveStaysFree(t *testing.T) {
	const layer, need, reserve = 4 << 20, 12 << 20, 6 << 20
	for name, c := range map[string]struct {
		free int64
		says string // of why it does not fit
	}{
		"fits":         {64 << 20, ""},
		"just fits":    {need + reserve + 512<<10, ""},
		"does not fit": {need + reserve - 512<<10, "need about 12 MiB in "},
		"nothing left": {0, "need more than 0 KiB in "},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDisk(t, "size=128m")
			ctx := containerdtest.Context(t)
			images := d.images(image.Options{Reserve: reserve})
			want := d.push("app", layer)
			empty := d.leave(c.free)
			d.w.asked("")
			_, err := pullOne(ctx, images, want, nil)
			if c.says == "" {
				expect.Check(t, err)
				if d.free() < reserve {
					t.Errorf("%d bytes are free, %d are reserved", d.free(), reserve)
				}
				return
			}
			var space *image.NoSpaceError
			if !errors.As(err, &space) || kind(err) != fault.NoSpace {
				t.Fatal(err)
			}
			if !strings.Contains(err.Error(), want.Ref) || !strings.Contains(err.Error(), c.says) || space.Free > c.free {
				t.Errorf("%v: %+v", err, space)
			}
			expect.Equal(t, space.Persists(), true, "it persists")
			empty()
			expect.Equal(t, space.Persists(), false, "it persists with space")
			pull(t, images, want)
		})
	}
}

// Images that would fit one by one are refused together, before anything of their layers comes.
func TestImagesThatDoNotFitTogetherAreRefused(t *testing.T) {
	d := newDisk(t, "size=48m")
	ctx := containerdtest.Context(t)
	images := d.images(image.Options{})
	wants := []image.Want{d.push("a", 9<<20), d.push("b", 9<<20)}
	d.w.asked("")
	_, err := images.Pull(ctx, wants, nil)
	var space *image.NoSpaceError
	if kind(err) != fault.NoSpace || !errors.As(err, &space) || space.Needed < 50<<20 || space.Free > 48<<20 || !strings.Contains(err.Error(), wants[1].Ref) {
		t.Errorf("%v of kind %q, %+v", err, kind(err), space)
	}
	if asked := d.w.asked("/blobs/"); len(asked) > 2 { // the configurations
		t.Errorf("fetched %v", asked)
	}
	pull(t, images, wants[0])
}

// To try again what does not fit costs neither a download nor a write.
func TestTryingAgainWhatDoesNotFitCostsNothing(t *testing.T) {
	d := newDisk(t, "size=64m")
	ctx := containerdtest.Context(t)
	images := d.images(image.Options{})
	want := d.push("big", 30<<20)
	fails(t, expect.ErrorOf(pullOne(ctx, images, want, nil)), fault.NoSpace, "", "first attempt")
	d.w.asked("")
	// containerd collects now and then what the first attempt left behind; that ends, and writes of an attempt would not.
	const collections = 5
	for n := range collections {
		before := files(t, d.dir)
		for range 3 {
			fails(t, expect.ErrorOf(pullOne(ctx, images, want, nil)), fault.NoSpace, want.Ref, "another attempt")
		}
		after := files(t, d.dir)
		if after == before {
			break
		}
		expect.True(t, n != collections-1, "files changed:\n%s\n%s", before, after)
	}
	for _, line := range d.w.asked("") {
		expect.Equal(t, strings.HasPrefix(line, "HEAD "), true, "%s is a HEAD", line)
	}
}

// files are the files of a directory with their sizes and times.
func files(t *testing.T, dir string) string {
	t.Helper()
	var all strings.Builder
	err := filepath.Walk(dir, func(path string, info os.FileInfo, err error) error {
		if err == nil && info.Mode().IsRegular() {
			fmt.Fprintln(&all, path, info.Size(), info.ModTime().UnixNano())
		}
		return err
	})
	expect.Check(t, err)
	return all.String()
}

// However much a layer becomes, and however it is written down, the reserve is never used, and what it filled is free again.
// Where the device is full before anybody has looked, what has filled it goes all the same. A layer that writes a file again
// and again is given up, though it never takes much space.
func TestABombLeavesTheReserve(t *testing.T) {
	const size = 300 << 20
	tar := func(entries ...ociimage.Entry) []byte {
		t.Helper()
		return expect.Value(ociimage.Tar(entries))(t)
	}
	zeros := tar(ociimage.Entry{Name: "zeros", Data: make([]byte, size)})
	var many, again []ociimage.Entry
	for n := range size / (1 << 20) {
		many = append(many, ociimage.Entry{Name: fmt.Sprint("zeros", n), Data: make([]byte, 1<<20)})
		again = append(again, ociimage.Entry{Name: "zeros", Data: make([]byte, 1<<20)})
	}
	files := tar(many...)
	for name, c := range map[string]struct {
		disk    string
		reserve int64
		layers  [][]byte // of an image each, so that they are unpacked side by side
	}{
		"a big file":              {"size=192m", 32 << 20, [][]byte{zeros}},
		"files":                   {"size=192m", 32 << 20, [][]byte{files}},
		"a file with holes":       {"size=192m", 32 << 20, [][]byte{sparse(t, size)}},
		"two layers":              {"size=192m", 32 << 20, [][]byte{files, zeros}},
		"a reserve of some size":  {"size=128m", 40 << 20, [][]byte{zeros}},
		"when the device is full": {"size=128m", 1 << 20, [][]byte{zeros}},
		"a file without end":      {"size=32m", 0, [][]byte{tar(again...)}},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDisk(t, c.disk)
			ctx := containerdtest.Context(t)
			images := d.images(image.Options{Reserve: c.reserve})
			var wants []image.Want
			for n, layer := range c.layers {
				wants = append(wants, image.Want{Ref: fmt.Sprintf("%s/bomb%d:1", d.w.host, n)})
				containerdtest.Push(t, containerdtest.Image(t, nil, layer), wants[n].Ref)
			}
			before := d.free()
			least, over, looked := before, make(chan struct{}), make(chan struct{})
			go func() {
				defer close(looked)
				for {
					select {
					case <-over:
						return
					case <-time.After(100 * time.Microsecond):
						least = min(least, d.free())
					}
				}
			}()
			_, err := images.Pull(ctx, wants, nil)
			close(over)
			<-looked
			if kind(err) != fault.NoSpace || !strings.Contains(err.Error(), d.w.host+"/bomb") || !errors.As(err, new(*image.NoSpaceError)) {
				t.Errorf("%v of kind %q", err, kind(err))
			}
			expect.True(t, least >= c.reserve-1<<20, "%d bytes were free at the least, %d are reserved", least, c.reserve)
			if after := d.free(); after < before-3<<20 {
				t.Errorf("%d bytes were free, now %d are", before, after)
			}
			expect.Equal(t, len(leasesOf(t, d.client)), 0, "leases that are left")
			pull(t, images, d.push("small", 1000))
		})
	}
}

// sparse is a layer of some bytes, with a file of many in it that is one hole.
func sparse(t *testing.T, size int64) []byte {
	t.Helper()
	dir := t.TempDir()
	f := expect.Value(os.Create(filepath.Join(dir, "hole")))(t)
	expect.Check(t, errors.Join(f.Truncate(size), f.Close()))
	packed, err := exec.Command("tar", "-C", dir, "--sparse", "--format=pax", "-c", "hole").Output()
	if err != nil {
		t.Skip("needs a tar that keeps holes:", err)
	}
	expect.Require(t, len(packed) <= 1<<20, "%d bytes", len(packed))
	return packed
}

// A file system may have bytes and no file left.
func TestFilesCountToo(t *testing.T) {
	for name, options := range map[string]string{"as far as one can tell": "size=64m,nr_inodes=220", "as it turns out": "size=256m,nr_inodes=600"} {
		t.Run(name, func(t *testing.T) {
			d := newDisk(t, options)
			ctx := containerdtest.Context(t)
			images := d.images(image.Options{})
			entries := make([]ociimage.Entry, 2000)
			for n := range entries {
				entries[n] = ociimage.Entry{Name: fmt.Sprint("file", n), Data: make([]byte, 10)}
			}
			want := image.Want{Ref: d.w.host + "/files:1"}
			layers := [][]byte{expect.Value(ociimage.Tar(entries))(t)}
			for n := range 20 {
				layers = append(layers, containerdtest.Blob(t, fmt.Sprint("layer", n), 1000))
			}
			containerdtest.Push(t, containerdtest.Image(t, nil, layers...), want.Ref)
			before := d.statfs()
			_, err := pullOne(ctx, images, want, nil)
			var space *image.NoSpaceError
			if kind(err) != fault.NoSpace || !errors.As(err, &space) || !space.Files || !strings.Contains(err.Error(), "files") {
				t.Fatalf("%v of kind %q: %+v", err, kind(err), space)
			}
			if after := d.statfs(); after.Ffree+20 < before.Ffree {
				t.Errorf("%d files were free, now %d are", before.Ffree, after.Ffree)
			}
			pull(t, images, d.push("small", 1000))
		})
	}
}

// The agent's own records may be on another file system, and need what comes with images.
func TestTheFileSystemOfRecordsCountsToo(t *testing.T) {
	d := newDisk(t, "size=256m")
	records := containerdtest.Dir(t)
	mountSmall(t, records, "size=8m")
	images := d.images(image.Options{State: records, Reserve: 4 << 20})
	want := d.push("app", 1000)
	want.Beside = 5 << 20
	_, err := pullOne(containerdtest.Context(t), images, want, nil)
	var space *image.NoSpaceError
	expect.True(t, errors.As(err, &space) && space.Dir == records && space.Needed == want.Beside, "%v: %+v", err, space)
	want.Beside = 3 << 20
	pull(t, images, want)
}

// What nothing needs goes although not a block is free, and space comes free with it: what containerd writes for that
// has its place.
func TestImagesGoFromAFullDisk(t *testing.T) {
	d := newDisk(t, "size=64m")
	ctx := containerdtest.Context(t)
	images := d.images(image.Options{})
	first, second := d.push("first", 4<<20), d.push("second", 4<<20)
	pulled := expect.Value(images.Pull(ctx, []image.Want{first, second}, nil))(t)
	d.leave(0)
	kept := pulled[1]
	expect.Equal(t, len(expect.Value(images.Prune(ctx, map[string]bool{kept.Name: true}, nil))(t)), 1, "removed")
	if d.free() < 7<<20 {
		t.Errorf("%d bytes are free, want those of the image", d.free())
	}
	expect.OK(t, expect.ErrorOf(images.Get(ctx, second.Ref, kept.Digest, ""))) // the one that stays
}

// An image that waits for the space of another one looks for it when something has changed, and not all the time.
func TestWaitingForSpaceIsIdle(t *testing.T) {
	d := newDisk(t, "size=36m")
	ctx, cancel := context.WithCancel(containerdtest.Context(t))
	first, second := d.push("first", 6<<20), d.push("second", 6<<20)
	held := make(chan struct{})
	d.w.set(func(rw http.ResponseWriter, r *http.Request) bool {
		if r.Method != http.MethodGet || !strings.Contains(r.URL.Path, "/first/blobs/") || len(d.w.body(r)) < 1<<20 {
			return false
		}
		select {
		case <-held:
		case <-r.Context().Done():
		}
		return false
	})
	looks := &lookCounter{Client: d.client}
	d.client = looks
	images := d.images(image.Options{Reserve: 2 << 20})
	defer cancel()
	var pulls []*pulling
	pulls = append(pulls, startPulls(ctx, t, images, first))
	pulls[0].await(t, "downloading", func(last map[string]image.Progress) bool { return last[first.Ref].Total > 6<<20 })
	pulls = append(pulls, startPulls(ctx, t, images, second))
	pulls[1].await(t, "waiting", func(last map[string]image.Progress) bool { return count(last, "no space for all") > 0 })
	looks.Store(0)
	close(held)
	for _, p := range pulls {
		expect.OK(t, <-p.ended)
	}
	if n := looks.Load(); n > 20 { // each is two, after each change until both have come
		t.Errorf("it looked for space %d times until it came", n)
	}
}

// lookCounter counts how often somebody looks for the file systems of containerd.
type lookCounter struct {
	containerd.Client
	atomic.Int64
}

func (c *lookCounter) IntrospectionService() introspection.Service {
	c.Add(1)
	return c.Client.IntrospectionService()
}
