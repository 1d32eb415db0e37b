package container

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"time"

	"github.com/containerd/containerd/api/types/runc/options"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/errdefs"
	"github.com/containerd/typeurl/v2"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/margolite/margolite/runtime/compose"
	"github.com/margolite/margolite/runtime/log"
)

// createLease is how long a snapshot without a record is kept if Create is killed.
const createLease = time.Hour

// leaseLabel marks the leases of Create with the state directory of their agent.
const leaseLabel = "margolite/creating"

// Create makes a missing container, and fills its volumes from the image if they are empty and
// no running container mounts them.
func (c *Containers) Create(ctx context.Context, config Config) error {
	id := config.Labels.ID()
	err := c.sweepOnce(ctx)
	if err == nil {
		err = c.create(ctx, id, config)
	}
	if err != nil {
		return fmt.Errorf("cannot create container %s: %w", id, err)
	}
	return nil
}

func (c *Containers) create(ctx context.Context, id string, config Config) error {
	if _, _, err := c.read(ctx, id); !errdefs.IsNotFound(err) {
		return err // nil: its ID stands for its configuration
	}
	config, err := config.complete()
	if err != nil {
		return err
	}
	config.Service = c.o.certified(config.Service)
	volumes, err := c.volumes.resolve(ctx, config)
	if err != nil {
		return err
	}
	if err := config.describe(volumes); err != nil {
		return err
	}
	// Without the lock: a file server may take long to answer.
	for _, v := range volumes.list {
		if err := c.EnsureVolume(ctx, config.Labels.Project, v); err != nil {
			return err
		}
	}
	c.volumes.naming.RLock()
	defer c.volumes.naming.RUnlock()
	for _, v := range volumes.list {
		if err := c.EnsureVolume(ctx, config.Labels.Project, v); err != nil {
			return err
		}
	}
	labels, err := config.Labels.Encode(config.Service.Labels, map[string]string{
		keyOwner:        c.owner,
		composeWorkDir:  config.WorkingDir,
		nerdctlSpace:    c.o.Namespace,
		nerdctlLogURI:   "file://" + c.LogPath(id),
		nerdctlLogging:  log.NerdctlConfig(c.LogPath(id), c.logKeep(config.Labels.Logging)),
		nerdctlStateDir: c.nerdctlDir(id),
		nerdctlPlatform: runtime.GOOS + "/" + runtime.GOARCH,
	})
	if err != nil {
		return err
	}
	details, err := config.Labels.Details.encode()
	if err != nil {
		return err
	}

	// Until the record refers to the snapshot, only the lease protects it from gc.
	ctx, release, err := c.o.lease(ctx, "margolite-create-"+id)
	if err != nil {
		return err
	}
	defer release()

	snapshotter, snapshotterName, err := c.o.snapshotter(ctx)
	if err != nil {
		return err
	}
	mounts, err := prepareSnapshot(ctx, snapshotter, id, config.Labels)
	if err != nil {
		return err
	}
	extensions := map[string]typeurl.Any{detailsKey: details}
	spec, err := c.inspect(ctx, id, config, volumes, mounts, extensions)
	if err == nil {
		err = c.keepFiles(config.Labels.Project, id, config.Service.Files)
	}
	if err != nil {
		return errors.Join(err, c.removeFiles(id), removeSnapshot(context.WithoutCancel(ctx), snapshotter, id))
	}
	runc, err := typeurl.MarshalAny(&options.Options{Root: c.runcRoot()})
	if err != nil {
		return err
	}
	_, err = c.o.Client.ContainerService().Create(ctx, containers.Container{
		ID:          id,
		Labels:      labels,
		Image:       config.ImageName,
		Runtime:     containers.RuntimeInfo{Name: shim, Options: runc},
		Spec:        spec,
		SnapshotKey: id,
		Extensions:  extensions,
		Snapshotter: snapshotterName,
	})
	return err
}

func (c *Config) describe(volumes mountedVolumes) error {
	l, s := &c.Labels, c.Service
	l.Image = s.Image
	l.Restart = s.Restart
	l.Restart.Mode = cmp.Or(l.Restart.Mode, compose.RestartNo)
	l.StopGrace = defaultGrace
	if s.StopGrace != nil {
		l.StopGrace = max(*s.StopGrace, 0)
	}
	l.StopSignal = cmp.Or(s.StopSignal, c.Image.StopSignal, "SIGTERM")
	if _, err := compose.ParseSignal(l.StopSignal); err != nil {
		return fmt.Errorf("stop signal: %w", err)
	}
	l.DependsOn = s.DependsOn
	l.Devices, l.CgroupParent = devicesOf(s), s.Resources.CgroupParent
	l.TTY, l.StdinOpen, l.Logging = s.TTY, s.StdinOpen, s.Logging
	l.PostStart, l.PreStop = s.PostStart, s.PreStop
	if s.IPC.Mode == compose.ModeShareable {
		l.SharedMemory = cmp.Or(s.ShmSize, defaultShm)
	}
	l.Volumes, l.Files = volumes.list, filesOf(s)
	l.Subpaths, l.Sources = nil, nil
	for _, m := range s.Mounts {
		if m.Path != "" {
			l.Sources = append(l.Sources, Source{Path: m.Path, Real: realOf(m), Create: m.Create})
		}
		if m.Subpath != "" {
			l.Subpaths = append(l.Subpaths, Subpath{Volume: volumes.byName[c.volumeName(m)], Path: m.Subpath})
		}
	}
	return nil
}

// inspect reads the image through the container's root file system.
func (c *Containers) inspect(ctx context.Context, id string, config Config, volumes mountedVolumes, mounts []mount.Mount, extensions map[string]typeurl.Any) (typeurl.Any, error) {
	project := config.Labels.Project
	var user specs.User
	err := c.withRootfs(id, mounts, func(root string) (err error) {
		user, err = LookupUser(root, cmp.Or(config.Service.User, config.Image.User), config.Service.Groups...)
		if err != nil {
			return err
		}
		for _, m := range config.Service.Mounts {
			name := config.volumeName(m)
			if name == "" || m.NoCopy || m.Subpath != "" {
				continue
			}
			if err := c.fillVolume(ctx, project, volumes.get(name), root, m.Target); err != nil {
				return fmt.Errorf("volume %s: %w", name, err)
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	host := c.host.get(ctx)
	host.Profile = c.host.profile(ctx)
	cgroup := c.cgroups.path(project, id, config.Service.Resources.CgroupParent)
	spec, err := newSpec(config, host, placing{&c.paths, id, user, cgroup, volumes})
	if err != nil {
		return nil, err
	}
	spec.Annotations[nerdctlStateDir] = c.nerdctlDir(id)
	return recordSpec(spec, config.Labels.Devices, extensions)
}

// lease protects what is made with the context from gc, also after a killed process.
func (o *Options) lease(ctx context.Context, id string) (context.Context, func(), error) {
	service := o.Client.LeasesService()
	_, err := service.Create(ctx, leases.WithID(id), leases.WithExpiration(createLease), leases.WithLabel(leaseLabel, o.StateDir))
	if err != nil && !errdefs.IsAlreadyExists(err) {
		return nil, nil, fmt.Errorf("cannot lease: %w", err)
	}
	release := func() {
		// Nothing depends on it: the lease expires by itself.
		if err := service.Delete(context.WithoutCancel(ctx), leases.Lease{ID: id}); err != nil && !errdefs.IsNotFound(err) {
			o.Logger.Debug("lease is left to expire", "container", id, "error", err)
		}
	}
	return leases.WithLease(ctx, id), release, nil
}

// Check refuses a configuration whose paths, external volumes or device nodes do not exist, with
// an error that names the place and wraps ErrNotFound. It changes nothing.
func (c *Containers) Check(ctx context.Context, config Config) error {
	config, err := config.complete()
	if err != nil {
		return err
	}
	s := config.Service
	if _, err := c.volumes.resolve(ctx, config); err != nil {
		return err
	}
	for _, m := range s.Mounts {
		if m.Path == "" || m.Create {
			continue
		}
		switch _, err := os.Stat(m.Path); {
		case errors.Is(err, fs.ErrNotExist):
			return fmt.Errorf("service %s: mount at %s: %s is %w", s.Name, m.Target, m.Path, ErrNotFound)
		case err != nil:
			return fmt.Errorf("service %s: mount at %s: %w", s.Name, m.Target, err)
		}
	}
	spec := specs.Spec{Process: &specs.Process{}, Linux: &specs.Linux{Resources: &specs.LinuxResources{}}}
	if err := complete(&spec, devicesOf(s)); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			err = fmt.Errorf("%w: %w", ErrNotFound, err)
		}
		return fmt.Errorf("service %s: %w", s.Name, err)
	}
	return nil
}
