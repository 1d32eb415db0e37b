package container

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	confs "github.com/containerd/continuity/fs"
	"golang.org/x/sync/singleflight"
	"golang.org/x/sys/unix"

	"github.com/margolite/margolite/runtime/compose"
	"github.com/margolite/margolite/runtime/fault"
	"github.com/margolite/margolite/runtime/tree"
)

const (
	// byHand holds the volumes that people made for all projects.
	byHand = "_"

	// anonymousMark is in no name that a Compose file may give, so it marks anonymous volumes.
	anonymousMark = "~"

	// maxImageVolumes is how many volumes an image may ask for.
	maxImageVolumes = 64
)

// volumes makes, finds and removes the volumes of containers.
type volumes struct {
	*paths
	*records

	// naming protects new volumes without a record: read-locked by creation, locked by removal.
	naming sync.RWMutex

	mounting singleflight.Group // by mount point
}

func (v Volume) check() error {
	name, mark, anonymous := strings.Cut(v.Name, anonymousMark)
	if !compose.ValidName(name) || anonymous && (len(mark) != 8 || strings.Trim(mark, "0123456789abcdef") != "") {
		return fmt.Errorf("%.80q is not a volume name", v.Name)
	}
	if v.Project != "" && v.Project != byHand && !compose.ValidName(v.Project) {
		return fmt.Errorf("volume %s: %.80q is not a valid project name", v.Name, v.Project)
	}
	return v.checkType()
}

// EnsureVolume makes a missing directory or mount. It only looks for another project's.
func (vs *volumes) EnsureVolume(ctx context.Context, project string, v Volume) error {
	if err := v.check(); err != nil {
		return err
	}
	err := vs.ensure(ctx, project, v)
	if err == nil {
		return nil
	}
	err = fmt.Errorf("cannot create volume %s: %w", v.Name, err)
	if v.Project == "" { // not the service's fault
		err = &fault.Error{Code: fault.Internal, Err: err}
	}
	return err
}

func (vs *volumes) ensure(ctx context.Context, project string, v Volume) error {
	dir := vs.volumeDir(project, v)
	switch {
	case v.Type != "":
		return vs.mount(ctx, dir, v)
	case exists(dir):
		return nil
	case v.Project != "":
		return fmt.Errorf("volume of project %s: %w: %s is missing", v.Project, ErrNotFound, dir)
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o711); err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return errors.Join(tree.Sync(filepath.Dir(dir)), tree.Sync(vs.volumesDir()))
}

type mountedVolumes struct {
	list   []Volume
	byName map[string]int // index in list by the configuration's name for it
}

func (m mountedVolumes) get(name string) Volume { return m.list[m.byName[name]] }

// resolve returns the volumes that a configuration mounts, each once, in the order of their
// mounts: named ones, external ones where they are, and this replica's anonymous ones. The
// error wraps ErrNotFound if an external one is not on this device.
func (vs *volumes) resolve(ctx context.Context, config Config) (mountedVolumes, error) {
	m := mountedVolumes{byName: make(map[string]int)}
	for _, mount := range config.Service.Mounts {
		name := config.volumeName(mount)
		if _, known := m.byName[name]; name == "" || known {
			continue
		}
		v := Volume{Name: name}
		if def := config.Volumes[mount.Volume]; mount.Volume != "" && def != nil {
			v.Type, v.Device, v.Real, v.Options = def.Type, def.Device, def.Real, def.Options
			if def.External {
				var err error
				if v, err = vs.find(ctx, name); err != nil {
					return m, fmt.Errorf("service %s: mount at %s: %w", config.Service.Name, mount.Target, err)
				}
			}
		}
		if err := v.check(); err != nil {
			return m, fmt.Errorf("service %s: mount at %s: %w", config.Service.Name, mount.Target, err)
		}
		at := slices.IndexFunc(m.list, func(o Volume) bool { return o.Project == v.Project && o.Name == v.Name })
		if at < 0 {
			at = len(m.list)
			m.list = append(m.list, v)
		}
		m.byName[name] = at
	}
	return m, nil
}

// complete adds the image's volumes to the mounts of the service.
func (c Config) complete() (Config, error) {
	if len(c.Image.Volumes) > maxImageVolumes {
		return c, fmt.Errorf("the image of service %s declares %d volumes; the limit is %d", c.Service.Name, len(c.Image.Volumes), maxImageVolumes)
	}
	service := *c.Service
	service.Mounts = slices.Clone(service.Mounts)
	for _, target := range slices.Sorted(maps.Keys(c.Image.Volumes)) {
		target = path.Join("/", target)
		if target == "/" || mountedAt(&service, target) {
			continue
		}
		service.Mounts = append(service.Mounts, compose.Mount{Anonymous: true, Target: target})
	}
	c.Service = &service
	return c, nil
}

func mountedAt(s *compose.Service, target string) bool {
	return slices.ContainsFunc(s.Mounts, func(m compose.Mount) bool { return m.Target == target }) ||
		slices.ContainsFunc(s.Tmpfs, func(t compose.Tmpfs) bool { return t.Target == target }) ||
		slices.ContainsFunc(s.Files, func(f compose.File) bool { return f.Target == target })
}

// volumeName returns the name of a mount's volume; "": it has none.
func (c Config) volumeName(m compose.Mount) string {
	if m.Anonymous {
		sum := sha256.Sum256([]byte(m.Target))
		service, number := c.Labels.Service, c.Labels.Number
		if m.Of != "" {
			service, number = m.Of, 1
		}
		return service + "-" + strconv.Itoa(number) + anonymousMark + hex.EncodeToString(sum[:4])
	}
	return m.Volume
}

// find looks for PROJECT_VOLUME of another project, else a directory made by hand.
func (vs *volumes) find(ctx context.Context, name string) (Volume, error) {
	if !compose.ValidName(name) {
		return Volume{}, fmt.Errorf("%.80q is not a volume name", name)
	}
	found := make(map[string]Volume) // by project
	for i := range len(name) {
		if name[i] != '_' {
			continue
		}
		project, volume := name[:i], name[i+1:]
		if compose.ValidName(project) && compose.ValidName(volume) && exists(vs.VolumeDir(project, volume)) {
			found[project] = Volume{Project: project, Name: volume}
		}
	}
	// Mounted volumes lie in no directory, but in the records of containers.
	all, err := vs.Recorded(ctx)
	if err != nil {
		return Volume{}, err
	}
	for _, container := range all {
		project := container.Labels.Project
		for _, v := range container.Labels.Volumes {
			if v.Type != "" && v.Project == "" && project+"_"+v.Name == name {
				v.Project = project
				found[project] = v
			}
		}
	}
	byHandDir := vs.VolumeDir(byHand, name)
	if len(found) == 0 && exists(byHandDir) {
		found[byHand] = Volume{Project: byHand, Name: name}
	}
	for _, v := range found {
		if len(found) == 1 {
			return v, nil
		}
		return Volume{}, fmt.Errorf("external volume %s: %w under this name alone: %d projects have such a volume", name, ErrNotFound, len(found))
	}
	return Volume{}, fmt.Errorf("external volume %s: %w: use PROJECT_VOLUME of another project, or create the directory %s", name, ErrNotFound, byHandDir)
}

// fillVolume fills an empty volume that no running container mounts.
func (c *Containers) fillVolume(ctx context.Context, project string, v Volume, root, target string) error {
	dir := c.volumeDir(project, v)
	if empty, err := isEmpty(dir); err != nil || !empty {
		return err
	}
	all, err := c.List(ctx)
	if err != nil {
		return err
	}
	running := slices.DeleteFunc(all, func(c Container) bool { return c.State == Created })
	if len(c.volumes.users(running)[dir]) > 0 {
		return nil
	}
	return fillVolume(dir, root, target, v.Type != "")
}

// fillVolume fills an empty volume from the image as Docker does: content, owner and mode. It
// replaces the volume as a whole, on the medium, or leaves it empty; a mounted one cannot be
// replaced, so it is written into. No container may have it mounted.
func fillVolume(dir, root, target string, mounted bool) (err error) {
	source, err := confs.RootPath(root, target)
	if err != nil {
		return fmt.Errorf("cannot find %s in image: %w", target, err)
	}
	if info, err := os.Lstat(source); err != nil || !info.IsDir() {
		return nil // nothing to copy; the mount hides it anyway
	}
	into := dir
	if !mounted {
		if into, err = os.MkdirTemp(filepath.Dir(dir), "."+filepath.Base(dir)+".filling-"); err != nil {
			return fmt.Errorf("cannot fill volume: %w", err)
		}
		defer func() { err = errors.Join(err, os.RemoveAll(into)) }() // renamed by then, or useless
	}
	if err := confs.CopyDir(into, source); err != nil {
		return fmt.Errorf("cannot fill volume: %w", err)
	}
	if err := tree.SyncAll(into); err != nil || mounted {
		return err
	}
	// The kernel replaces an empty directory, unlike os.Rename; a volume with content wins.
	err = unix.Rename(into, dir)
	if err != nil && !errors.Is(err, fs.ErrExist) && !errors.Is(err, unix.ENOTEMPTY) {
		return fmt.Errorf("cannot fill volume: %w", err)
	}
	return tree.Sync(filepath.Dir(dir))
}

// isEmpty reads only one name, however many there are.
func isEmpty(dir string) (bool, error) {
	f, err := os.OpenFile(dir, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return false, err
	}
	defer f.Close()
	_, err = f.Readdirnames(1)
	if errors.Is(err, io.EOF) {
		return true, nil
	}
	return false, err
}
