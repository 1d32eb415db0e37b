package embedded_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/margolite/margolite/runtime/containerd"
	"github.com/margolite/margolite/runtime/embedded"
	"github.com/margolite/margolite/test/containerdtest"
	"github.com/margolite/margolite/test/expect"
)

// rot is what a damaged database begins with here.
var rot = []byte("rot")

func checked(path string) error {
	data, err := os.ReadFile(path)
	if err == nil && bytes.HasPrefix(data, rot) {
		err = fmt.Errorf("%w: %s", embedded.ErrDamaged, rot)
	}
	return err
}

// Wherever the power goes while a database is made anew, the next start goes on:
// content is known, new snapshots have room, and only the last database that was
// damaged is kept.
func TestAPowerCutWhileADatabaseIsMadeAnew(t *testing.T) {
	if testing.Short() {
		t.Skip("in make test-all: damage at every point")
	}
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	const metadata, snapshotter = "io.containerd.metadata.v1.bolt/meta.db", "io.containerd.snapshotter.v1.overlayfs"
	ctx := containerdtest.Context(t)
	text := []byte("what an image consists of")
	blob := ocispec.Descriptor{Digest: digest.FromBytes(text), Size: int64(len(text))}
	for name, cut := range map[string]func(root string) error{
		"before anything": func(string) error { return nil },
		"with the database of the snapshots gone": func(root string) error {
			return os.Remove(filepath.Join(root, snapshotter, "metadata.db"))
		},
		"with snapshots moved": func(root string) error {
			return os.Rename(filepath.Join(root, snapshotter, "snapshots"), filepath.Join(root, snapshotter, "lost-1"))
		},
		"with a new one that is empty": func(root string) error {
			return errors.Join(os.Rename(filepath.Join(root, metadata), filepath.Join(root, metadata+".bad")),
				os.WriteFile(filepath.Join(root, metadata), nil, 0o600))
		},
		"with the damaged one kept twice": func(root string) error {
			return os.Link(filepath.Join(root, metadata), filepath.Join(root, metadata+".bad"))
		},
		"with a former one kept": func(root string) error {
			return os.WriteFile(filepath.Join(root, metadata+".bad"), []byte("former"), 0o600)
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := containerdtest.Dir(t)
			root := filepath.Join(dir, "root")
			run := func(do func(client *client.Client)) {
				t.Helper()
				server := expect.Value(embedded.Start(t.Context(), embedded.Options{
					Root: root, State: filepath.Join(dir, "state"), Logger: containerdtest.Logger(t),
					Check: checked, Namespace: containerdtest.Namespace,
				}))(t)
				client, err := server.Client(t.Context(), containerdtest.Namespace)
				if err == nil {
					do(client)
					err = client.Close()
				}
				check(t, errors.Join(err, server.Close()))
			}
			run(func(client *client.Client) {
				expect.Value(client.LeasesService().Create(ctx, leases.WithID("test")))(t)
				held := leases.WithLease(ctx, "test")
				check(t, content.WriteBlob(held, client.ContentStore(), "test", bytes.NewReader(text), blob))
				expect.Value(client.SnapshotService("overlayfs").Prepare(held, "test", ""))(t)
			})
			_ = os.Remove(filepath.Join(root, "closed")) // it was killed
			check(t, os.WriteFile(filepath.Join(root, metadata), rot, 0o600))
			check(t, cut(root))
			for range 2 {
				run(func(client *client.Client) {
					expect.Equal(t, expect.Value(client.ContentStore().Info(ctx, blob.Digest))(t).Size, blob.Size, "the content")
					held, err := client.LeasesService().ListResources(ctx, leases.Lease{ID: containerd.RecoveredLease})
					expect.True(t, err == nil && len(held) == 1 && held[0].ID == blob.Digest.String(), "it is held: %+v, %v", held, err)
					snapshots := client.SnapshotService("overlayfs")
					if info, err := snapshots.Stat(ctx, "test"); !errdefs.IsNotFound(err) {
						t.Errorf("the snapshot is there: %+v, %v", info, err)
					}
					expect.OK(t, expect.ErrorOf(snapshots.Prepare(ctx, "new", "")))
					expect.OK(t, snapshots.Remove(ctx, "new"))
				})
			}
			expect.Equal(t, string(expect.Value(os.ReadFile(filepath.Join(root, metadata+".bad")))(t)), string(rot), "kept")
			expect.Equal(t, expect.Value(filepath.Glob(filepath.Join(root, snapshotter, "lost-*")))(t), nil, "left")
		})
	}
}

var check = expect.Check
