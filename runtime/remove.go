package runtime

import (
	"context"
	"errors"
	"time"

	"github.com/margolite/margolite/runtime/compose"
)

// RemoveOptions are the options of RemoveWith.
type RemoveOptions struct {
	Volumes     bool           // its volumes, too
	StopTimeout *time.Duration // instead of each container's own
	Notify      func(Event)    // called as things happen, one call at a time; nil: nothing
}

// Remove removes all of a project, which need not exist, except its volumes.
func (e *Engine) Remove(ctx context.Context, project string) error {
	return e.RemoveWith(ctx, project, RemoveOptions{})
}

// RemoveWith is Remove with options. What projects share, as networks, goes with the last of them.
func (e *Engine) RemoveWith(ctx context.Context, project string, o RemoveOptions) error {
	if !compose.ValidName(project) {
		return &Error{Code: Unsupported, Object: project, Err: errors.New("not a valid project name")}
	}
	ctx = e.within(ctx)
	letGo, err := e.projects.take(ctx, project)
	if err != nil {
		return fail(Internal, project, err)
	}
	defer letGo(&made{})
	e.places.claimNothing(project)
	defer e.places.unclaim(project)

	r := &run{e: e, project: project, notify: o.Notify, grace: o.StopTimeout}
	err = r.converge(ctx, &applying{run: r}) // of nothing
	if err == nil {
		// Removes what no label refers to.
		err = e.containers.RemoveProject(ctx, project)
	}
	if err == nil {
		err = e.places.sweep(ctx, project)
	}
	if err == nil && o.Volumes {
		err = removeVolumes(ctx, e.containers, project)
	}
	if err == nil {
		err = e.packages.remove(ctx, project)
	}
	if err != nil {
		return fail(Internal, project, err)
	}
	return nil
}

// Clear removes every project and leftovers of former ones. It returns the names of those removed.
func (e *Engine) Clear(ctx context.Context) ([]string, error) {
	projects, err := e.Observe(ctx)
	if err != nil {
		return nil, err
	}
	var removed []string
	for _, p := range projects {
		if err := e.Remove(ctx, p.Name); err != nil {
			return removed, err
		}
		removed = append(removed, p.Name)
	}
	if err := e.places.sweep(e.within(ctx), ""); err != nil {
		return removed, fail(Internal, "networks", err)
	}
	return removed, nil
}
