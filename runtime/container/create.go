package container

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"slices"
	"time"

	"github.com/containerd/containerd/api/types/runc/options"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/errdefs"
	"github.com/containerd/platforms"
	"github.com/containerd/typeurl/v2"
)

// createLease is for how long a snapshot without record is kept when Create is killed.
const createLease = time.Hour

// Create makes the record and root file system of a container, and fills those
// of its volumes that are empty and named in fill from the image. A container
// that exists is left as it is.
func (c *Containers) Create(ctx context.Context, config Config, fill []string) error {
	id := config.Labels.ID()
	if err := c.create(ctx, id, config, fill); err != nil {
		return fmt.Errorf("cannot create container %s: %w", id, err)
	}
	return nil
}

func (c *Containers) create(ctx context.Context, id string, config Config, fill []string) error {
	switch existing, err := c.o.Client.ContainerService().Get(ctx, id); {
	case err == nil:
		return verifySame(existing, config)
	case !errdefs.IsNotFound(err):
		return err
	}
	if err := config.describe(); err != nil {
		return err
	}
	labels, err := config.Labels.Encode(Shown{
		Namespace:  c.o.Namespace,
		LogURI:     "file://" + c.LogPath(id),
		StateDir:   filepath.Join(c.o.RunDir, "nerdctl", id),
		WorkingDir: config.WorkingDir,
		Platform:   platforms.Format(platforms.Platform{OS: runtime.GOOS, Architecture: runtime.GOARCH}),
		Service:    config.Service.Labels,
	})
	if err != nil {
		return err
	}

	// Until the record refers to it, only the lease keeps gc from the snapshot.
	ctx, release, err := c.lease(ctx, "margolite-create-"+id)
	if err != nil {
		return err
	}
	defer release()

	snapshotter, snapshotterName, err := c.snapshotter(ctx)
	if err != nil {
		return err
	}
	mounts, err := prepareSnapshot(ctx, snapshotter, id, config.Labels)
	if err != nil {
		return err
	}
	spec, err := c.inspect(ctx, id, config, mounts, fill)
	if err != nil {
		return errors.Join(err, removeSnapshot(context.WithoutCancel(ctx), snapshotter, id))
	}
	runc, err := typeurl.MarshalAny(&options.Options{Root: c.runcRoot()})
	if err != nil {
		return err
	}
	_, err = c.o.Client.ContainerService().Create(ctx, containers.Container{
		ID:          id,
		Labels:      labels,
		Image:       config.ImageName,
		Runtime:     containers.RuntimeInfo{Name: c.o.Shim, Options: runc},
		Spec:        spec,
		SnapshotKey: id,
		Snapshotter: snapshotterName,
	})
	return err
}

// describe writes into the labels what the service and the image say.
func (c *Config) describe() error {
	l, s := &c.Labels, c.Service
	l.Image = s.Image
	l.Restart = RestartOf(s)
	l.StopGrace = defaultGrace
	l.StopSignal = cmp.Or(c.Image.StopSignal, "SIGTERM")
	if _, err := parseSignal(l.StopSignal); err != nil {
		return fmt.Errorf("stop signal of image: %w", err)
	}
	l.DependsOn = s.DependsOn
	l.Volumes, l.HostDirs = nil, nil
	for _, m := range s.Mounts {
		if m.Volume != "" && !slices.Contains(l.Volumes, m.Volume) {
			l.Volumes = append(l.Volumes, m.Volume)
		}
		if m.Path != "" && m.Create {
			l.HostDirs = append(l.HostDirs, m.Path)
		}
	}
	return nil
}

// inspect reads the image through the container's root file system: it looks up
// the user, fills volumes, and builds the specification.
func (c *Containers) inspect(ctx context.Context, id string, config Config, mounts []mount.Mount, fill []string) (typeurl.Any, error) {
	var user User
	err := c.withRootfs(id, mounts, func(root string) (err error) {
		if user, err = LookupUser(root, cmp.Or(config.Service.User, config.Image.User)); err != nil {
			return err
		}
		for _, m := range config.Service.Mounts {
			if m.NoCopy || !slices.Contains(fill, m.Volume) {
				continue
			}
			if err := fillVolume(c.VolumeDir(config.Labels.Project, m.Volume), root, m.Target); err != nil {
				return fmt.Errorf("volume %s: %w", m.Volume, err)
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	spec, err := newSpec(config, c.host(ctx), placing{
		user:        user,
		cgroup:      c.cgroup(config.Labels.Project, id),
		volume:      func(name string) string { return c.VolumeDir(config.Labels.Project, name) },
		groupedShim: true,
	})
	if err != nil {
		return nil, err
	}
	return typeurl.MarshalAny(spec)
}

// verifySame guards against a record of somebody else under our id.
func verifySame(existing containers.Container, config Config) error {
	labels, err := Decode(existing.Labels)
	if err != nil {
		return err
	}
	if labels.Project != config.Labels.Project || labels.Service != config.Labels.Service || labels.Hash != config.Labels.Hash {
		return fmt.Errorf("its id is taken by service %s of project %s: %w", labels.Service, labels.Project, errdefs.ErrAlreadyExists)
	}
	return nil
}

// lease keeps gc from what is made with the context it returns. A lease that a
// killed process left is taken over.
func (c *Containers) lease(ctx context.Context, id string) (context.Context, func(), error) {
	service := c.o.Client.LeasesService()
	lease, err := service.Create(ctx, leases.WithID(id), leases.WithExpiration(createLease))
	if err != nil && !errdefs.IsAlreadyExists(err) {
		return nil, nil, fmt.Errorf("cannot lease: %w", err)
	}
	lease.ID = id
	release := func() {
		// Nothing depends on it: the lease ends by itself.
		if err := service.Delete(context.WithoutCancel(ctx), lease); err != nil && !errdefs.IsNotFound(err) {
			c.o.Logger.Debug("lease is left to expire", "container", id, "error", err)
		}
	}
	return leases.WithLease(ctx, id), release, nil
}
