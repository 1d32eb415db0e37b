package image_test

import (
	"cmp"
	"context"
	"io"
	"log"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/opencontainers/go-digest"

	"github.com/margolite/margolite/runtime/containerd"
	"github.com/margolite/margolite/runtime/fault"
	"github.com/margolite/margolite/runtime/image"
	"github.com/margolite/margolite/test/containerdtest"
	"github.com/margolite/margolite/test/cosigned"
	"github.com/margolite/margolite/test/dockerregistry"
	"github.com/margolite/margolite/test/expect"
	"github.com/margolite/margolite/test/ociimage"
)

// signer is a key, and the file of its public half.
type signer struct {
	*cosigned.Key
	file string
}

func newSigner(t testing.TB, kind string) signer {
	t.Helper()
	k := expect.Value(cosigned.NewKey(kind))(t)
	return signer{k, writeFile(t, "cosign.pub", expect.Value(k.Public())(t))}
}

// everywhere are keys for all images.
func everywhere(signers ...signer) image.Keyring {
	ring := image.Keyring{"*": nil}
	for _, s := range signers {
		ring["*"] = append(ring["*"], s.file)
	}
	return ring
}

func simple(t testing.TB, of digest.Digest, by ...signer) *ociimage.Artifact {
	t.Helper()
	var keys []*cosigned.Key
	for _, s := range by {
		keys = append(keys, s.Key)
	}
	return expect.Value(cosigned.Simple("registry.example/app", of, keys...))(t)
}

func referrer(t testing.TB, to *ociimage.Artifact, statement []byte, by signer) *ociimage.Artifact {
	t.Helper()
	return expect.Value(cosigned.Referrer(to, expect.Value(by.Bundle(statement))(t)))(t)
}

func referrers(t testing.TB, all ...*ociimage.Artifact) *ociimage.Artifact {
	t.Helper()
	return expect.Value(cosigned.Referrers(all...))(t)
}

// watchReferrers is watch for a registry that lists what refers to a manifest.
func watchReferrers(t testing.TB) *watched {
	w := watch(t)
	w.next = registry.New(registry.Logger(log.New(io.Discard, "", 0)), registry.WithReferrersSupport(true))
	return w
}

// The signature of what a name stands for counts, by a key of this device, in the forms and at the places where cosign
// has put it; and to find that out nothing of the image is downloaded.
func TestImagesAreSignedByAKeyOfTheDevice(t *testing.T) {
	ctx := containerdtest.Context(t)
	client := containerdtest.Embedded(t)
	own, stranger := newSigner(t, "p256"), newSigner(t, "p256")
	for kind, start := range map[string]func(testing.TB) *watched{"old registry": watch, "registry with referrers": watchReferrers} {
		w := start(t)
		images := open(t, client, w.plain())
		for name, c := range map[string]struct {
			simple  []signer      // who signed under the tag of the signature
			of      digest.Digest // what they signed; empty: the image
			bundles func(app *ociimage.Artifact) []*ociimage.Artifact
			why     string // empty: it is signed
		}{
			"simple signing":    {simple: []signer{own}},
			"the second of two": {simple: []signer{stranger, own}},
			"a bundle": {bundles: func(app *ociimage.Artifact) []*ociimage.Artifact {
				return []*ociimage.Artifact{referrer(t, app, cosigned.Statement(app.Digest), own)}
			}},
			"a bundle beside others": {simple: []signer{stranger}, bundles: func(app *ociimage.Artifact) []*ociimage.Artifact {
				return []*ociimage.Artifact{
					referrer(t, app, []byte("garbage"), own),
					referrer(t, app, cosigned.Statement(app.Digest), stranger),
					referrer(t, app, cosigned.Statement(app.Digest), own),
				}
			}},
			"nothing":                      {why: "there is no signature of sha256:"},
			"another key":                  {simple: []signer{stranger}, why: "no trusted key made it"},
			"a signature of another image": {simple: []signer{own}, of: digest.FromString("another"), why: "for another image"},
			"a manifest of no signatures":  {simple: []signer{}, why: "there is no signature of"},
			"more than anybody needs":      {simple: slices.Repeat([]signer{own}, 65), why: "more than 64 signatures"},
		} {
			t.Run(kind+"/"+name, func(t *testing.T) {
				app := build(t, "", name+w.host)
				repository := strings.ReplaceAll(name, " ", "-")
				w.push(t, repository+":1", app)
				if c.simple != nil {
					w.push(t, repository+":"+cosigned.Tag(app.Digest), simple(t, cmp.Or(c.of, app.Digest), c.simple...))
				}
				if c.bundles != nil {
					w.refer(t, repository, app, c.bundles(app)...)
				}
				w.asked("")
				l, err := images.Look(ctx, image.Want{Ref: w.host + "/" + repository + ":1"}, everywhere(own))
				if err != nil || l.Digest != app.Digest || (l.Signer == "") != (c.why != "") || !strings.Contains(l.Why, c.why) {
					t.Errorf("%+v, %v; want %q", l, err, c.why)
				}
				asked := strings.Join(w.asked("GET"), "\n")
				for d := range app.Blobs {
					expect.Equal(t, strings.Contains(asked, d.String()), false, "asked for %s of the image: %s", d, asked)
				}
			})
		}
	}
}

// What was found out when an image came needs no network later, as long as its key counts; and a tag is what was
// verified, whatever it stands for meanwhile.
func TestASignatureIsRememberedWithItsImage(t *testing.T) {
	each(t, func(t *testing.T, ctx context.Context, client containerd.Client, w *watched) {
		own, second := newSigner(t, "ed25519"), newSigner(t, "p384")
		app := build(t, "", "app")
		ref := w.push(t, "app:1", app)
		w.push(t, "app:"+cosigned.Tag(app.Digest), simple(t, app.Digest, own, second))
		images := open(t, client, w.plain())
		want := image.Want{Ref: ref, Policy: image.Always}
		l, err := images.Look(ctx, want, everywhere(own))
		expect.Require(t, err == nil && l.Signer != "", "%+v, %v", l, err)
		w.push(t, "app:1", build(t, "", "moved"))
		want.Looked = l
		expect.Equal(t, pull(t, images, want).Digest, app.Digest, "digest")

		both := image.Want{Ref: ref, Pin: app.Digest}
		if both.Looked, err = images.Look(ctx, both, everywhere(second)); err != nil || both.Looked.Signer == "" || both.Looked.Signer == l.Signer {
			t.Fatalf("by another key: %+v, %v", both.Looked, err)
		}
		// It is here, and now known to be by both.

		w.set(answer(http.StatusServiceUnavailable))
		images = open(t, client, w.plain()) // the next start
		for name, c := range map[string]struct {
			want image.Want
			keys image.Keyring
			kind fault.Code
		}{
			"its key":                       {image.Want{Ref: ref, Pin: app.Digest}, everywhere(own), ""},
			"its other key":                 {image.Want{Ref: ref, Pin: app.Digest}, everywhere(second), ""},
			"its key among others":          {image.Want{Ref: ref, Pin: app.Digest}, everywhere(newSigner(t, "p256"), own), ""},
			"by its tag":                    {image.Want{Ref: ref}, everywhere(own), ""},
			"a new key":                     {image.Want{Ref: ref, Pin: app.Digest}, everywhere(newSigner(t, "p256")), fault.Unreachable},
			"the same in another registry":  {image.Want{Ref: "nowhere.invalid/app", Pin: app.Digest}, everywhere(own), fault.Unreachable},
			"an image that is not here yet": {image.Want{Ref: ref, Pin: digest.FromString("new")}, everywhere(own), fault.Unreachable},
		} {
			l, err := images.Look(ctx, c.want, c.keys)
			expect.True(t, kind(err) == c.kind && (l.Signer == "") == (c.kind != ""), "%s: %+v, %v", name, l, err)
		}
	})
}

// Where no key counts nobody is asked for signatures, and where one cannot be read that is told.
func TestImagesWithoutAKeyAreUnsigned(t *testing.T) {
	ctx, client, w := fresh(t)
	ref := w.push(t, "app:1", build(t, "", "app"))
	images := open(t, client, w.plain())
	l, err := images.Look(ctx, image.Want{Ref: ref}, image.Keyring{"elsewhere.example": {"key"}})
	if asked := w.asked(".sig"); err != nil || l.Signer != "" || !strings.Contains(l.Why, "no key is configured") || asked != nil {
		t.Errorf("without a key: %+v, %v, asked for %v", l, err, asked)
	}
	for name, file := range map[string]string{"no such file": filepath.Join(t.TempDir(), "none.pub"), "no key": os.DevNull} {
		fails(t, expect.ErrorOf(images.Look(ctx, image.Want{Ref: ref}, image.Keyring{"*": {file}})), fault.Internal, "", name)
	}
}

// A registry in trouble says nothing about signatures.
func TestTroubleIsNotTakenForAMissingSignature(t *testing.T) {
	ctx := containerdtest.Context(t)
	client := containerdtest.Embedded(t)
	own := newSigner(t, "p256")
	for name, c := range map[string]struct {
		at     string // part of the path that is in trouble
		status int
		want   fault.Code
	}{
		"the tag of signatures":     {".sig", 503, fault.Unreachable},
		"too many requests":         {".sig", 429, fault.Unreachable},
		"what refers to it":         {"/referrers/", 502, fault.Unreachable},
		"the tag of what refers":    {"/manifests/sha256-", 500, fault.Unreachable},
		"a signature itself":        {"/blobs/", 503, fault.Unreachable},
		"what is not to be known":   {"/referrers/", 403, fault.Denied},
		"who is not to know at all": {"/v2/", 401, fault.Denied},
	} {
		t.Run(name, func(t *testing.T) {
			w := watch(t)
			app := build(t, "", name)
			ref := w.push(t, "app:1", app)
			if c.at == "/blobs/" {
				w.push(t, "app:"+cosigned.Tag(app.Digest), simple(t, app.Digest, own))
			}
			w.set(answerAt(c.at, c.status))
			_, err := open(t, client, w.plain()).Look(ctx, image.Want{Ref: ref, Pin: app.Digest}, everywhere(own))
			fails(t, err, c.want, "whether it is signed", "look")
		})
	}
}

// Signatures come as images do: from mirrors first, where others may lie than at the registry.
func TestSignaturesComeFromMirrors(t *testing.T) {
	ctx, client, mirror := fresh(t)
	origin := watch(t)
	own, stranger := newSigner(t, "rsa2048"), newSigner(t, "p256")
	registries := plainHTTP(origin, mirror)
	registries[origin.host] = image.Registry{PlainHTTP: true, Mirrors: []string{mirror.host}}
	images := open(t, client, registries)
	for name, by := range map[string]map[*watched]signer{
		"at-the-registry":       {origin: own},
		"at-the-mirror":         {mirror: own},
		"and-not-at-the-mirror": {mirror: stranger, origin: own},
		"nowhere":               {},
	} {
		app := build(t, "", name)
		ref := origin.push(t, "app:"+name, app)
		for w, s := range by {
			w.push(t, "app:"+cosigned.Tag(app.Digest), simple(t, app.Digest, s))
		}
		l := expect.Value(images.Look(ctx, image.Want{Ref: ref}, everywhere(own)))(t)
		expect.Equal(t, l.Signer != "", len(by) > 0, "%s: signed", name)
	}
}

// A device that comes with images comes with their signatures, beside them or in archives of their own.
func TestPreloadedImagesBringTheirSignatures(t *testing.T) {
	ctx := containerdtest.Context(t)
	client := containerdtest.Embedded(t)
	own, stranger := newSigner(t, "p256"), newSigner(t, "p256")
	together, apart, bundled := build(t, "", "together"), build(t, "", "apart"), build(t, "", "bundled")
	unsigned, foreign := build(t, "", "unsigned"), build(t, "", "foreign")
	images, _ := preloading(t, client, map[string][]byte{
		"together.tar": archiveOf(t, ociimage.Layout, map[string]*ociimage.Artifact{
			"registry.invalid/together:1": together, "registry.invalid/together:" + cosigned.Tag(together.Digest): simple(t, together.Digest, own),
		}),
		"images.tar": archiveOf(t, ociimage.Saved, map[string]*ociimage.Artifact{"registry.invalid/unsigned:1": unsigned}),
		"more.tar": archiveOf(t, ociimage.Layout, map[string]*ociimage.Artifact{
			"registry.invalid/apart:1": apart, "registry.invalid/bundled:1": bundled, "registry.invalid/foreign:1": foreign,
		}),
		// As cosign and skopeo write them: without a name.
		"apart.sig.tar":   archiveOf(t, ociimage.Layout, map[string]*ociimage.Artifact{"": simple(t, apart.Digest, own)}),
		"bundled.sig.tar": archiveOf(t, ociimage.Layout, map[string]*ociimage.Artifact{"": referrer(t, bundled, cosigned.Statement(bundled.Digest), own)}),
		"foreign.sig.tar": archiveOf(t, ociimage.Layout, map[string]*ociimage.Artifact{"": simple(t, foreign.Digest, stranger)}),
	}, nil)
	for name, why := range map[string]string{"together": "", "apart": "", "bundled": "", "unsigned": "there is no signature of", "foreign": "no trusted key made it"} {
		want := image.Want{Ref: "registry.invalid/" + name + ":1", Policy: image.Never}
		var err error
		want.Looked, err = images.Look(ctx, want, everywhere(own))
		if err != nil || (want.Looked.Signer == "") != (why != "") || !strings.Contains(want.Looked.Why, why) {
			t.Errorf("%s: %+v, %v", name, want.Looked, err)
		}
		if why == "" {
			pull(t, images, want)
		}
	}
	// The registry may have what the archives have not; nobody knows as long as it is out of reach.
	fails(t, expect.ErrorOf(images.Look(ctx, image.Want{Ref: "registry.invalid/unsigned:1"}, everywhere(own))), fault.Unreachable, "", "out of reach")
}

// What cosign 3 writes counts, in its own form and in that of its former versions, for each kind of key; and what it
// saves is what a device can come with.
func TestSignaturesOfCosignItself(t *testing.T) {
	program, err := exec.LookPath("cosign")
	if err != nil {
		t.Skip("cosign is not installed")
	}
	ctx := containerdtest.Context(t)
	client := containerdtest.Embedded(t)
	dir := t.TempDir()
	run := func(args ...string) {
		t.Helper()
		cmd := exec.CommandContext(ctx, program, args...)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "COSIGN_PASSWORD=", "HOME="+dir)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("cosign %v: %v: %s", args, err, out)
		}
	}
	offline := []string{"--tlog-upload=false", "--use-signing-config=false", "--allow-http-registry", "--yes"}
	plain := dockerregistry.Start(t, "")
	for _, kind := range []string{"p256", "p384", "ed25519", "rsa2048"} {
		key := newSigner(t, kind)
		private := expect.Value(key.Private())(t)
		expect.Check(t, os.WriteFile(filepath.Join(dir, kind+".pem"), private, 0o600))
		run("import-key-pair", "--key", kind+".pem", "--output-key-prefix", kind)
		for _, form := range []string{"--new-bundle-format=true", "--new-bundle-format=false"} {
			registries := map[string]*watched{"docker's": {host: plain}}
			if kind == "p256" {
				registries["one with referrers"] = watchReferrers(t)
			}
			for registry, w := range registries {
				t.Run(kind+"/"+form+"/"+registry, func(t *testing.T) {
					app := index(t, build(t, "", kind+form+registry), build(t, "linux/s390x", "other"))
					ref := w.push(t, "app:1", app)
					repository, _, _ := strings.Cut(ref, ":1")
					pinned := repository + "@" + app.Digest.String()
					run(append([]string{"sign", "--key", kind + ".key", form, pinned}, offline...)...)
					images := open(t, client, w.plain())
					signed := func(policy image.Policy, by signer) bool {
						t.Helper()
						return expect.Value(images.Look(ctx, image.Want{Ref: pinned, Policy: policy}, everywhere(by)))(t).Signer != ""
					}
					expect.Equal(t, signed("", key), true, "signed")
					expect.Equal(t, signed("", newSigner(t, kind)), false, "signed by another key")
					if kind != "p256" {
						return
					}
					saved := filepath.Join(t.TempDir(), "saved")
					run("save", "--dir", saved, "--allow-http-registry", pinned)
					files := expect.Value(ociimage.ReadFiles(saved))(t)
					var entries []ociimage.Entry
					for name, data := range files {
						entries = append(entries, ociimage.Entry{Name: name, Data: data})
					}
					archive := expect.Value(ociimage.Tar(entries))(t)
					images, _ = preloading(t, client, map[string][]byte{"saved.tar": archive}, nil)
					expect.Equal(t, signed(image.Never, key), true, "signed where it is saved")
				})
			}
		}
	}
}
