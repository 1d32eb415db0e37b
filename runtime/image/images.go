package image

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	goruntime "runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/errdefs"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/identity"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/margolite/margolite/runtime/compose"
	"github.com/margolite/margolite/runtime/containerd"
	"github.com/margolite/margolite/runtime/fault"
	"github.com/margolite/margolite/runtime/limit"
	"github.com/margolite/margolite/runtime/registry"
)

// ownLabel marks the image records and leases of this package; it leaves others alone.
const ownLabel = "margolite/image"

const downloads = 3 // of a registry at a time

// Options are the options of Images.
type Options struct {
	Client     containerd.Client
	Registries map[string]Registry // by host[:port] as in references; others are reached by HTTPS without credentials
	Preload    string              // directory of image archives that need no registry; "": none
	Keys       []string            // files of OpenPGP keys: a package that a URL names has to be signed by one of them
	AtOnce     int                 // downloads at a time from one registry; from all together there is one more; 0: 3
	// MinRate, in bytes a minute, keeps a slot while others wait; it grows after ten minutes.
	// 0: DefaultMinRate, negative: none.
	MinRate int64
	// RateWindow is the period over which rates are measured. Lookups, and downloads that bring
	// nothing, end after two. 0: a minute.
	RateWindow time.Duration
	// State is where the agent keeps its own records; "": nowhere. Reserve is how many bytes images leave free there, and
	// where containerd keeps them; 0: 32 MiB, but no more than a twentieth of a small file system.
	State   string
	Reserve int64
	Logger  *slog.Logger // nil discards
}

// Images keeps images in containerd.
type Images struct {
	o       Options
	plain   map[string]bool // hosts on the wire that may be spoken to without TLS
	preload *preload

	slots      *limit.Limiter
	rate       limit.Rate
	pace       registry.Pace
	processors *limit.Limiter // of layers that are unpacked

	came      atomic.Int64 // bytes, from registries
	collected atomic.Bool  // all that was removed
	reserving sync.Mutex   // held while space is found for what comes
	mu        sync.Mutex
	pulls     map[*pull]bool      // that are under way -> space was found for it
	changed   chan struct{}       // closed when some of those have ended, or become slow
	unpacking map[*allowance]bool // layers
	// What did not fit, until something else came: to try again costs only a look at the file system.
	refusals map[string]*fault.Error
}

// Downloaded is the bytes of images and packages downloaded from registries.
func (i *Images) Downloaded() int64 { return i.came.Load() }

// New returns Images. Files named by registries are read when needed.
func New(o Options) *Images {
	o.AtOnce = cmp.Or(o.AtOnce, downloads)
	o.Logger = cmp.Or(o.Logger, slog.New(slog.DiscardHandler))
	plain := map[string]bool{}
	for host, r := range o.Registries {
		plain[registry.HostOf(host)] = r.PlainHTTP
	}
	rate := limit.Rate{Floor: max(cmp.Or(o.MinRate, DefaultMinRate), 0), Window: cmp.Or(o.RateWindow, rateWindow)}
	return &Images{
		o:       o,
		plain:   plain,
		preload: &preload{dir: o.Preload, log: o.Logger},
		slots:   newSlots(o.AtOnce, rate.Window),
		rate:    rate,
		processors: limit.New(0, once(), limit.Bound{
			Most: min(o.AtOnce, goruntime.GOMAXPROCS(0)), Counts: func(_, _ limit.Key) bool { return true },
		}),
		pulls:     make(map[*pull]bool),
		changed:   make(chan struct{}),
		unpacking: make(map[*allowance]bool),
		refusals:  make(map[string]*fault.Error),
	}
}

// Image is an image on the device, complete and unpacked.
type Image struct {
	Name    string        // of the record in containerd's image store: repository@digest
	Digest  digest.Digest // of the manifest or index that the name holds
	Config  v1.Image      // Config.Config has Entrypoint, Cmd, Env, User, WorkingDir, Volumes, StopSignal
	ChainID digest.Digest // of the root file system: the key of the snapshot that containers start from
	// Health is its HEALTHCHECK, an extension by Docker to OCI's configuration; nil: none.
	Health *compose.Healthcheck
}

// Name is the image record's name for a reference as written in a project and its digest.
func Name(ref string, d digest.Digest) (string, error) {
	named, err := parse(ref)
	if err != nil {
		return "", err
	}
	return named.Name() + "@" + d.String(), nil
}

// parse reads a reference as Docker does: names default to Docker Hub, tags to "latest".
func parse(ref string) (reference.Named, error) {
	named, err := reference.ParseDockerRef(ref)
	if err != nil {
		return nil, fmt.Errorf("cannot read image reference %q: %w", ref, err)
	}
	return named, nil
}

// Get returns a local image for a platform (see Want), or fails with fault.NotFound.
func (i *Images) Get(ctx context.Context, ref string, d digest.Digest, platform string) (*Image, error) {
	name, err := Name(ref, d)
	if err != nil {
		return nil, fail(ref, bad(err))
	}
	wanted, err := targetOf(platform)
	if err != nil {
		return nil, fail(ref, err)
	}
	image, err := i.get(ctx, name, wanted)
	return image, fail(name, err)
}

// get reads the configuration of an image, which is not found if parts are damaged or lost.
func (i *Images) get(ctx context.Context, name string, platform target) (*Image, error) {
	absent := func(why error) error { return &fault.Error{Code: fault.NotFound, Err: why} }
	record, err := i.o.Client.ImageService().Get(ctx, name)
	if errdefs.IsNotFound(err) {
		return nil, absent(errors.New("not on this device"))
	}
	if err != nil {
		return nil, err
	}
	parts, err := walk(ctx, record.Target, platform, i.read)
	switch {
	case isGone(err):
		return nil, absent(fmt.Errorf("incomplete on this device: %w", err))
	case err != nil:
		return nil, fmt.Errorf("cannot read image configuration: %w", err)
	}
	image := &Image{
		Name: name, Digest: record.Target.Digest, Config: parts.image, ChainID: identity.ChainID(parts.diffs), Health: parts.health,
	}
	if image.ChainID == "" { // no layers: containers start from nothing
		return image, nil
	}
	snapshotter, err := i.Snapshotter(ctx)
	if err != nil {
		return nil, err
	}
	_, err = i.o.Client.SnapshotService(snapshotter).Stat(ctx, image.ChainID.String())
	if errdefs.IsNotFound(err) {
		return nil, absent(errors.New("not unpacked on this device"))
	}
	return image, err
}

// List returns the names of the images that Pull has brought.
func (i *Images) List(ctx context.Context) ([]string, error) {
	records, err := i.records(ctx)
	names := make([]string, len(records))
	for n, record := range records {
		names[n] = record.Name
	}
	return names, err
}

func (i *Images) records(ctx context.Context) ([]images.Image, error) {
	records, err := i.o.Client.ImageService().List(ctx, fmt.Sprintf("labels.%q", ownLabel))
	if err != nil {
		return nil, fmt.Errorf("cannot list images: %w", err)
	}
	return records, nil
}

// Prune removes images that Pull has brought, except those in keep, and its unfinished downloads,
// except of images in keep and for projects in fetching. It returns what it removed. It leaves a
// running Pull alone. Space is free when Prune returns, unless a container still uses the image.
func (i *Images) Prune(ctx context.Context, keep, fetching map[string]bool) (removed []string, err error) {
	if err := i.recall(ctx, keep); err != nil {
		return nil, err
	}
	names, err := i.List(ctx)
	if err != nil {
		return nil, err
	}
	names = slices.DeleteFunc(names, func(name string) bool { return keep[name] || i.isPulling(name) })
	begun, err := i.o.Client.LeasesService().List(ctx, fmt.Sprintf("labels.%q", ownLabel))
	if err != nil {
		return nil, fmt.Errorf("cannot list downloads: %w", err)
	}
	begun = slices.DeleteFunc(begun, func(lease leases.Lease) bool {
		name, project := lease.Labels[ownLabel], lease.Labels[projectLabel]
		return keep[name] || project != "" && fetching[project] || i.isPulling(name)
	})
	return i.remove(ctx, names, begun)
}

// remove removes images and downloads, and collects garbage, first also of killed processes.
func (i *Images) remove(ctx context.Context, names []string, begun []leases.Lease) (removed []string, err error) {
	if len(names)+len(begun) == 0 && i.collected.Load() {
		return nil, nil
	}
	for _, name := range names {
		if err := i.o.Client.ImageService().Delete(ctx, name); err != nil && !errdefs.IsNotFound(err) {
			return removed, fmt.Errorf("cannot remove image %s: %w", name, err)
		}
		removed = append(removed, name)
	}
	for _, lease := range begun {
		if err := i.release(ctx, lease); err != nil {
			return removed, err
		}
		if name := lease.Labels[ownLabel]; !slices.Contains(removed, name) {
			removed = append(removed, name)
		}
	}
	return removed, i.collect(ctx)
}

// collection is a lease whose deletion collects at once: containerd offers no other way.
const collection = "margolite-collection"

func (i *Images) collect(ctx context.Context) error {
	service := i.o.Client.LeasesService()
	for {
		_, err := service.Create(ctx, leases.WithID(collection))
		if err == nil || errdefs.IsAlreadyExists(err) {
			err = service.Delete(ctx, leases.Lease{ID: collection}, leases.SynchronousDelete)
		}
		if errdefs.IsNotFound(err) { // another collected meanwhile, which was maybe too soon for us
			continue
		}
		if i.collected.Store(err == nil); err != nil {
			return fmt.Errorf("cannot free the space of removed images: %w", err)
		}
		return nil
	}
}

const snapshotterLabel = "containerd.io/defaults/snapshotter"

// Snapshotter is the name of the snapshotter for images.
func (i *Images) Snapshotter(ctx context.Context) (string, error) {
	name, err := i.o.Client.GetLabel(ctx, snapshotterLabel)
	if err != nil {
		return "", fmt.Errorf("cannot find default snapshotter: %w", err)
	}
	return cmp.Or(name, "overlayfs"), nil // as containerd itself
}
