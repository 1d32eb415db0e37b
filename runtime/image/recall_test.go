package image_test

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/opencontainers/go-digest"

	"github.com/margolite/margolite/runtime/fault"
	"github.com/margolite/margolite/runtime/image"
	"github.com/margolite/margolite/test/containerdtest"
	"github.com/margolite/margolite/test/expect"
)

// When containerd has lost all that it knew, images are had from the content that
// is there, without a registry; those that are wanted and not pulled are known
// again, and what nobody wants goes.
func TestImagesOfALostDatabase(t *testing.T) {
	dir := containerdtest.Dir(t)
	ctx := containerdtest.Context(t)
	w := watch(t)
	pins := map[string]digest.Digest{}
	var refs []string
	for _, name := range []string{"pulled", "never", "kept", "unwanted"} {
		app := build(t, "", name)
		ref := w.push(t, name+":1", app)
		pins[ref], refs = app.Digest, append(refs, ref)
	}
	run := func(do func(images *image.Images)) {
		t.Helper()
		client, stop := startAt(t, dir)
		do(open(t, client, w.plain()))
		stop()
	}
	run(func(images *image.Images) {
		for ref, pin := range pins {
			pull(t, images, image.Want{Ref: ref, Pin: pin})
		}
	})
	expect.Check(t, os.Remove(filepath.Join(dir, "root/io.containerd.metadata.v1.bolt/meta.db")))
	w.asked("")
	run(func(images *image.Images) {
		for ref, policy := range map[string]image.Policy{refs[0]: image.Missing, refs[1]: image.Never} {
			fails(t, expect.ErrorOf(images.Get(ctx, ref, pins[ref], "")), fault.NotFound, "", ref)
			pull(t, images, image.Want{Ref: ref, Pin: pins[ref], Policy: policy})
		}
	})
	run(func(images *image.Images) {
		keep := map[string]bool{}
		for _, ref := range refs[:3] {
			keep[expect.Value(image.Name(ref, pins[ref]))(t)] = true
		}
		for range 2 {
			expect.Check(t, expect.ErrorOf(images.Prune(ctx, keep, nil)))
			got := expect.Value(images.List(ctx))(t)
			slices.Sort(got)
			expect.Equal(t, got, slices.Sorted(maps.Keys(keep)), "images")
		}
		pull(t, images, image.Want{Ref: refs[2], Pin: pins[refs[2]]})
		expect.Equal(t, w.asked(""), nil, "requests")
		if _, err := pullOne(ctx, images, image.Want{Ref: refs[3], Pin: pins[refs[3]]}, nil); err != nil || len(w.asked("")) == 0 {
			t.Errorf("what nobody wanted is still there: %v", err)
		}
	})
}
