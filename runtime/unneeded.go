package runtime

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"

	"github.com/margolite/margolite/runtime/container"
	"github.com/margolite/margolite/runtime/image"
)

// StoredVolume is a volume on the device.
type StoredVolume struct {
	Project string // whose it is; "_": made by hand
	Name    string
	Bytes   int64
	Used    bool // a container mounts it, or is about to
	// Err says why the volume could not be measured fully; Bytes is the count until then.
	Err error
}

// measureTimeout bounds the measuring of one volume, which may hold any number of files.
const measureTimeout = 30 * time.Second

// StoredVolumes lists the volumes of all projects. Errors of measuring are in their entries.
func (e *Engine) StoredVolumes(ctx context.Context) ([]StoredVolume, error) {
	ctx = e.within(ctx)
	list, err := e.containers.Volumes(ctx)
	if err != nil {
		return nil, fail(Internal, "volumes", err)
	}
	var volumes []StoredVolume
	for _, v := range list {
		measuring, cancel := context.WithTimeout(ctx, measureTimeout)
		size, err := e.containers.VolumeSize(measuring, v.Project, v.Name)
		cancel()
		if ctx.Err() != nil {
			return nil, fail(Internal, v.Name, ctx.Err())
		}
		if err != nil {
			e.o.Logger.Warn("cannot measure volume", "project", v.Project, "volume", v.Name, "error", err)
		}
		volumes = append(volumes, StoredVolume{Project: v.Project, Name: v.Name, Bytes: size, Used: len(v.UsedBy) > 0 || e.places.isClaimed(v.Project), Err: err})
	}
	return volumes, nil
}

// RemoveVolume removes a volume that no container mounts, with its contents.
func (e *Engine) RemoveVolume(ctx context.Context, project, name string) error {
	ctx = e.within(ctx)
	if e.places.isClaimed(project) {
		return &Error{Code: Conflict, Object: name, Err: fmt.Errorf("project %s is being applied", project)}
	}
	if err := e.containers.RemoveVolume(ctx, project, name); err != nil {
		return fail(Internal, name, err)
	}
	return nil
}

func removeVolumes(ctx context.Context, containers *container.Containers, project string) error {
	list, err := containers.Volumes(ctx)
	if err != nil {
		return fail(Internal, project, err)
	}
	var failed error
	for _, v := range list {
		if v.Project != project {
			continue
		}
		if err := containers.RemoveVolume(ctx, project, v.Name); err != nil && !errors.Is(err, container.ErrInUse) {
			failed = errors.Join(failed, fail(Internal, v.Name, err)) // the others go
		}
	}
	return failed
}

// UnusedImage is an image that no container uses.
type UnusedImage struct {
	Name  string // repository@digest
	Bytes int64  // compressed, as pulled; what images share is counted with each
}

// UnusedImages are the images that Prune would remove.
func (s *stager) UnusedImages(ctx context.Context, keep Keep) ([]UnusedImage, error) {
	ctx = s.within(ctx)
	kept, err := s.keptImages(ctx, keep)
	if err != nil {
		return nil, err
	}
	names, err := s.images.List(ctx)
	if err != nil {
		return nil, fail(Internal, "images", err)
	}
	var unused []UnusedImage
	for _, name := range names {
		if kept[name] {
			continue
		}
		u := UnusedImage{Name: name}
		u.Bytes, _ = s.images.Size(ctx, name)
		unused = append(unused, u)
	}
	return unused, nil
}

// Spare fails with NoSpace if too little is left, of the space that images leave free or of
// the run directory, to make or replace a container.
func (s *stager) Spare(ctx context.Context) error {
	if err := s.images.Spare(s.within(ctx)); err != nil {
		return fail(Internal, "containers", err)
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(s.o.RunDir, &fs); err != nil {
		return fail(Internal, s.o.RunDir, fmt.Errorf("cannot determine the free space: %w", err))
	}
	if int64(fs.Bfree)*int64(fs.Bsize) < spareRun || fs.Files > 0 && fs.Ffree < spareRunFiles {
		return &Error{Code: NoSpace, Object: "containers", Err: fmt.Errorf("no space: %d bytes and %d files are left in %s", int64(fs.Bfree)*int64(fs.Bsize), fs.Ffree, s.o.RunDir)}
	}
	return nil
}

// The least that a change needs of the run directory: sockets, hosts files, files of shims.
const (
	spareRun      = 256 << 10
	spareRunFiles = 64
)

// ImageSize is the compressed size of a staged image in bytes, including shared content.
func (s *stager) ImageSize(ctx context.Context, ref string, d digest.Digest) (int64, error) {
	name, err := image.Name(ref, d)
	if err != nil {
		return 0, fail(InvalidPackage, ref, err)
	}
	bytes, err := s.images.Size(s.within(ctx), name)
	if err != nil {
		return 0, fail(NotFound, name, err)
	}
	return bytes, nil
}
