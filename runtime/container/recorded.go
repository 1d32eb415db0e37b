package container

import (
	"context"
	"fmt"
)

// Recorded returns the containers of this runtime like List, without saying what
// they do. It asks no shim, and takes one call.
func (c *Containers) Recorded(ctx context.Context) ([]Container, error) {
	records, err := c.o.Client.ContainerService().List(ctx, `labels."`+OwnerKey+`"`)
	if err != nil {
		return nil, fmt.Errorf("cannot list containers: %w", err)
	}
	list := make([]Container, 0, len(records))
	for _, r := range records {
		if labels, err := labelsOf(r); err == nil { // List says what is wrong with others
			list = append(list, Container{ID: r.ID, Labels: labels, Image: r.Image, Created: r.CreatedAt})
		}
	}
	return list, nil
}
