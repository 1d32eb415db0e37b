package container

import (
	"context"
	"fmt"

	"github.com/margolite/margolite/runtime/compose"
)

// find looks for an external volume: PROJECT_VOLUME of another project, else
// the directory of that name that somebody made by hand for all projects.
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
	// What is mounted lies in no directory: containers tell of it.
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
