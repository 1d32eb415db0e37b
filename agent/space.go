package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sort"
	"time"

	"github.com/margolite/margolite/runtime"
	"github.com/margolite/margolite/store"
)

const (
	// fullLook is how often free space is checked for what did not fit: one look at the file
	// system, no request and no write.
	fullLook = 10 * time.Second
	// fullMost bounds the time between attempts for want of space when the need is unknown.
	fullMost = 30 * time.Second
)

func isFull(err error) bool {
	var f *fault
	return errors.As(err, &f) && f.code == codeStorageFull || errors.Is(err, store.ErrFull)
}

// idle waits for d, for another desired state, for runs, or until ready, if not nil, returns
// true. It returns which of the channels ended it.
func (w *worker) idle(ctx context.Context, d time.Duration, runs <-chan struct{}, ready func() bool) (desired, ran bool) {
	end := time.NewTimer(d)
	defer end.Stop()
	var look <-chan time.Time
	if ready != nil {
		looks := time.NewTicker(fullLook)
		defer looks.Stop()
		look = looks.C
	}
	for {
		select {
		case <-ctx.Done():
			return false, false
		case <-end.C:
			return false, false
		case <-w.desired:
			return true, false
		case <-runs:
			return false, true
		case <-look:
			if ready() {
				return false, false
			}
		}
	}
}

// spare refuses to begin a change on a full device, where containers could neither be made nor
// restored. The change stays pending.
func (r *reconciler) spare(ctx context.Context) error {
	if err := r.runtime.Spare(ctx); err != nil {
		return runtimeFault("", err)
	}
	return nil
}

// makeRoom drops what nothing that runs needs until what failed with err may fit: first what
// nothing needs at all, then the revision that d could be rolled back to by hand, then those of
// others, the oldest first. What worked last is never dropped. some: something was dropped. No
// deployment, the caller's included, may be staging meanwhile.
func (r *reconciler) makeRoom(ctx context.Context, d *store.Deployment, err error) (some bool, failed error) {
	enough := func() (bool, error) {
		dropped, failed := r.dropUnneeded(ctx)
		some = some || dropped > 0
		return some && !runtime.Persists(err), failed
	}
	// Retry later while other deployments are staged: the space may be theirs.
	_, failed = r.projects.whileAlone(ctx, func() error {
		if done, failed := enough(); done || failed != nil {
			return failed
		}
		formers, failed := r.formers(d.ID)
		if failed != nil {
			return failed
		}
		for _, of := range formers {
			dropped := of.Former.Digest.String()
			failed := r.ledger.step(&of, "drop former revision", func(of *store.Deployment) { of.Former = nil })
			if errors.Is(failed, errSuperseded) || errors.Is(failed, store.ErrNotFound) {
				continue
			}
			if failed != nil {
				return failed
			}
			r.logger.Warn("dropped the previous revision to free space", "deployment", of.ID, "revision", dropped, "for", d.ID)
			if done, failed := enough(); done || failed != nil {
				return failed
			}
		}
		return nil
	})
	return some, failed
}

// formers are deployments that have a revision before the one that worked last: first's own, then
// the others by age, the oldest first.
func (r *reconciler) formers(first string) ([]store.Deployment, error) {
	all, err := r.store.Deployments()
	if err != nil {
		return nil, fmt.Errorf("cannot read the deployments: %w", err)
	}
	all = slices.DeleteFunc(all, func(d store.Deployment) bool { return d.Former == nil })
	sort.SliceStable(all, func(i, j int) bool {
		if isFirst := all[i].ID == first; isFirst != (all[j].ID == first) {
			return isFirst
		}
		return all[i].Since.Before(all[j].Since)
	})
	return all, nil
}

// dropUnneeded drops images and artifacts that no revision needs, and returns the number of
// images. Nobody may bring or drop images meanwhile.
func (r *reconciler) dropUnneeded(ctx context.Context) (int, error) {
	n, err := r.ledger.needs()
	if err != nil {
		return 0, err
	}
	removed, err := r.runtime.Prune(ctx, runtime.Keep{Images: n.images, Fetching: n.fetching})
	if err != nil {
		return len(removed), err
	}
	return len(removed), r.ledger.prune()
}
