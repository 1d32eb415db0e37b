package container

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/margolite/margolite/runtime/tree"
)

// VolumeInfo describes a volume with content on this device.
type VolumeInfo struct {
	Project string // owner; "_": made by hand
	Name    string
	UsedBy  []string // IDs of the containers that mount it, running or not
}

// Volumes returns the volumes that are directories of ours, sorted by project and name.
func (vs *volumes) Volumes(ctx context.Context) ([]VolumeInfo, error) {
	all, err := vs.Recorded(ctx)
	if err != nil {
		return nil, fmt.Errorf("cannot list volumes: %w", err)
	}
	dirs, _ := filepath.Glob(vs.VolumeDir("*", "*")) // sorted; the pattern is valid
	users := vs.users(all)
	var volumes []VolumeInfo
	for _, dir := range dirs {
		v := VolumeInfo{Project: filepath.Base(filepath.Dir(dir)), Name: filepath.Base(dir)}
		if strings.HasPrefix(v.Name, ".") || (Volume{Name: v.Name, Project: v.Project}).check() != nil {
			continue // a temporary directory of ours
		}
		v.UsedBy = users[dir]
		volumes = append(volumes, v)
	}
	return volumes, nil
}

func (vs *volumes) users(all []Container) map[string][]string {
	users := make(map[string][]string)
	for _, container := range all {
		for _, v := range container.Labels.Volumes {
			dir := vs.volumeDir(container.Labels.Project, v)
			if !slices.Contains(users[dir], container.ID) { // it may have the volume by two names
				users[dir] = append(users[dir], container.ID)
			}
		}
	}
	return users
}

// VolumeSize returns bytes on the medium; with an error, those counted so far.
func (vs *volumes) VolumeSize(ctx context.Context, project, name string) (int64, error) {
	size, err := tree.Size(ctx, vs.VolumeDir(project, name))
	if errors.Is(err, fs.ErrNotExist) { // gone in the meantime
		return 0, nil
	}
	if err != nil {
		return size, fmt.Errorf("cannot measure volume %s of project %s: %w", name, project, err)
	}
	return size, nil
}

// RemoveVolume deletes a volume, if it exists. ErrInUse: a container mounts it.
func (vs *volumes) RemoveVolume(ctx context.Context, project, name string) error {
	if err := vs.remove(ctx, Volume{Project: project, Name: name}); err != nil {
		return fmt.Errorf("cannot remove volume %s of project %s: %w", name, project, err)
	}
	return nil
}

func (vs *volumes) remove(ctx context.Context, v Volume) error {
	if v.Project == "" {
		return errors.New("project is missing")
	}
	if err := v.check(); err != nil {
		return err
	}
	dir := vs.VolumeDir(v.Project, v.Name)
	removing := filepath.Join(filepath.Dir(dir), "."+filepath.Base(dir)+".removing") // no volume's name starts with a dot
	// This may take long. Meanwhile others may create containers.
	if err := tree.Remove(ctx, removing); err != nil { // from an interrupted attempt
		return err
	}
	if err := vs.setAside(ctx, dir, removing); err != nil {
		return err
	}
	if err := tree.Remove(ctx, removing); err != nil {
		return err
	}
	vs.naming.Lock()
	defer vs.naming.Unlock()
	if err := os.Remove(filepath.Dir(dir)); err == nil || errors.Is(err, fs.ErrNotExist) {
		return nil // it was the project's last
	}
	return tree.Sync(filepath.Dir(dir))
}

// setAside moves an unused volume away as a whole, so that a kill leaves no partial volume.
func (vs *volumes) setAside(ctx context.Context, dir, removing string) error {
	vs.naming.Lock()
	defer vs.naming.Unlock()
	all, err := vs.Recorded(ctx)
	if err != nil {
		return err
	}
	if users := vs.users(all)[dir]; len(users) > 0 {
		return fmt.Errorf("%w: container %s mounts it", ErrInUse, users[0])
	}
	if err := os.Rename(dir, removing); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
