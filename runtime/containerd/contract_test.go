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

	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs"
	"github.com/containerd/typeurl/v2"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/margolite/margolite/runtime/containerd"
	"github.com/margolite/margolite/test/containerdtest"
)

const snapshotter = "overlayfs"

// What the runtime relies on is kept by the containerd inside, asked directly or over its socket, as well as by the older
// one of Debian. Processes are what the tests of runtime and runtime/container are about.
func TestContract(t *testing.T) {
	for _, backend := range append(containerdtest.Backends(), containerdtest.Backend{Name: "embedded, over its socket", Start: overSocket}) {
		t.Run(backend.Name, func(t *testing.T) {
			if testing.Short() && backend.OtherShim {
				t.Skip("in make test-all: the system's containerd")
			}
			client := backend.Start(t)
			for name, test := range map[string]func(*testing.T, context.Context, containerd.Client){
				"a blob is written in parts":           blobInParts,
				"a blob that is not what it should be": blobRefused,
				"a blob that is there":                 blobThere,
				"a blob has labels":                    blobLabels,
				"an ingest is dropped":                 ingestDropped,
				"a lease holds what is made with it":   leaseHolds,
				"a lease is created once":              leaseNames,
				"a lease is given what it holds":       leaseResources,
				"an image has a name":                  imageRecords,
				"a container has a record":             containerRecords,
				"a snapshot is on another":             snapshotTree,
				"a layer is unpacked":                  layer,
				"events are passed on":                 events,
				"a namespace has labels":               namespaceLabels,
				"containerd names its directories":     directories,
				"its socket is known":                  address,
			} {
				t.Run(name, func(t *testing.T) {
					ctx := containerdtest.Context(t)
					lease := try(client.LeasesService().Create(ctx, leases.WithRandomID()))(t)
					test(t, leases.WithLease(ctx, lease.ID), client)
					if err := client.LeasesService().Delete(ctx, lease, leases.SynchronousDelete); err != nil {
						t.Error(err)
					}
				})
			}
		})
	}
}

func overSocket(t testing.TB) containerd.Client {
	client, err := containerd.Connect(t.Context(), containerd.Address(containerdtest.Embedded(t)), containerdtest.Namespace)
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
	half := int64(len(blob) / 2)
	open := func(ctx context.Context) (content.Writer, error) {
		return store.Writer(ctx, content.WithRef("parts"), content.WithDescriptor(desc))
	}
	offset := func(w content.Writer) int64 { return try(w.Status())(t).Offset }

	// Closed and with its context ended, a writer lets go of what it has written.
	writing, end := context.WithCancel(ctx)
	defer end()
	w := try(open(writing))(t)
	if at := offset(w); at != 0 {
		t.Errorf("it begins at %d", at)
	}
	write(t, w, blob[:half])
	if _, err := open(ctx); !errdefs.IsUnavailable(err) {
		t.Errorf("of a second writer the error is %v", err)
	}
	if got := try(store.Status(ctx, "parts"))(t); got.Offset != half || got.Total != desc.Size {
		t.Errorf("status is %+v", got)
	}
	if got := try(store.ListStatuses(ctx, "ref==parts"))(t); len(got) != 1 || got[0].Offset != half {
		t.Errorf("ingests are %+v", got)
	}
	if _, err := store.Info(ctx, desc.Digest); !errdefs.IsNotFound(err) {
		t.Errorf("half a blob is one: %v", err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	end()

	w, err := open(ctx)
	for deadline := time.Now().Add(10 * time.Second); errdefs.IsUnavailable(err) && time.Now().Before(deadline); w, err = open(ctx) {
		time.Sleep(time.Millisecond)
	}
	if err != nil {
		t.Fatal(err)
	}
	if at := offset(w); at != half {
		t.Errorf("it goes on at %d, want %d", at, half)
	}
	write(t, w, blob[half:])
	if err := w.Commit(ctx, desc.Size, desc.Digest); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Error(err)
	}
	info := try(store.Info(ctx, desc.Digest))(t)
	if info.Size != desc.Size {
		t.Errorf("info is %+v", info)
	}
	recent(t, info.CreatedAt)
	if _, err := store.Status(ctx, "parts"); !errdefs.IsNotFound(err) {
		t.Errorf("the ingest is still there: %v", err)
	}
	expectContent(t, ctx, store, blob)
	if _, err := store.ReaderAt(ctx, v1.Descriptor{Digest: digest.FromString("none")}); !errdefs.IsNotFound(err) {
		t.Errorf("another is opened: %v", err)
	}
}

func blobRefused(t *testing.T, ctx context.Context, client containerd.Client) {
	blob := []byte("refused")
	for ref, wanted := range map[string]v1.Descriptor{
		"another digest": {Digest: digest.FromString("x"), Size: int64(len(blob))},
		"another size":   {Digest: digest.FromBytes(blob), Size: int64(len(blob)) + 1},
	} {
		w := try(client.ContentStore().Writer(ctx, content.WithRef(ref), content.WithDescriptor(wanted)))(t)
		write(t, w, blob)
		if err := w.Commit(ctx, wanted.Size, wanted.Digest); !errdefs.IsFailedPrecondition(err) {
			t.Errorf("of %s the error is %v", ref, err)
		}
		_ = w.Close()
		if _, err := client.ContentStore().Info(ctx, wanted.Digest); !errdefs.IsNotFound(err) {
			t.Errorf("%s: %v", ref, err)
		}
	}
}

func blobThere(t *testing.T, ctx context.Context, client containerd.Client) {
	store := client.ContentStore()
	blob := []byte("there")
	late := try(store.Writer(ctx, content.WithRef("late")))(t)
	write(t, late, blob)
	put(t, ctx, store, blob)
	if err := late.Commit(ctx, int64(len(blob)), digest.FromBytes(blob)); !errdefs.IsAlreadyExists(err) {
		t.Errorf("of a second commit the error is %v", err)
	}
	_ = late.Close()
	if _, err := store.Status(ctx, "late"); !errdefs.IsNotFound(err) {
		t.Errorf("the second ingest is still there: %v", err)
	}
	_, err := store.Writer(ctx, content.WithRef("too late"), content.WithDescriptor(describe(blob)))
	if !errdefs.IsAlreadyExists(err) {
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
	} {
		var fields []string
		for key := range step.set {
			fields = append(fields, "labels."+key)
		}
		if _, err := store.Update(ctx, content.Info{Digest: desc.Digest, Labels: step.set}, fields...); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(step.want, try(store.Info(ctx, desc.Digest))(t).Labels); diff != "" {
			t.Errorf("with %v: %s", step.set, diff)
		}
	}
}

func ingestDropped(t *testing.T, ctx context.Context, client containerd.Client) {
	store := client.ContentStore()
	writing, end := context.WithCancel(ctx)
	w := try(store.Writer(writing, content.WithRef("dropped")))(t)
	write(t, w, []byte("dropped"))
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	end()
	// Behind a socket it is closed some time later.
	err := store.Abort(ctx, "dropped")
	for deadline := time.Now().Add(10 * time.Second); err != nil && time.Now().Before(deadline); err = store.Abort(ctx, "dropped") {
		time.Sleep(10 * time.Millisecond)
	}
	if err != nil {
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
	held := try(service.Create(ctx, leases.WithRandomID()))(t)
	desc := put(t, leases.WithLease(ctx, held.ID), client.ContentStore(), []byte("held"))
	want := []leases.Resource{{Type: "content", ID: desc.Digest.String()}}
	if diff := cmp.Diff(want, try(service.ListResources(ctx, held))(t)); diff != "" {
		t.Errorf("held: %s", diff)
	}
	if err := service.Delete(ctx, held, leases.SynchronousDelete); err != nil {
		t.Fatal(err)
	}
	if _, err := client.ContentStore().Info(ctx, desc.Digest); !errdefs.IsNotFound(err) {
		t.Errorf("what nothing holds is still there: %v", err)
	}
}

func leaseNames(t *testing.T, ctx context.Context, client containerd.Client) {
	service := client.LeasesService()
	got := try(service.Create(ctx, leases.WithID("named"), leases.WithLabel("a", "b"), leases.WithExpiration(time.Hour)))(t)
	recent(t, got.CreatedAt)
	if _, err := service.Create(ctx, leases.WithID("named")); !errdefs.IsAlreadyExists(err) {
		t.Errorf("of a second one the error is %v", err)
	}
	if listed := try(service.List(ctx, "id==named"))(t); len(listed) != 1 || listed[0].Labels["a"] != "b" {
		t.Errorf("listed are %+v", listed)
	}
	if err := service.Delete(ctx, got); err != nil {
		t.Fatal(err)
	}
	if err := service.Delete(ctx, got); !errdefs.IsNotFound(err) {
		t.Errorf("of a second deletion the error is %v", err)
	}
}

func leaseResources(t *testing.T, ctx context.Context, client containerd.Client) {
	service := client.LeasesService()
	desc := put(t, ctx, client.ContentStore(), []byte("resource"))
	lease := try(service.Create(ctx, leases.WithID("holds")))(t)
	held := leases.Resource{Type: "content", ID: desc.Digest.String()}
	if err := service.AddResource(ctx, lease, held); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]leases.Resource{held}, try(service.ListResources(ctx, lease))(t)); diff != "" {
		t.Errorf("held: %s", diff)
	}
	if err := service.DeleteResource(ctx, lease, held); err != nil {
		t.Fatal(err)
	}
	if all := try(service.ListResources(ctx, lease))(t); len(all) != 0 {
		t.Errorf("still held: %v", all)
	}
	if err := service.Delete(ctx, lease); err != nil {
		t.Error(err)
	}
	if err := service.AddResource(ctx, lease, held); !errdefs.IsNotFound(err) {
		t.Errorf("of no lease the error is %v", err)
	}
}

func imageRecords(t *testing.T, ctx context.Context, client containerd.Client) {
	service := client.ImageService()
	times := cmpopts.IgnoreTypes(time.Time{})
	want := images.Image{
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
	changed := images.Image{Name: want.Name, Labels: map[string]string{"a": "9", "d": "3"}, Target: want.Target}
	if _, err := service.Update(ctx, changed, "labels.b.c", "labels.d"); err != nil {
		t.Fatal(err)
	}
	want.Labels = map[string]string{"a": "1", "d": "3"}
	if diff := cmp.Diff(want, try(service.Get(ctx, want.Name))(t), times); diff != "" {
		t.Errorf("with two labels changed: %s", diff)
	}
	if diff := cmp.Diff([]images.Image{want}, try(service.List(ctx, "name==another", "name=="+want.Name))(t), times); diff != "" {
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
	if _, err := service.Update(ctx, want, "labels.a"); !errdefs.IsNotFound(err) {
		t.Errorf("it is changed nevertheless: %v", err)
	}
}

func containerRecords(t *testing.T, ctx context.Context, client containerd.Client) {
	service := client.ContainerService()
	same := []cmp.Option{protocmp.Transform(), cmpopts.IgnoreTypes(time.Time{})}
	typed := func(kind, value string) *anypb.Any { return &anypb.Any{TypeUrl: kind, Value: []byte(value)} }
	want := containers.Container{
		ID: "c", Labels: map[string]string{"a": "1"}, Image: "i", SnapshotKey: "c", Snapshotter: snapshotter,
		Runtime:    containers.RuntimeInfo{Name: "io.containerd.runc.v2", Options: typed("containerd.runc.v1.Options", "\x22\x01r")},
		Spec:       typed("types.containerd.io/opencontainers/runtime-spec/1/Spec", "{}"),
		Extensions: map[string]typeurl.Any{"x": typed("margolite.test/x", "\x00\xff"), "y": typed("margolite.test/y", "y")},
	}
	got := try(service.Create(ctx, want))(t)
	if diff := cmp.Diff(want, got, same...); diff != "" {
		t.Errorf("created: %s", diff)
	}
	recent(t, got.CreatedAt)
	if _, err := service.Create(ctx, want); !errdefs.IsAlreadyExists(err) {
		t.Errorf("of a second one the error is %v", err)
	}
	spec := typed("types.containerd.io/opencontainers/runtime-spec/1/Spec", `{"hostname":"c"}`)
	for _, step := range []struct {
		field  string
		with   containers.Container
		change func()
	}{
		{"spec", containers.Container{ID: "c", Spec: spec}, func() { want.Spec = spec }},
		{"labels.b", containers.Container{ID: "c", Labels: map[string]string{"a": "9", "b": "2"}}, func() { want.Labels["b"] = "2" }},
	} {
		if _, err := service.Update(ctx, step.with, step.field); err != nil {
			t.Fatal(err)
		}
		step.change()
		if diff := cmp.Diff(want, try(service.Get(ctx, want.ID))(t), same...); diff != "" {
			t.Errorf("with %s changed: %s", step.field, diff)
		}
	}
	if diff := cmp.Diff([]containers.Container{want}, try(service.List(ctx, "labels.b==2"))(t), same...); diff != "" {
		t.Errorf("listed: %s", diff)
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

func snapshotTree(t *testing.T, ctx context.Context, client containerd.Client) {
	service := client.SnapshotService(snapshotter)
	mounts := try(service.Prepare(ctx, "active", "", snapshots.WithLabels(map[string]string{"a": "b"})))(t)
	if len(mounts) == 0 {
		t.Error("it has no mounts")
	}
	if diff := cmp.Diff(mounts, try(service.Mounts(ctx, "active"))(t)); diff != "" {
		t.Errorf("mounts: %s", diff)
	}
	expect := func(key string, kind snapshots.Kind, parent string) {
		t.Helper()
		if got := try(service.Stat(ctx, key))(t); got.Kind != kind || got.Parent != parent || got.Name != key {
			t.Errorf("%s is %+v", key, got)
		}
	}
	expect("active", snapshots.KindActive, "")
	if _, err := service.Prepare(ctx, "active", ""); !errdefs.IsAlreadyExists(err) {
		t.Errorf("of a second one the error is %v", err)
	}
	if err := service.Commit(ctx, "committed", "active"); err != nil {
		t.Fatal(err)
	}
	expect("committed", snapshots.KindCommitted, "")
	if _, err := service.Stat(ctx, "active"); !errdefs.IsNotFound(err) {
		t.Errorf("it is still active: %v", err)
	}
	if _, err := service.Prepare(ctx, "child", "committed"); err != nil {
		t.Fatal(err)
	}
	expect("child", snapshots.KindActive, "committed")
	if err := service.Remove(ctx, "committed"); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("of one that is needed the error is %v", err)
	}
	var found []string
	err := service.Walk(ctx, func(_ context.Context, info snapshots.Info) error {
		found = append(found, info.Name)
		return nil
	}, "name==child", "name==other")
	if err != nil || !cmp.Equal(found, []string{"child"}) {
		t.Errorf("listed are %v, %v", found, err)
	}
	for _, key := range []string{"child", "committed"} {
		if err := service.Remove(ctx, key); err != nil {
			t.Error(err)
		}
		if err := service.Remove(ctx, key); !errdefs.IsNotFound(err) {
			t.Errorf("of a second removal of %s the error is %v", key, err)
		}
	}
	if _, err := service.Prepare(ctx, "orphan", "none"); !errdefs.IsNotFound(err) {
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
	mounts := try(client.SnapshotService(snapshotter).Prepare(ctx, "layer", ""))(t)
	got := try(client.DiffService().Apply(ctx, desc, mounts))(t)
	if got.Digest != desc.Digest || got.Size != desc.Size || got.MediaType != v1.MediaTypeImageLayer {
		t.Errorf("unpacked is %+v", got)
	}
	// What is on nothing is a directory that containerd wants bound.
	written := containerd.WrittenDirs(mounts)
	if text, err := os.ReadFile(filepath.Join(written[0], "file")); err != nil || string(text) != "text" {
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
			if event.Namespace != containerdtest.Namespace || event.Topic != "/test/yes" {
				t.Fatalf("came %+v", event)
			}
			came = true
		case <-again.C:
			for _, topic := range []string{"/test/no", "/test/yes"} {
				if err := service.Publish(ctx, topic, &emptypb.Empty{}); err != nil {
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
		case err := <-ended:
			if err != nil && !errors.Is(err, context.Canceled) {
				t.Errorf("it ended with %v", err)
			}
		}
		break
	}
}

func namespaceLabels(t *testing.T, ctx context.Context, client containerd.Client) {
	official := containerdtest.Official(t, client)
	if err := official.NamespaceService().SetLabel(ctx, containerdtest.Namespace, "a", "b"); err != nil {
		t.Fatal(err)
	}
	for label, want := range map[string]string{"a": "b", "none": ""} {
		if got, err := client.GetLabel(ctx, label); err != nil || got != want {
			t.Errorf("label %s is %q, %v", label, got, err)
		}
	}
	other := namespaces.WithNamespace(ctx, "other")
	if got, err := client.GetLabel(other, "a"); err != nil || got != "" {
		t.Errorf("another namespace has the label %q, %v", got, err)
	}
	// The client's own is where no other is named.
	if got, err := client.GetLabel(t.Context(), "a"); err != nil || got != "b" {
		t.Errorf("label is %q, %v", got, err)
	}
}

func directories(t *testing.T, ctx context.Context, client containerd.Client) {
	got := try(client.IntrospectionService().Plugins(ctx, "type==io.containerd.snapshotter.v1,id=="+snapshotter))(t).Plugins
	if len(got) != 1 || got[0].ID != snapshotter || got[0].Exports["root"] == "" {
		t.Errorf("it is %+v", got)
	}
}

func address(t *testing.T, _ context.Context, client containerd.Client) {
	if stat, err := os.Stat(containerd.Address(client)); err != nil || stat.Mode()&os.ModeSocket == 0 {
		t.Errorf("%q is none: %v", containerd.Address(client), err)
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

func put(t *testing.T, ctx context.Context, store content.Store, blob []byte) v1.Descriptor {
	t.Helper()
	desc := describe(blob)
	if err := content.WriteBlob(ctx, store, desc.Digest.String(), bytes.NewReader(blob), desc); err != nil {
		t.Fatal(err)
	}
	return desc
}

func write(t *testing.T, w io.Writer, data []byte) {
	t.Helper()
	if n, err := w.Write(data); err != nil || n != len(data) {
		t.Fatalf("written are %d bytes of %d, %v", n, len(data), err)
	}
}

func expectContent(t *testing.T, ctx context.Context, store content.Store, want []byte) {
	t.Helper()
	got, err := content.ReadBlob(ctx, store, describe(want))
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
