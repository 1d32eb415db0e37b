package containerd_test

import (
	"bytes"
	"context"
	"os"
	"testing"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/margolite/margolite/runtime/containerd"
	"github.com/margolite/margolite/test/containerdtest"
	"github.com/margolite/margolite/test/expect"
)

const snapshotter = "overlayfs"

// What the runtime relies on is kept by the containerd inside, asked directly or over its socket, as well as by the older
// one of Debian. The tests of runtime/image are about records, content, snapshots and layers, those of runtime/container about
// records, processes, leases and labels, on each of them, too.
func TestContract(t *testing.T) {
	for _, backend := range append(containerdtest.Backends(), containerdtest.Backend{Name: "embedded, over its socket", Start: overSocket}) {
		t.Run(backend.Name, func(t *testing.T) {
			if testing.Short() && backend.OtherShim {
				t.Skip("in make test-all: the system's containerd")
			}
			client := backend.Start(t)
			for name, test := range map[string]func(*testing.T, context.Context, containerd.Client){
				"a lease is given what it holds":   leaseResources,
				"a namespace has labels":           namespaceLabels,
				"containerd names its directories": directories,
				"its socket is known":              address,
			} {
				t.Run(name, func(t *testing.T) {
					ctx := containerdtest.Context(t)
					lease := expect.Value(client.LeasesService().Create(ctx, leases.WithRandomID()))(t)
					test(t, leases.WithLease(ctx, lease.ID), client)
					expect.OK(t, client.LeasesService().Delete(ctx, lease, leases.SynchronousDelete))
				})
			}
		})
	}
}

func overSocket(t testing.TB) containerd.Client {
	client := expect.Value(containerd.Connect(t.Context(), containerd.Address(containerdtest.Embedded(t)), containerdtest.Namespace))(t)
	t.Cleanup(func() { client.Close() })
	return client
}

func leaseResources(t *testing.T, ctx context.Context, client containerd.Client) {
	service := client.LeasesService()
	desc := put(t, ctx, client.ContentStore(), []byte("resource"))
	lease := expect.Value(service.Create(ctx, leases.WithID("holds")))(t)
	held := leases.Resource{Type: "content", ID: desc.Digest.String()}
	check(t, service.AddResource(ctx, lease, held))
	expect.Equal(t, expect.Value(service.ListResources(ctx, lease))(t), []leases.Resource{held}, "held")
	check(t, service.DeleteResource(ctx, lease, held))
	expect.Equal(t, len(expect.Value(service.ListResources(ctx, lease))(t)), 0, "resources still held")
	expect.OK(t, service.Delete(ctx, lease))
	expect.Equal(t, errdefs.IsNotFound(service.AddResource(ctx, lease, held)), true, "no lease is found")
}

func namespaceLabels(t *testing.T, ctx context.Context, client containerd.Client) {
	official := containerdtest.Official(t, client)
	check(t, official.NamespaceService().SetLabel(ctx, containerdtest.Namespace, "a", "b"))
	for label, want := range map[string]string{"a": "b", "none": ""} {
		expect.Equal(t, expect.Value(client.GetLabel(ctx, label))(t), want, "label %s", label)
	}
	other := namespaces.WithNamespace(ctx, "other")
	expect.Equal(t, expect.Value(client.GetLabel(other, "a"))(t), "", "label of another namespace")
	// The client's own is where no other is named.
	expect.Equal(t, expect.Value(client.GetLabel(t.Context(), "a"))(t), "b", "label")
}

func directories(t *testing.T, ctx context.Context, client containerd.Client) {
	got := expect.Value(client.IntrospectionService().Plugins(ctx, "type==io.containerd.snapshotter.v1,id=="+snapshotter))(t).Plugins
	expect.True(t, len(got) == 1 && got[0].ID == snapshotter && got[0].Exports["root"] != "", "it is %+v", got)
}

func address(t *testing.T, _ context.Context, client containerd.Client) {
	if stat, err := os.Stat(containerd.Address(client)); err != nil || stat.Mode()&os.ModeSocket == 0 {
		t.Errorf("%q is none: %v", containerd.Address(client), err)
	}
}

func put(t *testing.T, ctx context.Context, store content.Store, blob []byte) v1.Descriptor {
	t.Helper()
	desc := v1.Descriptor{Digest: digest.FromBytes(blob), Size: int64(len(blob))}
	check(t, content.WriteBlob(ctx, store, desc.Digest.String(), bytes.NewReader(blob), desc))
	return desc
}
