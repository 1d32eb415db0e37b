package containerd_test

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/margolite/margolite/runtime/containerd"
	"github.com/margolite/margolite/runtime/external"
	"github.com/margolite/margolite/test/containerdtest"
)

const snapshotter = "overlayfs"

// What the runtime asks of a containerd it gets from the one inside, asked directly or over its socket, as well as from
// the older one of Debian. Processes are what the tests of runtime and runtime/container are about.
func TestContract(t *testing.T) {
	for _, backend := range append(containerdtest.Backends(), containerdtest.Backend{Name: "embedded, over its socket", Start: overSocket}) {
		t.Run(backend.Name, func(t *testing.T) {
			client := backend.Start(t)
			for name, test := range map[string]func(*testing.T, context.Context, containerd.Client){
				"a blob is written in parts":                 blobInParts,
				"a blob is begun anew":                       blobBegunAnew,
				"a blob that is not what it should be":       blobRefused,
				"a blob that is there":                       blobThere,
				"a blob has labels":                          blobLabels,
				"an ingest is dropped":                       ingestDropped,
				"a lease holds what is made with it":         leaseHolds,
				"leases have names":                          leaseNames,
				"what a lease holds is told":                 leaseResources,
				"an image has a name":                        imageRecords,
				"a container has a record":                   containerRecords,
				"a snapshot is on another":                   snapshots,
				"a layer is unpacked":                        layer,
				"events are passed on":                       events,
				"a namespace has labels, and things its own": namespaces,
				"containerd tells its parts":                 plugins,
			} {
				t.Run(name, func(t *testing.T) {
					ctx := containerd.WithNamespace(t.Context(), containerdtest.Namespace)
					lease := try(client.LeasesService().Create(ctx, containerd.Lease{}))(t)
					test(t, containerd.WithLease(ctx, lease.ID), client)
					if err := client.LeasesService().Delete(ctx, lease.ID, true); err != nil {
						t.Error(err)
					}
				})
			}
		})
	}
}

func overSocket(t testing.TB) containerd.Client {
	client, err := external.Connect(t.Context(), containerdtest.Embedded(t).Address(), containerdtest.Namespace)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	return client
}

func blobInParts(t *testing.T, ctx context.Context, client containerd.Client) {
	store := client.ContentStore()
	blob := random(3<<20 + 1)
	desc := describe(blob)
	half := len(blob) / 2

	w := try(store.Writer(ctx, "parts", desc))(t)
	if w.Offset() != 0 {
		t.Errorf("it begins at %d", w.Offset())
	}
	write(t, w, blob[:half])
	if w.Offset() != int64(half) {
		t.Errorf("it is at %d, want %d", w.Offset(), half)
	}
	want := containerd.Ingest{Ref: "parts", Offset: int64(half), Total: desc.Size}
	times := cmpopts.IgnoreTypes(time.Time{})
	varies := cmpopts.IgnoreFields(containerd.Ingest{}, "Expected")
	if diff := cmp.Diff(want, try(store.Status(ctx, "parts"))(t), times, varies); diff != "" {
		t.Errorf("status: %s", diff)
	}
	if diff := cmp.Diff([]containerd.Ingest{want}, try(store.Ingests(ctx, "ref==parts"))(t), times, varies); diff != "" {
		t.Errorf("ingests: %s", diff)
	}
	if _, err := store.Writer(ctx, "parts", desc); !errdefs.IsUnavailable(err) {
		t.Errorf("of a second writer the error is %v", err)
	}
	if _, err := store.Info(ctx, desc.Digest); !errdefs.IsNotFound(err) {
		t.Errorf("half a blob is one: %v", err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}

	w = try(store.Writer(ctx, "parts", desc))(t)
	if w.Offset() != int64(half) {
		t.Errorf("it goes on at %d, want %d", w.Offset(), half)
	}
	write(t, w, blob[half:])
	if err := w.Commit(ctx, desc.Size, desc.Digest, map[string]string{"a": "b"}); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Error(err)
	}
	info := try(store.Info(ctx, desc.Digest))(t)
	if diff := cmp.Diff(containerd.ContentInfo{Digest: desc.Digest, Size: desc.Size, Labels: map[string]string{"a": "b"}}, info, times); diff != "" {
		t.Errorf("info: %s", diff)
	}
	recent(t, info.CreatedAt)
	recent(t, info.UpdatedAt)
	if _, err := store.Status(ctx, "parts"); !errdefs.IsNotFound(err) {
		t.Errorf("the ingest is still there: %v", err)
	}
	expectContent(t, ctx, store, blob)

	part := make([]byte, 10)
	r := try(store.Open(ctx, desc.Digest))(t)
	defer r.Close()
	if n, err := r.ReadAt(part, desc.Size-4); n != 4 || !errors.Is(err, io.EOF) || !bytes.Equal(part[:n], blob[desc.Size-4:]) {
		t.Errorf("the end is %d bytes, %v", n, err)
	}
	if _, err := store.Open(ctx, digest.FromString("none")); !errdefs.IsNotFound(err) {
		t.Errorf("another is opened: %v", err)
	}
}

func blobBegunAnew(t *testing.T, ctx context.Context, client containerd.Client) {
	store := client.ContentStore()
	w := try(store.Writer(ctx, "anew", v1.Descriptor{}))(t)
	defer w.Close()
	write(t, w, []byte("something else"))
	if err := w.Truncate(0); err != nil || w.Offset() != 0 {
		t.Fatalf("truncated to %d, %v", w.Offset(), err)
	}
	blob := []byte("anew")
	write(t, w, blob)
	if err := w.Commit(ctx, 0, "", nil); err != nil {
		t.Fatal(err)
	}
	expectContent(t, ctx, store, blob)
}

func blobRefused(t *testing.T, ctx context.Context, client containerd.Client) {
	blob := []byte("refused")
	for ref, wanted := range map[string]v1.Descriptor{
		"another digest": {Digest: digest.FromString("x"), Size: int64(len(blob))},
		"another size":   {Digest: digest.FromBytes(blob), Size: int64(len(blob)) + 1},
	} {
		w := try(client.ContentStore().Writer(ctx, ref, wanted))(t)
		write(t, w, blob)
		if err := w.Commit(ctx, wanted.Size, wanted.Digest, nil); !errdefs.IsFailedPrecondition(err) {
			t.Errorf("of %s the error is %v", ref, err)
		}
		if err := w.Close(); err != nil {
			t.Error(err)
		}
		if _, err := client.ContentStore().Info(ctx, wanted.Digest); !errdefs.IsNotFound(err) {
			t.Errorf("%s: %v", ref, err)
		}
	}
}

func blobThere(t *testing.T, ctx context.Context, client containerd.Client) {
	store := client.ContentStore()
	blob := []byte("there")
	late := try(store.Writer(ctx, "late", v1.Descriptor{}))(t)
	write(t, late, blob)
	put(t, ctx, store, blob)
	if err := late.Commit(ctx, int64(len(blob)), digest.FromBytes(blob), nil); !errdefs.IsAlreadyExists(err) {
		t.Errorf("of a second commit the error is %v", err)
	}
	if err := late.Close(); err != nil {
		t.Error(err)
	}
	if _, err := store.Status(ctx, "late"); !errdefs.IsNotFound(err) {
		t.Errorf("the second ingest is still there: %v", err)
	}
	if _, err := store.Writer(ctx, "too late", describe(blob)); !errdefs.IsAlreadyExists(err) {
		t.Errorf("of a third writer the error is %v", err)
	}
	expectContent(t, ctx, store, blob)
	if err := store.Delete(ctx, digest.FromBytes(blob)); err != nil {
		t.Fatal(err)
	}
	if _, err := store.Info(ctx, digest.FromBytes(blob)); !errdefs.IsNotFound(err) {
		t.Errorf("it is still there: %v", err)
	}
	if err := store.Delete(ctx, digest.FromBytes(blob)); !errdefs.IsNotFound(err) {
		t.Errorf("of a second deletion the error is %v", err)
	}
}

func blobLabels(t *testing.T, ctx context.Context, client containerd.Client) {
	store := client.ContentStore()
	desc := put(t, ctx, store, []byte("labels"))
	for _, step := range []struct{ set, want map[string]string }{
		{map[string]string{"a": "1", "containerd.io/b.c": "2"}, map[string]string{"a": "1", "containerd.io/b.c": "2"}},
		{map[string]string{"a": "", "d": "3"}, map[string]string{"containerd.io/b.c": "2", "d": "3"}},
		{nil, map[string]string{"containerd.io/b.c": "2", "d": "3"}},
	} {
		if err := store.Label(ctx, desc.Digest, step.set); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(step.want, try(store.Info(ctx, desc.Digest))(t).Labels); diff != "" {
			t.Errorf("with %v: %s", step.set, diff)
		}
	}
	if err := store.Label(ctx, digest.FromString("none"), map[string]string{"a": "b"}); !errdefs.IsNotFound(err) {
		t.Errorf("of no blob the error is %v", err)
	}
}

func ingestDropped(t *testing.T, ctx context.Context, client containerd.Client) {
	store := client.ContentStore()
	w := try(store.Writer(ctx, "dropped", v1.Descriptor{}))(t)
	write(t, w, []byte("dropped"))
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := store.Abort(ctx, "dropped"); err != nil {
		t.Fatal(err)
	}
	if _, err := store.Status(ctx, "dropped"); !errdefs.IsNotFound(err) {
		t.Errorf("it is still there: %v", err)
	}
	if err := store.Abort(ctx, "dropped"); !errdefs.IsNotFound(err) {
		t.Errorf("of a second time the error is %v", err)
	}
}

func leaseHolds(t *testing.T, ctx context.Context, client containerd.Client) {
	service := client.LeasesService()
	held := try(service.Create(ctx, containerd.Lease{}))(t)
	desc := put(t, containerd.WithLease(ctx, held.ID), client.ContentStore(), []byte("held"))
	want := []containerd.Resource{{Type: "content", ID: desc.Digest.String()}}
	if diff := cmp.Diff(want, try(service.ListResources(ctx, held.ID))(t)); diff != "" {
		t.Errorf("held: %s", diff)
	}
	if err := service.Delete(ctx, held.ID, true); err != nil {
		t.Fatal(err)
	}
	if _, err := client.ContentStore().Info(ctx, desc.Digest); !errdefs.IsNotFound(err) {
		t.Errorf("what nothing holds is still there: %v", err)
	}
}

func leaseNames(t *testing.T, ctx context.Context, client containerd.Client) {
	service := client.LeasesService()
	expires := time.Now().Add(time.Hour).Format(time.RFC3339)
	want := containerd.Lease{ID: "named", Labels: map[string]string{containerd.ExpireLabel: expires}}
	got := try(service.Create(ctx, want))(t)
	recent(t, got.CreatedAt)
	if _, err := service.Create(ctx, want); !errdefs.IsAlreadyExists(err) {
		t.Errorf("of a second one the error is %v", err)
	}
	listed := try(service.List(ctx, "id==named"))(t)
	if diff := cmp.Diff([]containerd.Lease{want}, listed, cmpopts.IgnoreTypes(time.Time{})); diff != "" {
		t.Errorf("listed: %s", diff)
	}
	if err := service.Delete(ctx, "named", false); err != nil {
		t.Fatal(err)
	}
	if err := service.Delete(ctx, "named", false); !errdefs.IsNotFound(err) {
		t.Errorf("of a second deletion the error is %v", err)
	}
	one, other := try(service.Create(ctx, containerd.Lease{}))(t), try(service.Create(ctx, containerd.Lease{}))(t)
	if one.ID == "" || one.ID == other.ID {
		t.Errorf("without a name they have %q and %q", one.ID, other.ID)
	}
	for _, l := range []containerd.Lease{one, other} {
		if err := service.Delete(ctx, l.ID, false); err != nil {
			t.Error(err)
		}
	}
}

func leaseResources(t *testing.T, ctx context.Context, client containerd.Client) {
	service := client.LeasesService()
	desc := put(t, ctx, client.ContentStore(), []byte("resource"))
	lease := try(service.Create(ctx, containerd.Lease{ID: "holds"}))(t)
	held := containerd.Resource{Type: "content", ID: desc.Digest.String()}
	if err := service.AddResource(ctx, lease.ID, held); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]containerd.Resource{held}, try(service.ListResources(ctx, lease.ID))(t)); diff != "" {
		t.Errorf("held: %s", diff)
	}
	if err := service.DeleteResource(ctx, lease.ID, held); err != nil {
		t.Fatal(err)
	}
	if all := try(service.ListResources(ctx, lease.ID))(t); len(all) != 0 {
		t.Errorf("still held: %v", all)
	}
	if err := service.Delete(ctx, lease.ID, false); err != nil {
		t.Error(err)
	}
	if err := service.AddResource(ctx, lease.ID, held); !errdefs.IsNotFound(err) {
		t.Errorf("of no lease the error is %v", err)
	}
}

func imageRecords(t *testing.T, ctx context.Context, client containerd.Client) {
	service := client.ImageService()
	times := cmpopts.IgnoreTypes(time.Time{})
	want := containerd.Image{
		Name: "registry.example/i:1", Labels: map[string]string{"a": "1", "b.c": "2"},
		Target: v1.Descriptor{MediaType: v1.MediaTypeImageManifest, Digest: digest.FromString("1"), Size: 1, Annotations: map[string]string{"n": "v"}},
	}
	got := try(service.Create(ctx, want))(t)
	if diff := cmp.Diff(want, got, times); diff != "" {
		t.Errorf("created: %s", diff)
	}
	recent(t, got.CreatedAt)
	if _, err := service.Create(ctx, want); !errdefs.IsAlreadyExists(err) {
		t.Errorf("of a second one the error is %v", err)
	}
	other := v1.Descriptor{MediaType: v1.MediaTypeImageIndex, Digest: digest.FromString("2"), Size: 2}
	for _, step := range []struct {
		fields []string
		image  containerd.Image
		change func()
	}{
		{[]string{"target"}, containerd.Image{Target: other, Labels: map[string]string{"a": "9"}}, func() { want.Target = other }},
		{[]string{"labels.b.c", "labels.d"}, containerd.Image{Labels: map[string]string{"a": "9", "d": "3"}, Target: want.Target}, func() {
			want.Labels = map[string]string{"a": "1", "d": "3"}
		}},
		{nil, containerd.Image{Labels: map[string]string{"e": "4"}, Target: other}, func() { want.Labels = map[string]string{"e": "4"} }},
	} {
		step.image.Name = want.Name
		if _, err := service.Update(ctx, step.image, step.fields...); err != nil {
			t.Fatal(err)
		}
		step.change()
		if diff := cmp.Diff(want, try(service.Get(ctx, want.Name))(t), times); diff != "" {
			t.Errorf("with %v changed: %s", step.fields, diff)
		}
	}
	if diff := cmp.Diff([]containerd.Image{want}, try(service.List(ctx, "name==another", "name=="+want.Name))(t), times); diff != "" {
		t.Errorf("listed: %s", diff)
	}
	if err := service.Delete(ctx, want.Name); err != nil {
		t.Fatal(err)
	}
	if err := service.Delete(ctx, want.Name); !errdefs.IsNotFound(err) {
		t.Errorf("of a second deletion the error is %v", err)
	}
	if _, err := service.Get(ctx, want.Name); !errdefs.IsNotFound(err) {
		t.Errorf("it is still there: %v", err)
	}
	if _, err := service.Update(ctx, want, "target"); !errdefs.IsNotFound(err) {
		t.Errorf("it is changed nevertheless: %v", err)
	}
}

func containerRecords(t *testing.T, ctx context.Context, client containerd.Client) {
	service := client.ContainerService()
	times := cmpopts.IgnoreTypes(time.Time{})
	want := containerd.Container{
		ID: "c", Labels: map[string]string{"a": "1"}, Image: "i", SnapshotKey: "c", Snapshotter: snapshotter,
		Runtime: containerd.Runtime{Name: "io.containerd.runc.v2", Options: &containerd.Any{Type: "containerd.runc.v1.Options", Value: []byte("\x22\x01r")}},
		Spec:    &containerd.Any{Type: "types.containerd.io/opencontainers/runtime-spec/1/Spec", Value: []byte("{}")},
		Extensions: map[string]containerd.Any{
			"x": {Type: "margolite.test/x", Value: []byte{0, 255}}, "y": {Type: "margolite.test/y", Value: []byte("y")},
		},
	}
	got := try(service.Create(ctx, want))(t)
	if diff := cmp.Diff(want, got, times); diff != "" {
		t.Errorf("created: %s", diff)
	}
	recent(t, got.CreatedAt)
	if _, err := service.Create(ctx, want); !errdefs.IsAlreadyExists(err) {
		t.Errorf("of a second one the error is %v", err)
	}
	spec := &containerd.Any{Type: want.Spec.Type, Value: []byte(`{"hostname":"c"}`)}
	for _, step := range []struct {
		fields []string
		with   containerd.Container
		change func()
	}{
		{[]string{"spec"}, containerd.Container{Spec: spec}, func() { want.Spec = spec }},
		{[]string{"labels.b"}, containerd.Container{Labels: map[string]string{"a": "9", "b": "2"}}, func() { want.Labels["b"] = "2" }},
		{[]string{"extensions.y"}, containerd.Container{Extensions: map[string]containerd.Any{"y": {Type: "margolite.test/y", Value: []byte("z")}}}, func() {
			want.Extensions["y"] = containerd.Any{Type: "margolite.test/y", Value: []byte("z")}
		}},
	} {
		step.with.ID = want.ID
		if _, err := service.Update(ctx, step.with, step.fields...); err != nil {
			t.Fatal(err)
		}
		step.change()
		if diff := cmp.Diff(want, try(service.Get(ctx, want.ID))(t), times); diff != "" {
			t.Errorf("with %v changed: %s", step.fields, diff)
		}
	}
	want.Labels = map[string]string{"c": "3"}
	if _, err := service.Update(ctx, want); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]containerd.Container{want}, try(service.List(ctx, "labels.c==3"))(t), times); diff != "" {
		t.Errorf("listed: %s", diff)
	}
	if _, err := client.TaskService().Get(ctx, want.ID, ""); !errdefs.IsNotFound(err) {
		t.Errorf("it runs: %v", err)
	}
	if err := service.Delete(ctx, want.ID); err != nil {
		t.Fatal(err)
	}
	if err := service.Delete(ctx, want.ID); !errdefs.IsNotFound(err) {
		t.Errorf("of a second deletion the error is %v", err)
	}
	if _, err := service.Get(ctx, want.ID); !errdefs.IsNotFound(err) {
		t.Errorf("it is still there: %v", err)
	}
}

func snapshots(t *testing.T, ctx context.Context, client containerd.Client) {
	service := client.SnapshotService(snapshotter)
	labels := map[string]string{"a": "b"}
	mounts := try(service.Prepare(ctx, "active", "", labels))(t)
	if len(mounts) == 0 {
		t.Error("it has no mounts")
	}
	if diff := cmp.Diff(mounts, try(service.Mounts(ctx, "active"))(t)); diff != "" {
		t.Errorf("mounts: %s", diff)
	}
	expect := func(key string, kind containerd.SnapshotKind, parent string, labels map[string]string) {
		t.Helper()
		got := try(service.Stat(ctx, key))(t)
		if got.Kind != kind || got.Parent != parent || got.Name != key || !cmp.Equal(got.Labels, labels, cmpopts.EquateEmpty()) {
			t.Errorf("%s is %+v", key, got)
		}
		recent(t, got.Created)
	}
	expect("active", containerd.KindActive, "", labels)
	if _, err := service.Prepare(ctx, "active", "", nil); !errdefs.IsAlreadyExists(err) {
		t.Errorf("of a second one the error is %v", err)
	}
	if err := service.Commit(ctx, "committed", "active", map[string]string{"c": "d"}); err != nil {
		t.Fatal(err)
	}
	expect("committed", containerd.KindCommitted, "", map[string]string{"c": "d"})
	if _, err := service.Stat(ctx, "active"); !errdefs.IsNotFound(err) {
		t.Errorf("it is still active: %v", err)
	}
	if _, err := service.Prepare(ctx, "child", "committed", nil); err != nil {
		t.Fatal(err)
	}
	expect("child", containerd.KindActive, "committed", nil)
	if err := service.Remove(ctx, "committed"); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("of one that is needed the error is %v", err)
	}
	if got := try(service.List(ctx, "name==child", "name==other"))(t); len(got) != 1 || got[0].Name != "child" || got[0].Kind != containerd.KindActive {
		t.Errorf("listed are %+v", got)
	}
	for _, key := range []string{"child", "committed"} {
		if err := service.Remove(ctx, key); err != nil {
			t.Error(err)
		}
		if err := service.Remove(ctx, key); !errdefs.IsNotFound(err) {
			t.Errorf("of a second removal of %s the error is %v", key, err)
		}
	}
	if _, err := service.Prepare(ctx, "orphan", "none", nil); !errdefs.IsNotFound(err) {
		t.Errorf("on nothing there is one: %v", err)
	}
}

func layer(t *testing.T, ctx context.Context, client containerd.Client) {
	var unpacked bytes.Buffer
	w := tar.NewWriter(&unpacked)
	if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "file", Mode: 0o600, Size: 4}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write([]byte("text")); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	desc := put(t, ctx, client.ContentStore(), unpacked.Bytes())
	desc.MediaType = v1.MediaTypeImageLayer
	mounts := try(client.SnapshotService(snapshotter).Prepare(ctx, "layer", "", nil))(t)
	got := try(client.DiffService().Apply(ctx, desc, mounts))(t)
	if got.Digest != desc.Digest || got.Size != desc.Size || got.MediaType != v1.MediaTypeImageLayer {
		t.Errorf("unpacked is %+v", got)
	}
	// What is on nothing is a directory that containerd wants bound.
	if text, err := os.ReadFile(filepath.Join(mounts[0].Source, "file")); err != nil || string(text) != "text" {
		t.Errorf("it has %q, %v", text, err)
	}
	if _, err := client.DiffService().Apply(ctx, v1.Descriptor{MediaType: v1.MediaTypeImageLayer, Digest: digest.FromString("none"), Size: 1}, mounts); !errdefs.IsNotFound(err) {
		t.Errorf("of no layer the error is %v", err)
	}
	if err := client.SnapshotService(snapshotter).Remove(ctx, "layer"); err != nil {
		t.Error(err)
	}
}

func events(t *testing.T, ctx context.Context, client containerd.Client) {
	service := client.EventService()
	listening, stop := context.WithCancel(ctx)
	defer stop()
	come, ended := service.Subscribe(listening, `topic=="/test/yes"`)
	again := time.NewTicker(20 * time.Millisecond) // nothing tells when the subscription has begun
	defer again.Stop()
	for came := false; !came; {
		select {
		case event := <-come:
			if event != (containerd.Event{Namespace: containerdtest.Namespace, Topic: "/test/yes"}) {
				t.Fatalf("came %+v", event)
			}
			came = true
		case <-again.C:
			for _, topic := range []string{"/test/no", "/test/yes"} {
				if err := service.Publish(ctx, topic); err != nil {
					t.Fatal(err)
				}
			}
		case err := <-ended:
			t.Fatal(err)
		}
	}
	stop()
	for {
		select {
		case <-come: // had been published before
			continue
		case err, more := <-ended:
			if more && !errors.Is(err, context.Canceled) {
				t.Errorf("it ended with %v", err)
			}
		}
		break
	}
}

func namespaces(t *testing.T, ctx context.Context, client containerd.Client) {
	official := containerdtest.Official(t, client)
	if err := official.NamespaceService().SetLabel(ctx, containerdtest.Namespace, "a", "b"); err != nil {
		t.Fatal(err)
	}
	for label, want := range map[string]string{"a": "b", "none": ""} {
		if got, err := client.GetLabel(ctx, label); err != nil || got != want {
			t.Errorf("label %s is %q, %v", label, got, err)
		}
	}
	if err := official.NamespaceService().Create(ctx, "other", nil); err != nil {
		t.Fatal(err)
	}
	record := containerd.Image{Name: "own", Target: v1.Descriptor{MediaType: v1.MediaTypeImageManifest, Digest: digest.FromString("1"), Size: 1}}
	other := containerd.WithLease(containerd.WithNamespace(ctx, "other"), "")
	for _, ctx := range []context.Context{ctx, other} {
		if _, err := client.ImageService().Create(ctx, record); err != nil {
			t.Errorf("it is in both namespaces: %v", err)
		}
		if err := client.ImageService().Delete(ctx, record.Name); err != nil {
			t.Error(err)
		}
	}
	// The client's own is where no other is named.
	if got, err := client.GetLabel(t.Context(), "a"); err != nil || got != "b" {
		t.Errorf("label is %q, %v", got, err)
	}
	if err := official.NamespaceService().Delete(ctx, "other"); err != nil {
		t.Error(err)
	}
}

func plugins(t *testing.T, ctx context.Context, client containerd.Client) {
	got := try(client.Plugins(ctx, "type==io.containerd.snapshotter.v1,id=="+snapshotter))(t)
	if len(got) != 1 || got[0].Type != "io.containerd.snapshotter.v1" || got[0].ID != snapshotter || got[0].Exports["root"] == "" {
		t.Errorf("it is %+v", got)
	}
	if got := try(client.Plugins(ctx, "id==none"))(t); len(got) != 0 {
		t.Errorf("there are %+v", got)
	}
}

// try ends the test where a call fails.
func try[T any](got T, err error) func(*testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
}

func put(t *testing.T, ctx context.Context, store containerd.ContentStore, blob []byte) v1.Descriptor {
	t.Helper()
	desc := describe(blob)
	w := try(store.Writer(ctx, desc.Digest.String(), desc))(t)
	write(t, w, blob)
	if err := w.Commit(ctx, desc.Size, desc.Digest, nil); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Error(err)
	}
	return desc
}

func write(t *testing.T, w io.Writer, data []byte) {
	t.Helper()
	if n, err := w.Write(data); err != nil || n != len(data) {
		t.Fatalf("written are %d bytes of %d, %v", n, len(data), err)
	}
}

func expectContent(t *testing.T, ctx context.Context, store containerd.ContentStore, want []byte) {
	t.Helper()
	r := try(store.Open(ctx, digest.FromBytes(want)))(t)
	defer r.Close()
	got, err := io.ReadAll(io.NewSectionReader(r, 0, r.Size()+1))
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("it has %d bytes, want %d: %v", len(got), len(want), err)
	}
}

func describe(blob []byte) v1.Descriptor {
	return v1.Descriptor{Digest: digest.FromBytes(blob), Size: int64(len(blob))}
}

func random(size int) []byte {
	blob := make([]byte, size)
	source := rand.NewChaCha8([32]byte{})
	_, _ = source.Read(blob) // never fails
	return blob
}

// recent expects a time of this test.
func recent(t *testing.T, at time.Time) {
	t.Helper()
	if age := time.Since(at); age < -time.Minute || age > time.Hour {
		t.Errorf("it is of %s", at)
	}
}
