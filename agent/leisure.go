package agent

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/margolite/margolite/store"
)

const (
	// Bounds of the time between tries of a failed update: what worked stops for each of them.
	leisureFirst = 5 * time.Minute
	leisureMost  = 24 * time.Hour
)

// tries is what a worker knows of its attempts at one revision beyond the record. It is in memory
// only: waiting writes nothing.
type tries struct {
	revision  digest.Digest
	counted   bool   // this process has counted the beginning of an attempt, and not its end
	downloads bool   // it cannot be staged without downloading
	slow      string // why the last attempt to stage it was slow; empty: it was not

	// When an update that failed temporarily is tried again, see Phase:
	pause backoff   // until it is retried in any case
	least backoff   // until it is retried because the device has recovered
	due   time.Time // by a clock that cannot be set; zero: not decided yet
	soon  time.Time
	ails  bool // the device has been at fault since the last try
}

func triesOf(revision digest.Digest) tries {
	return tries{revision: revision, pause: backoff{first: leisureFirst, most: leisureMost}, least: backoff{first: fullLook, most: leisureMost}}
}

type resting struct{ code string }

func (r *resting) Error() string {
	return fmt.Sprintf("it will be retried, since the failure may be temporary (%s)", r.code)
}

func (r *reconciler) triedAgain(d *store.Deployment) bool {
	return hasFormer(d) && d.Return != returnLeft && passing(codeOf(d.Fault)) && !r.leftToPeople(d)
}

// ripe returns nil when a failed update may be retried: it is due, there is space, and all it
// needs is on the device. Else the error is *resting, or ctx's.
func (r *reconciler) ripe(ctx context.Context, w *worker, d *store.Deployment) error {
	l, now := &w.tries, time.Now()
	rests := &resting{codeOf(d.Fault)}
	if l.due.IsZero() {
		l.due, l.soon = now.Add(l.pause.fail()), now.Add(l.least.fail())
	}
	if now.Before(l.due) {
		return rests
	}
	if err := r.spare(ctx); err != nil {
		l.ails, l.due = true, now.Add(gateLook)
		return rests
	}
	switch err := r.stagedStill(ctx, w, d); {
	case ctx.Err() != nil:
		return ctx.Err()
	case err != nil:
		r.logger.Debug("a failed update is not tried again yet", "deployment", d.ID, "error", err)
		l.due = time.Time{}
		return rests
	}
	return nil
}

// stagedStill makes sure that the desired revision is on the device, fetching what was lost.
func (r *reconciler) stagedStill(ctx context.Context, w *worker, d *store.Deployment) error {
	complete := true
	err := r.eachStaged(ctx, d, func(c stagedComponent) error {
		here, err := r.runtime.Complete(ctx, c.project, c.images)
		complete = complete && here
		return err
	})
	if err != nil || complete {
		return err
	}
	if err := unpackable(d); err != nil {
		return err
	}
	defer r.tidied()
	return r.download(ctx, w, d, func(ctx context.Context, t *round) error {
		return r.eachStaged(ctx, d, func(c stagedComponent) error {
			_, err := r.runtime.Stage(ctx, c.project, c.images, r.progressOf(d, c.name, t))
			return err
		})
	})
}

// eachStaged calls do with each staged component of the desired revision, even after an error.
func (r *reconciler) eachStaged(ctx context.Context, d *store.Deployment, do func(stagedComponent) error) error {
	rev, err := r.loadRevision(ctx, d.ID, &d.Desired, true)
	for _, c := range rev.components {
		err = errors.Join(err, do(c))
	}
	return err
}

// cured says that the device has recovered, so that a failed update is worth a retry before it is
// due. Looking costs neither a request nor a write.
func (r *reconciler) cured(ctx context.Context, w *worker) bool {
	l, now := &w.tries, time.Now()
	if r.spare(ctx) != nil || r.store.Health().Err != nil {
		l.ails = true
		return false
	}
	if !l.ails || now.Before(l.soon) {
		return false
	}
	l.ails, l.due = false, now
	return true
}
