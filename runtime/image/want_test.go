package image_test

import (
	"context"
	"os"
	"runtime"
	"strings"
	"testing"

	"github.com/containerd/platforms"
	"github.com/opencontainers/go-digest"

	"github.com/margolite/margolite/runtime/containerd"
	"github.com/margolite/margolite/runtime/fault"
	"github.com/margolite/margolite/runtime/image"
	"github.com/margolite/margolite/test/containerdtest"
	"github.com/margolite/margolite/test/expect"
	"github.com/margolite/margolite/test/ociimage"
)

// build makes a small image for a platform; empty is this machine's. Its file /is tells what it is.
func build(t testing.TB, platform, is string) *ociimage.Artifact {
	t.Helper()
	described := ociimage.Image{Layers: []ociimage.Layer{{Entries: []ociimage.Entry{{Name: "is", Data: []byte(is)}}}}}
	if platform != "" {
		described.Platform = platforms.MustParse(platform)
		if strings.HasSuffix(platform, "arm") { // Parse makes it v7
			described.Platform.Variant = ""
		}
	}
	return expect.Value(ociimage.Build(described))(t)
}

func index(t testing.TB, images ...*ociimage.Artifact) *ociimage.Artifact {
	t.Helper()
	return expect.Value(ociimage.Index(images...))(t)
}

func (w *watched) push(t testing.TB, name string, a *ociimage.Artifact) string {
	t.Helper()
	repository, tag, _ := strings.Cut(name, ":")
	expect.Check(t, (ociimage.Registry{URL: "http://" + w.host}).Push(t.Context(), repository, tag, a))
	return w.host + "/" + name
}

func TestTheBestPlatformOfAnImageIsTaken(t *testing.T) {
	ctx, client, w := fresh(t)
	many := w.push(t, "many:1", index(t,
		build(t, "linux/amd64", "amd64"), build(t, "linux/arm64", "arm64"), build(t, "linux/riscv64", "riscv64"),
		build(t, "linux/arm/v5", "v5"), build(t, "linux/arm/v6", "v6"), build(t, "linux/arm/v7", "v7")))
	old := w.push(t, "old:1", index(t, build(t, "linux/arm/v6", "v6"), build(t, "linux/arm64", "arm64")))
	single := w.push(t, "single:1", build(t, "linux/arm/v7", "single"))
	unnamed := index(t, build(t, "linux/arm/v7", "v7"))
	unnamed.Manifest = []byte(strings.Replace(string(unnamed.Manifest), `"platform":{"architecture":"arm","os":"linux","variant":"v7"}`, `"annotations":{}`, 1))
	unnamed.Digest = digest.FromBytes(unnamed.Manifest)
	w.push(t, "unnamed:1", unnamed)
	images := open(t, client, w.plain())

	for _, test := range []struct{ ref, platform, want, refused string }{
		{ref: many, platform: "linux/arm/v7", want: "arm/v7"},
		{ref: many, platform: "linux/arm", want: "arm/v7"},
		{ref: many, platform: "linux/arm/v6", want: "arm/v6"},
		{ref: many, platform: "linux/arm/v5", want: "arm/v5"},
		{ref: many, platform: "linux/arm64", want: "arm64"},
		{ref: many, platform: "linux/arm64/v8", want: "arm64"},
		{ref: many, platform: "linux/riscv64", want: "riscv64"},
		{ref: many, platform: "", want: runtime.GOARCH},
		{ref: old, platform: "linux/arm/v7", want: "arm/v6"},
		{ref: old, platform: "linux/arm/v5", refused: "no platform for linux/arm/v5, only for linux/arm/v6, linux/arm64"},
		{ref: old, platform: "linux/386", refused: "no platform for linux/386, only for linux/arm/v6, linux/arm64"},
		{ref: single, platform: "linux/arm/v7", want: "arm/v7"},
		{ref: single, platform: "linux/arm/v6", refused: "no platform for linux/arm/v6, only for linux/arm/v7"},
		{ref: single, platform: "linux/arm64", refused: "no platform for linux/arm64, only for linux/arm/v7"},
		{ref: w.host + "/unnamed:1", platform: "linux/arm/v7", want: "arm/v7"},
		{ref: w.host + "/unnamed:1", platform: "linux/s390x", refused: "only for linux/arm/v7"},
		{ref: many, platform: "a/b/c/d", refused: "cannot read platform"},
	} {
		t.Run(strings.TrimPrefix(test.ref, w.host+"/")+" for "+test.platform, func(t *testing.T) {
			got, err := pullOne(ctx, images, image.Want{Ref: test.ref, Platform: test.platform}, nil)
			if test.refused != "" {
				fails(t, err, fault.Unsupported, test.refused, test.ref)
				return
			}
			expect.Check(t, err)
			arch := got.Config.Architecture
			if got.Config.Variant != "" && arch == "arm" {
				arch += "/" + got.Config.Variant
			}
			expect.Equal(t, arch, test.want, "architecture")
			expect.Equal(t, expect.Value(images.Get(ctx, test.ref, got.Digest, test.platform))(t).ChainID, got.ChainID, "get")
		})
	}
	collect(t, client) // all platforms of one image are held by one record
	for _, platform := range []string{"linux/arm/v7", "linux/arm/v6", "linux/riscv64"} {
		got := pull(t, images, image.Want{Ref: many, Platform: platform})
		expect.OK(t, expect.ErrorOf(images.Get(ctx, many, got.Digest, platform))) // after garbage collection
	}
	w.asked("")
	pull(t, images, image.Want{Ref: many, Platform: "linux/riscv64"})
	expect.Equal(t, w.asked(""), nil, "requests for what is here")
}

func TestPullPoliciesSayWhenARegistryIsAsked(t *testing.T) {
	each(t, func(t *testing.T, ctx context.Context, client containerd.Client, w *watched) {
		one, two := build(t, "", "one"), build(t, "", "two")
		images := open(t, client, w.plain())
		try := func(name string, policy image.Policy, pin *ociimage.Artifact) (*image.Image, error) {
			want := image.Want{Ref: w.host + "/" + name, Policy: policy}
			if pin != nil {
				want.Pin = pin.Digest
			}
			return pullOne(ctx, images, want, nil)
		}
		gets := func(what, name string, policy image.Policy, pin, want *ociimage.Artifact) {
			t.Helper()
			expect.Equal(t, expect.Value(try(name, policy, pin))(t).Digest, want.Digest, "%s", what)
		}
		for _, name := range []string{"app:1", "app:latest"} {
			w.push(t, name, one)
			fails(t, expect.ErrorOf(try(name, image.Never, nil)), fault.NotFound, "pull policy is never", "never, and not here")
			gets("missing", name, image.Missing, nil, one)
			w.push(t, name, two)
			gets("pinned", name, image.Always, one, one)
			gets("never", name, image.Never, nil, one)
		}
		gets("missing, and here", "app:1", image.Missing, nil, one)
		gets("missing, and the latest", "app:latest", image.Missing, nil, two)
		gets("always", "app:1", image.Always, nil, two)
		gets("missing after always", "app:1", image.Missing, nil, two)
		gets("never after always", "app:1", image.Never, nil, two)

		w.set(answer(500))
		gets("missing without a registry", "app:1", image.Missing, nil, two)
		gets("the latest without a registry", "app:latest", image.Missing, nil, two)
		fails(t, expect.ErrorOf(try("app:1", image.Always, nil)), fault.Unreachable, "", "always without a registry")
		w.set(nil)
		w.asked("")
		fails(t, expect.ErrorOf(try("app:1", image.Never, build(t, "", "three"))), fault.NotFound, "", "never, and another pin")
		expect.Equal(t, w.asked(""), nil, "requests of never")
	})
}

func TestEachTagOfAnImageIsRemembered(t *testing.T) {
	ctx, client, w := fresh(t)
	app := build(t, "", "app")
	one, two := image.Want{Ref: w.push(t, "app:1", app)}, image.Want{Ref: w.push(t, "app:2", app)}
	images := open(t, client, w.plain())
	expect.Value(images.Pull(ctx, []image.Want{one, two}, nil))(t)
	w.set(answer(500))
	for _, want := range []image.Want{one, two} {
		expect.Equal(t, pull(t, images, want).Digest, app.Digest, "%s without a registry", want.Ref)
	}
}

func TestLayersThatImagesShareComeOnce(t *testing.T) {
	ctx, client, w := fresh(t)
	shared := containerdtest.Blob(t, "shared", 1<<20)
	var wants []image.Want
	for _, name := range []string{"a", "b", "c"} {
		ref := w.host + "/" + name + ":1"
		containerdtest.Push(t, containerdtest.Image(t, nil, shared, containerdtest.Blob(t, name, 1000)), ref)
		wants = append(wants, image.Want{Ref: ref})
	}
	wants = append(wants, wants[0]) // by two services
	last := make(map[string]image.Progress)
	w.asked("")
	got := expect.Value(open(t, client, w.plain()).Pull(ctx, wants, func(p image.Progress) { last[p.Object] = p }))(t)
	expect.True(t, len(got) == 4 && got[3].Name == got[0].Name && strings.HasPrefix(got[1].Name, w.host+"/b@"), "got %v", got)
	for ref, p := range last {
		expect.True(t, p.Done == p.Total && p.Done >= 1<<20, "the last of %s is %+v", ref, p)
	}
	blobs := w.asked("GET /v2/")
	seen := make(map[string]bool)
	for _, line := range blobs {
		_, blob, isBlob := strings.Cut(line, "/blobs/")
		expect.True(t, !isBlob || !seen[blob], "fetched twice: %s", line)
		seen[blob] = isBlob
	}
}

func TestLayersCannotWriteOutsideOfTheirImage(t *testing.T) {
	each(t, func(t *testing.T, ctx context.Context, client containerd.Client, w *watched) {
		outside := t.TempDir()
		victim := outside + "/victim"
		expect.Check(t, os.WriteFile(victim, []byte("unharmed"), 0o600))
		up := strings.Repeat("../", 20)
		for name, entries := range map[string][]ociimage.Entry{
			"dots":            {{Name: up + victim[1:], Data: []byte("x")}},
			"absolute":        {{Name: victim, Data: []byte("x")}},
			"through a link":  {{Name: "door", Type: '2', Link: outside}, {Name: "door/victim", Data: []byte("x")}},
			"upwards":         {{Name: "door", Type: '2', Link: up + outside[1:]}, {Name: "door/victim", Data: []byte("x")}},
			"hard link":       {{Name: "twin", Type: '1', Link: victim}, {Name: "twin", Data: []byte("x")}},
			"hard link, dots": {{Name: "twin", Type: '1', Link: up + victim[1:]}, {Name: "twin", Data: []byte("x")}},
			"whiteout":        {{Name: "door", Type: '2', Link: outside}, {Name: "door/.wh.victim"}},
			"opaque":          {{Name: "door", Type: '2', Link: outside}, {Name: "door/.wh..wh..opq"}},
			"new name":        {{Name: "door", Type: '2', Link: outside}, {Name: "door/new", Data: []byte("x")}},
		} {
			t.Run(name, func(t *testing.T) {
				a, err := ociimage.Build(ociimage.Image{Layers: []ociimage.Layer{{Entries: entries}}})
				expect.Check(t, err)
				ref := w.push(t, strings.NewReplacer(" ", "-", ",", "").Replace(name)+":1", a)
				_, err = pullOne(ctx, open(t, client, w.plain()), image.Want{Ref: ref}, nil) // some are refused, some stay inside
				t.Log(err)
				expect.Equal(t, string(expect.Value(os.ReadFile(victim))(t)), "unharmed", "the file outside")
				expect.Equal(t, len(expect.Value(os.ReadDir(outside))(t)), 1, "files outside")
			})
		}
	})
}
