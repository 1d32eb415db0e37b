package container

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
)

// findVolume looks for a volume that another project, or somebody by hand, made:
// PROJECT_VOLUME of that project, else NAME of the only project that has one.
func (c *Containers) findVolume(ctx context.Context, name string) (Volume, error) {
	if !ValidName(name) {
		return Volume{}, fmt.Errorf("%.80q is not a volume name", name)
	}
	var found []Volume
	add := func(v Volume) {
		if !slices.ContainsFunc(found, func(f Volume) bool { return f.Project == v.Project && f.Name == v.Name }) {
			found = append(found, v)
		}
	}
	// What is mounted lies in no directory: containers tell of it.
	all, err := c.List(ctx)
	if err != nil {
		return Volume{}, err
	}
	typed := func(match func(project, volume string) bool) {
		for _, container := range all {
			for _, v := range container.Labels.Volumes {
				if v.Type != "" && v.Project == "" && match(container.Labels.Project, v.Name) {
					v.Project = container.Labels.Project
					add(v)
				}
			}
		}
	}

	for i := range len(name) {
		if name[i] != '_' {
			continue
		}
		project, volume := name[:i], name[i+1:]
		if ValidName(project) && ValidName(volume) && exists(c.VolumeDir(project, volume)) {
			add(Volume{Project: project, Name: volume})
		}
	}
	typed(func(project, volume string) bool { return project+"_"+volume == name })
	if len(found) == 0 {
		dirs, err := filepath.Glob(c.VolumeDir("*", name)) // a valid name has no wildcard
		if err != nil {
			return Volume{}, err
		}
		for _, dir := range dirs {
			add(Volume{Project: filepath.Base(filepath.Dir(dir)), Name: name})
		}
		typed(func(_, volume string) bool { return volume == name })
	}
	switch len(found) {
	case 1:
		return found[0], nil
	case 0:
		return Volume{}, fmt.Errorf("external volume %s: %w: apply the project that defines it, or create the directory %s", name, ErrNotFound, c.VolumeDir(byHand, name))
	default:
		return Volume{}, fmt.Errorf("external volume %s: %w under this name alone: projects %s and %s have it; name it PROJECT_%s", name, ErrNotFound, found[0].Project, found[1].Project, name)
	}
}
