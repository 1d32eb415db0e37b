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

// VolumeInfo is a volume with its content on this device.
type VolumeInfo struct {
	Project string // whose it is; "_": made by hand
	Name    string
	UsedBy  []string // ids of the containers that mount it, running or not
}

// Volumes are the volumes that are directories of ours, sorted by project and name.
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
			continue // of ours, while something is done
		}
		v.UsedBy = users[dir]
		volumes = append(volumes, v)
	}
	return volumes, nil
}

// users are the ids of the containers that mount a volume, by its directory.
func (vs *volumes) users(all []Container) map[string][]string {
	users := make(map[string][]string)
	for _, container := range all {
		for _, v := range container.Labels.Volumes {
			dir := vs.volumeDir(container.Labels.Project, v)
			if !slices.Contains(users[dir], container.ID) { // which may have it by two names
				users[dir] = append(users[dir], container.ID)
			}
		}
	}
	return users
}

// VolumeSize is how many bytes of the medium a volume takes; with an error, what was counted until then.
func (vs *volumes) VolumeSize(ctx context.Context, project, name string) (int64, error) {
	size, err := tree.Size(ctx, vs.VolumeDir(project, name))
	if errors.Is(err, fs.ErrNotExist) { // gone meanwhile
		return 0, nil
	}
	if err != nil {
		return size, fmt.Errorf("cannot measure volume %s of project %s: %w", name, project, err)
	}
	return size, nil
}

// RemoveVolume deletes a volume with its content. One that a container mounts is
// kept, and the error wraps ErrInUse. Removing what is not there is no error.
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
	// It may take long. Meanwhile others may create containers.
	if err := tree.Remove(ctx, removing); err != nil { // of an attempt that was broken off
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
		return nil // it was the last of its project
	}
	return tree.Sync(filepath.Dir(dir))
}

// setAside takes a volume that nobody mounts away as a whole: a kill half-way
// leaves nothing that looks like a volume.
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
