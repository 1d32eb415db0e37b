package container

import (
	"context"
	"fmt"

	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/errdefs"
)

// Recorded returns the containers of this runtime like List, without saying what
// they do: State is Created. It asks no shim, and takes one call.
func (c *Containers) Recorded(ctx context.Context) ([]Container, error) {
	return c.recorded(ctx, fmt.Sprintf("labels.%q", OwnerKey))
}

// RecordedOf is Recorded for the containers of one project.
func (c *Containers) RecordedOf(ctx context.Context, project string) ([]Container, error) {
	list, err := c.recorded(ctx, ofProject(project))
	if err != nil {
		return nil, fmt.Errorf("project %s: %w", project, err)
	}
	return list, nil
}

func ofProject(project string) string { return fmt.Sprintf("labels.%q==%q", OwnerKey, project) }

func (c *Containers) recorded(ctx context.Context, filter string) ([]Container, error) {
	records, err := c.o.Client.ContainerService().List(ctx, filter)
	if err != nil {
		return nil, fmt.Errorf("cannot list containers: %w", err)
	}
	return c.owned(records)
}

// RecordedIDs is ListIDs without saying what the containers do.
func (c *Containers) RecordedIDs(ctx context.Context, ids []string) ([]Container, error) {
	records := make([]containers.Container, 0, len(ids))
	for _, id := range ids {
		record, err := c.o.Client.ContainerService().Get(ctx, id)
		if errdefs.IsNotFound(err) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("cannot read container %s: %w", id, err)
		}
		records = append(records, record)
	}
	return c.owned(records)
}

// Projects names the projects that have containers.
func (c *Containers) Projects(ctx context.Context) (map[string]bool, error) {
	records, err := c.o.Client.ContainerService().List(ctx, fmt.Sprintf("labels.%q", OwnerKey))
	if err != nil {
		return nil, fmt.Errorf("cannot list containers: %w", err)
	}
	projects := make(map[string]bool)
	for _, r := range records {
		projects[r.Labels[OwnerKey]] = true
	}
	return projects, nil
}

// ProjectOf names the project of a container, by its record; "" where there is
// none, or it is not of this runtime.
func (c *Containers) ProjectOf(ctx context.Context, id string) (string, error) {
	record, err := c.o.Client.ContainerService().Get(ctx, id)
	if errdefs.IsNotFound(err) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("cannot determine the project of container %s: %w", id, err)
	}
	return record.Labels[OwnerKey], nil
}
