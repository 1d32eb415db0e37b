package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/margolite/margolite/agent/control"
	"github.com/margolite/margolite/runtime"
	"github.com/margolite/margolite/store"
)

const (
	pruneWait = 5 * time.Second
	pruneLook = 50 * time.Millisecond
)

// needs is what records ask for beyond what the containers use.
type needs struct {
	images   []map[string]digest.Digest
	projects []string // whose volumes stay
}

// keep is what they leave of the images. Nobody fetches any while we look.
func (n needs) keep() runtime.Keep { return runtime.Keep{Images: n.images, Fetching: n.projects} }

// Unneeded lists the images that no container uses, and the volumes that no
// container mounts.
func (p *Projects) Unneeded(ctx context.Context) ([]control.Unneeded, error) {
	return p.unneeded(ctx, needs{})
}

// Prune removes what is unneeded, of the given things: volumes one by one,
// images all or none.
func (p *Projects) Prune(ctx context.Context, items []control.Unneeded) ([]control.Unneeded, error) {
	if !p.staging.TryLock() {
		return nil, errBusy
	}
	defer p.staging.Unlock()
	return p.prune(ctx, items, needs{})
}

// errBusy: what is brought onto the device now is in no record yet.
var errBusy = fmt.Errorf("%w: images are being brought onto the device; try again when that is done", control.ErrConflict)

// Unneeded lists what neither a container nor a revision of a deployment needs.
// One that a deployment can be brought back to by hand is needed for that, until
// another deployment needs the space (see makeRoom).
func (a *Agent) Unneeded(ctx context.Context) ([]control.Unneeded, error) {
	n, err := a.needs()
	if err != nil {
		return nil, err
	}
	return a.unneeded(ctx, n)
}

// Prune removes what is unneeded, of the given things. It waits a while for
// others that bring images or drop them, as the agent itself does after a change.
func (a *Agent) Prune(ctx context.Context, items []control.Unneeded) ([]control.Unneeded, error) {
	waiting, stop := context.WithTimeout(ctx, pruneWait)
	defer stop()
	for range stagingAtOnce {
		select {
		case a.reconciler.staging <- struct{}{}:
			defer func() { <-a.reconciler.staging }()
		case <-waiting.Done():
			return nil, errBusy
		}
	}
	for !a.staging.TryLock() {
		select {
		case <-time.After(pruneLook):
		case <-waiting.Done():
			return nil, errBusy
		}
	}
	defer a.staging.Unlock()
	n, err := a.needs()
	if err != nil {
		return nil, err
	}
	return a.prune(ctx, items, n)
}

// needs are those of all deployments that the store knows.
func (a *Agent) needs() (needs, error) {
	deployments, err := a.o.Store.Deployments()
	if err != nil {
		// A record that cannot be read may need any of them.
		return needs{}, fmt.Errorf("cannot read the deployments: %w", err)
	}
	var n needs
	for i := range deployments {
		d := &deployments[i]
		n.projects = append(n.projects, stagedProjects(d)...)
		for _, c := range d.Components {
			n.projects = append(n.projects, projectName(d.ID, c.Name))
		}
		for _, s := range d.Desired.Staged {
			n.images = append(n.images, s.Images)
		}
		for _, kept := range []*store.Revision{d.Active, d.Former} {
			if kept == nil {
				continue
			}
			for _, s := range kept.Staged {
				n.images = append(n.images, s.Images)
			}
		}
	}
	return n, nil
}

func (p *Projects) unneeded(ctx context.Context, n needs) ([]control.Unneeded, error) {
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
			items = append(items, control.Unneeded{Kind: control.UnneededVolume, Project: v.Project, Name: v.Name, Bytes: v.Bytes})
		}
	}
	for _, i := range images {
		items = append(items, control.Unneeded{Kind: control.UnneededImage, Name: i.Name, Bytes: i.Bytes})
	}
	return items, nil
}

func (p *Projects) prune(ctx context.Context, items []control.Unneeded, n needs) (removed []control.Unneeded, err error) {
	now, err := p.unneeded(ctx, n)
	if err != nil {
		return nil, err
	}
	wanted := func(item control.Unneeded) bool {
		return slices.ContainsFunc(items, func(i control.Unneeded) bool {
			return i.Kind == item.Kind && i.Project == item.Project && i.Name == item.Name
		})
	}
	images := false
	for _, item := range now {
		switch {
		case !wanted(item):
		case item.Kind == control.UnneededImage:
			images = true
		default:
			if failed := p.runtime.RemoveVolume(ctx, item.Project, item.Name); failed != nil {
				err = errors.Join(err, failed)
				continue
			}
			removed = append(removed, item)
		}
	}
	if !images {
		return removed, err
	}
	names, failed := p.runtime.Prune(ctx, n.keep())
	for _, item := range now {
		if item.Kind == control.UnneededImage && slices.Contains(names, item.Name) {
			removed = append(removed, item)
		}
	}
	return removed, errors.Join(err, failed)
}
