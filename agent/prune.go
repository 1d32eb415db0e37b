package agent

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/margolite/margolite/agent/control"
	"github.com/margolite/margolite/agent/margo"
	"github.com/margolite/margolite/runtime"
)

const (
	pruneWait = 5 * time.Second
	pruneLook = 50 * time.Millisecond
)

// needs is what records need beyond what containers use.
type needs struct {
	artifacts map[digest.Digest]bool
	images    []map[string]digest.Digest
	projects  []string // whose volumes stay
	fetching  []string // whose images are still to come
}

// keep selects the images to keep. Nobody fetches any meanwhile.
func (n needs) keep() runtime.Keep { return runtime.Keep{Images: n.images, Fetching: n.projects} }

// needs are those of projects being brought onto the device and of the agent's records.
func (p *Projects) needs() (needs, error) {
	n, err := p.remembered()
	n.projects = append(n.projects, p.staging.Parties(others)...)
	return n, err
}

// Unneeded lists images and volumes that neither a container nor a revision of a deployment
// needs. A revision kept for a rollback by hand counts, until another deployment needs the space
// (see makeRoom).
func (p *Projects) Unneeded(ctx context.Context) ([]control.Unneeded, error) {
	n, err := p.needs()
	if err != nil {
		return nil, err
	}
	images, err := p.runtime.UnusedImages(ctx, n.keep())
	if err != nil {
		return nil, err
	}
	volumes, err := p.runtime.StoredVolumes(ctx)
	if err != nil {
		return nil, err
	}
	var items []control.Unneeded
	for _, v := range volumes {
		if !v.Used && !slices.Contains(n.projects, v.Project) {
			item := control.Unneeded{Kind: control.UnneededVolume, Project: v.Project, Name: v.Name, Bytes: v.Bytes}
			if v.Err != nil {
				item.Error = margo.Shown(v.Err.Error(), control.MaxReason)
			}
			items = append(items, item)
		}
	}
	for _, i := range images {
		items = append(items, control.Unneeded{Kind: control.UnneededImage, Name: i.Name, Bytes: i.Bytes})
	}
	return items, nil
}

// Prune removes the given items that are unneeded: volumes one by one, images all or none. Images
// being brought are in no record yet, so pruning images waits a while for others that bring or
// drop some. If that takes longer, an agent drops the images afterwards, and marks them with
// Later in the answer.
func (p *Projects) Prune(ctx context.Context, items []control.Unneeded) ([]control.Unneeded, error) {
	known, err := p.Unneeded(ctx)
	if err != nil {
		return nil, err
	}
	volumes, images := chosen(known, items)
	removed, err := p.pruneVolumes(ctx, volumes)
	if len(images) == 0 {
		return removed, err
	}
	var gone []control.Unneeded
	alone, failed := p.whileAlone(ctx, func() error {
		n, err := p.needs()
		if err != nil {
			return err
		}
		names, err := p.runtime.Prune(ctx, n.keep())
		for _, item := range images {
			if slices.Contains(names, item.Name) {
				gone = append(gone, item)
			}
		}
		return err
	})
	switch {
	case alone:
		removed = append(removed, gone...)
	case ctx.Err() != nil:
		failed = ctx.Err()
	default:
		p.later()
		for _, item := range images {
			item.Later = true
			removed = append(removed, item)
		}
	}
	return removed, errors.Join(err, failed)
}

func chosen(known, items []control.Unneeded) (volumes, images []control.Unneeded) {
	for _, item := range known {
		switch {
		case !slices.ContainsFunc(items, func(i control.Unneeded) bool {
			return i.Kind == item.Kind && i.Project == item.Project && i.Name == item.Name
		}):
		case item.Kind == control.UnneededImage:
			images = append(images, item)
		default:
			volumes = append(volumes, item)
		}
	}
	return volumes, images
}

// pruneVolumes removes the given volumes that are still unneeded. A failure stops no other.
func (p *Projects) pruneVolumes(ctx context.Context, volumes []control.Unneeded) (removed []control.Unneeded, err error) {
	for _, item := range volumes {
		n, failed := p.needs()
		if failed != nil {
			return removed, errors.Join(err, failed)
		}
		if slices.Contains(n.projects, item.Project) {
			continue
		}
		failed = p.runtime.RemoveVolume(ctx, item.Project, item.Name)
		switch {
		case failed == nil:
			removed = append(removed, item)
		case runtime.CodeOf(failed) == runtime.Conflict: // in use again
		default:
			err = errors.Join(err, failed)
		}
	}
	return removed, err
}
