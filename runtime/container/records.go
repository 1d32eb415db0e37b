package container

import (
	"context"
	"fmt"
	"log/slog"
	"os"

	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/errdefs"

	"github.com/margolite/margolite/runtime/compose"
	"github.com/margolite/margolite/runtime/containerd"
)

type records struct {
	client    containerd.Client
	namespace string
	owner     string // Options.StateDir, resolved
	logger    *slog.Logger
}

// Recorded is List without states: State is Created. It asks no shim, and takes one call.
func (r *records) Recorded(ctx context.Context) ([]Container, error) {
	return r.recorded(ctx, fmt.Sprintf("labels.%q", OwnerKey))
}

// RecordedOf is Recorded for one project.
func (r *records) RecordedOf(ctx context.Context, project string) ([]Container, error) {
	list, err := r.recorded(ctx, ofProject(project))
	if err != nil {
		return nil, fmt.Errorf("project %s: %w", project, err)
	}
	return list, nil
}

func ofProject(project string) string { return fmt.Sprintf("labels.%q==%q", OwnerKey, project) }

func (r *records) recorded(ctx context.Context, filter string) ([]Container, error) {
	found, err := r.client.ContainerService().List(ctx, filter)
	if err != nil {
		return nil, fmt.Errorf("cannot list containers: %w", err)
	}
	return r.owned(found)
}

// RecordedIDs is ListIDs without states.
func (r *records) RecordedIDs(ctx context.Context, ids []string) ([]Container, error) {
	found := make([]containers.Container, 0, len(ids))
	for _, id := range ids {
		record, err := r.client.ContainerService().Get(ctx, id)
		if errdefs.IsNotFound(err) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("cannot read container %s: %w", id, err)
		}
		found = append(found, record)
	}
	return r.owned(found)
}

// Projects returns the names of the projects that have containers.
func (r *records) Projects(ctx context.Context) (map[string]bool, error) {
	found, err := r.client.ContainerService().List(ctx, fmt.Sprintf("labels.%q", OwnerKey))
	if err != nil {
		return nil, fmt.Errorf("cannot list containers: %w", err)
	}
	projects := make(map[string]bool)
	for _, record := range found {
		projects[record.Labels[OwnerKey]] = true
	}
	return projects, nil
}

// ProjectOf returns the project of a container; "" if it does not exist or is not ours.
func (r *records) ProjectOf(ctx context.Context, id string) (string, error) {
	record, err := r.client.ContainerService().Get(ctx, id)
	if errdefs.IsNotFound(err) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("cannot determine the project of container %s: %w", id, err)
	}
	return record.Labels[OwnerKey], nil
}

func (r *records) read(ctx context.Context, id string) (containers.Container, Labels, error) {
	record, err := r.client.ContainerService().Get(ctx, id)
	if err != nil {
		return record, Labels{}, err
	}
	labels, err := labelsOf(record)
	return record, labels, err
}

// owned logs records that cannot be decoded. It fails if one is another margolite's.
func (r *records) owned(found []containers.Container) ([]Container, error) {
	list := make([]Container, 0, len(found))
	for _, f := range found {
		// They would undo each other's work.
		if owner := f.Labels[keyOwner]; !r.isOwner(owner) {
			return nil, fmt.Errorf("cannot list containers: %w: containerd namespace %q belongs to the margolite with the state directory %s",
				ErrOtherOwner, r.namespace, owner)
		}
		// Without the specification: this runs often, and [Containers.sweepOnce] removed damaged ones.
		labels, err := Decode(f.Labels, contentOf(f.Extensions[detailsKey]))
		if err != nil {
			r.logger.Warn("ignoring a container", "container", f.ID, "error", err)
			continue
		}
		list = append(list, Container{ID: f.ID, Labels: labels, Image: f.Image, Created: f.CreatedAt, State: Created})
	}
	return list, nil
}

// isOwner allows another path for this state directory, as after a changed mount.
func (r *records) isOwner(dir string) bool {
	if dir == r.owner {
		return true
	}
	theirs, err := os.Stat(dir)
	if err != nil {
		return false
	}
	own, err := os.Stat(r.owner)
	return err == nil && os.SameFile(own, theirs)
}

// MarkDone records that a one-shot service must never start again, even after a reboot.
func (r *records) MarkDone(ctx context.Context, id string) error {
	if err := r.setLabel(ctx, id, keyExited, "0"); err != nil {
		return fmt.Errorf("cannot mark container %s as done: %w", id, err)
	}
	return nil
}

// SetDependsOn changes the recorded dependencies of a container.
func (r *records) SetDependsOn(ctx context.Context, id string, dependencies []compose.Dependency) error {
	if err := r.setLabel(ctx, id, keyDependsOn, encodeDependencies(dependencies)); err != nil {
		return fmt.Errorf("cannot record what container %s depends on: %w", id, err)
	}
	return nil
}

// announceStop returns a container's labels, which tell how to stop it. For a one-shot
// service it first records the stop: exiting with 0 on request does not make it done, and
// the record tells that even if this process is killed here.
func (r *records) announceStop(ctx context.Context, id string) (Labels, error) {
	_, labels, err := r.read(ctx, id)
	if errdefs.IsNotFound(err) {
		return Labels{Details: Details{StopSignal: "SIGTERM", StopGrace: defaultGrace}}, nil
	}
	if err == nil && labels.Restart.OneShot() {
		err = r.setLabel(ctx, id, keyStopping, "1")
	}
	return labels, err
}

func (r *records) setLabel(ctx context.Context, id, key, value string) error {
	record := containers.Container{ID: id, Labels: map[string]string{key: value}}
	_, err := r.client.ContainerService().Update(ctx, record, "labels."+key)
	if errdefs.IsNotFound(err) {
		return nil
	}
	return err
}
