package containerd

import (
	"context"
	"slices"
	"strings"
	"time"

	v1 "github.com/opencontainers/image-spec/specs-go/v1"
)

// Snapshotter keeps root file systems.
type Snapshotter interface {
	Stat(ctx context.Context, key string) (Snapshot, error)
	List(ctx context.Context, filters ...string) ([]Snapshot, error)
	// Mounts are how an active snapshot, or a view, is mounted.
	Mounts(ctx context.Context, key string) ([]Mount, error)
	// Prepare makes an active snapshot on a committed one; "": on nothing.
	Prepare(ctx context.Context, key, parent string, labels map[string]string) ([]Mount, error)
	// Commit makes a committed snapshot of an active one.
	Commit(ctx context.Context, name, key string, labels map[string]string) error
	// Remove is a FailedPrecondition while others are based on the snapshot.
	Remove(ctx context.Context, key string) error
}

// Snapshot is one of them.
type Snapshot struct {
	Kind    SnapshotKind
	Name    string
	Parent  string
	Labels  map[string]string
	Created time.Time
	Updated time.Time
}

// SnapshotKind says what may be done with a snapshot.
type SnapshotKind int

// What a snapshot may be.
const (
	KindUnknown SnapshotKind = iota
	KindView
	KindActive
	KindCommitted
)

// Mount is how a file system is mounted, in the words of mount(8).
type Mount struct {
	Type    string
	Source  string
	Target  string // below the directory that it is mounted at; "": that
	Options []string
}

// Applier unpacks layers.
type Applier interface {
	// Apply unpacks a layer of the content store into what is mounted so. It
	// returns what the layer is unpacked: Digest is that of the image's diff ID.
	Apply(ctx context.Context, layer v1.Descriptor, mounts []Mount) (v1.Descriptor, error)
}

// WrittenDirs are the directories that what is written to mounts comes to. What is mounted read-only is of somebody else.
func WrittenDirs(mounts []Mount) (dirs []string) {
	for _, m := range mounts {
		switch {
		case slices.Contains(m.Options, "ro"):
		case m.Type == "bind":
			dirs = append(dirs, m.Source)
		case m.Type == "overlay":
			if upper, _ := m.OverlayDirs(); upper != "" {
				dirs = append(dirs, upper)
			}
		}
	}
	return dirs
}

// OverlayDirs are the directories of an overlay: what is written comes to upper, if it is not "", and lower are those below
// it, the topmost first.
func (m Mount) OverlayDirs() (upper string, lower []string) {
	for _, o := range m.Options {
		if dir, ok := strings.CutPrefix(o, "upperdir="); ok {
			upper = dir
		} else if dirs, ok := strings.CutPrefix(o, "lowerdir="); ok {
			lower = strings.Split(dirs, ":")
		}
	}
	return upper, lower
}
