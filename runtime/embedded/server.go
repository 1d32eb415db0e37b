package embedded

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"

	containersapi "github.com/containerd/containerd/api/services/containers/v1"
	imagesapi "github.com/containerd/containerd/api/services/images/v1"
	namespacesapi "github.com/containerd/containerd/api/services/namespaces/v1"
	tasksapi "github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/introspection"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/core/metadata"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/defaults"
	"github.com/containerd/containerd/v2/plugins"
	"github.com/containerd/containerd/v2/plugins/services"
	"github.com/containerd/errdefs"
	"github.com/containerd/plugin"

	"github.com/margolite/margolite/runtime/fault"
)

// Server is a containerd in this process.
type Server struct {
	address     string // of the gRPC socket; shims publish to the address with .ttrpc behind it
	snapshotter string // "overlayfs" where the kernel and the file system of the root can do it, else "native"

	plugins *plugin.Set
	sockets *sockets
	shims   *shims
	closed  string // the file that tells of an end in order
	sweep   bool   // there was none

	stop    context.CancelFunc
	running sync.WaitGroup // the garbage collector
	behind  atomic.Bool    // it still has to look at files
}

// Start opens the root, reconnects to running shims, and serves the sockets until Close.
func Start(ctx context.Context, o Options) (*Server, error) {
	o.Logger = cmp.Or(o.Logger, slog.New(slog.DiscardHandler))
	// Only root may read Root; a container with its own users passes through State to its bundle.
	if err := errors.Join(os.MkdirAll(o.Root, 0o700), os.Chmod(o.Root, 0o700), os.MkdirAll(o.State, 0o711)); err != nil {
		return nil, fmt.Errorf("cannot create directory for containerd: %w", err)
	}
	forwardLog(o.Logger)

	// Plugins live as long as the server, not the call.
	ctx, stop := context.WithCancel(context.WithoutCancel(ctx))
	s := &Server{
		address: filepath.Join(o.State, "containerd.sock"), snapshotter: chooseSnapshotter(o.Root), stop: stop,
		plugins: plugin.NewPluginSet(), shims: &shims{found: Shim{Path: o.Shim}},
	}
	if err := s.start(ctx, o); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

func (s *Server) start(ctx context.Context, o Options) error {
	if err := clearBundles(ctx, o); err != nil {
		o.Logger.Warn("cannot clean up after a killed containerd", "error", err)
	}
	files := databases{o}
	closed, err := files.repair()
	if err != nil {
		return err
	}
	s.closed, s.sweep = files.closed(), !closed
	if err := s.initPlugins(ctx, o); err != nil {
		return err
	}
	if err := s.endStrays(ctx, o.Logger); err != nil {
		return err
	}
	if err := files.removeLost(ctx); err != nil {
		o.Logger.Warn("lost snapshots still take space", "error", err)
	}
	takeRoom(o.Root)
	if err := clearMounts(filepath.Join(o.State, "mounts"), o.Logger); err != nil {
		return err
	}
	s.sockets, err = serve(ctx, s.address, s.plugins, o.Logger)
	return err
}

// clearMounts sets containerd's place of temporary mounts, and unmounts a killed predecessor's.
func clearMounts(dir string, log *slog.Logger) error {
	if err := mount.SetTempMountLocation(dir); err != nil {
		return fmt.Errorf("cannot create directory for mounts: %w", err)
	}
	left, err := mount.CleanupTempMounts(0)
	if err != nil {
		return fmt.Errorf("cannot find leftover mounts in %s: %w", dir, err)
	}
	if len(left) > 0 {
		log.Warn("cannot clear leftover mounts", "error", errors.Join(left...))
	}
	return nil
}

// chooseSnapshotter prefers overlayfs; native copies each layer but works on every file system. On a
// full disk overlayfs cannot be tried, and the choice stays as containers were made.
func chooseSnapshotter(root string) string {
	err := canOverlay(root)
	if err == nil || fault.IsFull(err) && exists(filepath.Join(root, string(plugins.SnapshotPlugin)+"."+defaults.DefaultSnapshotter)) {
		return defaults.DefaultSnapshotter
	}
	return nativeSnapshotter
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// OwnShim tells whether the shim is the one of this repository.
func (s *Server) OwnShim() bool {
	s.shims.mu.Lock()
	defer s.shims.mu.Unlock()
	return s.shims.found.Own
}

// Address is the path of the gRPC socket.
func (s *Server) Address() string { return s.address }

// Client calls services in this process directly; only calls without a service here, such as
// Version, use the socket. It creates a missing namespace, whose default snapshotter is the server's.
//
// Direct calls read the namespace only from their context: use namespaces.WithNamespace.
func (s *Server) Client(ctx context.Context, namespace string) (*client.Client, error) {
	caller, err := client.New(s.address, client.WithDefaultNamespace(namespace), client.WithServices(
		client.WithEventService(instance[client.EventService](s, plugins.EventPlugin, "exchange")),
		client.WithLeasesService(instance[leases.Manager](s, plugins.LeasePlugin, "manager")),
		client.WithDiffService(instance[client.DiffService](s, plugins.DiffPlugin, "walking")),
		client.WithContentStore(instance[content.Store](s, plugins.ServicePlugin, services.ContentService)),
		client.WithImageClient(instance[imagesapi.ImagesClient](s, plugins.ServicePlugin, services.ImagesService)),
		client.WithSnapshotters(instance[map[string]snapshots.Snapshotter](s, plugins.ServicePlugin, services.SnapshotsService)),
		client.WithContainerClient(instance[containersapi.ContainersClient](s, plugins.ServicePlugin, services.ContainersService)),
		client.WithTaskClient(instance[tasksapi.TasksClient](s, plugins.ServicePlugin, services.TasksService)),
		client.WithNamespaceClient(instance[namespacesapi.NamespacesClient](s, plugins.ServicePlugin, services.NamespacesService)),
		client.WithIntrospectionService(instance[introspection.Service](s, plugins.ServicePlugin, services.IntrospectionService)),
	))
	if err != nil {
		return nil, fmt.Errorf("cannot create client of embedded containerd: %w", err)
	}
	labels := map[string]string{defaults.DefaultSnapshotterNSLabel: s.snapshotter}
	store := caller.NamespaceService()
	err = store.Create(ctx, namespace, labels)
	if errdefs.IsAlreadyExists(err) {
		err = store.SetLabel(ctx, namespace, defaults.DefaultSnapshotterNSLabel, s.snapshotter)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("cannot create containerd namespace %q: %w", namespace, err), caller.Close())
	}
	return caller, nil
}

// instance is a plugin of a server that has started: each has come up then.
func instance[T any](s *Server, kind plugin.Type, id string) T {
	i, _ := s.plugins.Get(kind, id).Instance()
	return i.(T)
}

// Close stops serving and closes the metadata. Shims and workloads keep running for a later Start.
func (s *Server) Close() error {
	if s.sockets != nil {
		s.sockets.close()
	}
	s.stop()
	s.running.Wait()
	errs := []error{mount.SetTempMountLocation(os.TempDir())} // the process may have another use for it
	for _, p := range slices.Backward(s.plugins.GetAll()) {
		instance, err := p.Instance()
		if err != nil {
			continue // Start has returned it
		}
		if closer, ok := instance.(io.Closer); ok {
			errs = append(errs, closer.Close())
		}
	}
	err := errors.Join(errs...)
	if err == nil && s.sockets != nil && !s.behind.Load() {
		_ = os.WriteFile(s.closed, nil, 0o600) // without it the next start looks closer
	}
	return err
}

func database(ic *plugin.InitContext) (*metadata.DB, error) {
	db, err := ic.GetSingle(plugins.MetadataPlugin)
	if err != nil {
		return nil, err
	}
	return db.(*metadata.DB), nil
}
