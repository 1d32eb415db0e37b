package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/margolite/margolite/runtime"
	"github.com/margolite/margolite/runtime/limit"
	"github.com/margolite/margolite/store"
)

// A deployment is staged in one of two rounds. They bound what is held in memory, and keep
// deployments from waiting for registries that they do not need; package image bounds the
// downloads of each registry.
//
//   - looking: the package is fetched, and its images are compared with those on the
//     device. If none is missing, the deployment is staged at once. Otherwise, or if
//     fetching the package takes longer than yieldAfter, it goes on to
//   - downloading. If there is no slot it starts again when it gets one, and holds
//     nothing until then.
//
// A deployment that waits for a slow registry gives its slot to another one and goes to the end
// of the line; what it has downloaded stays. From then on it is one of the slow, which share half
// of the slots, until it is staged.
const (
	lookingAtOnce     = 2 // without those that have yielded; lookingBegun with them
	lookingBegun      = 4
	downloadingAtOnce = 4
	slowAtOnce        = 2
	// slowTurn is how long a slow deployment keeps its slot while only slow ones wait.
	slowTurn = 10 * time.Minute
	// Kinds of work that have slots for staging, beside yielded: a deployment in one of the
	// rounds, a slow one, and images brought for others.
	looking     = "looking"
	downloading = "downloading"
	slow        = "slow"
	others      = "others"
)

var (
	errMustDownload = errors.New("something must be downloaded")
	errPreempted    = errors.New("the download slot was given to another deployment")
)

func newStaging() *limit.Limiter {
	among := func(most int, kinds ...string) limit.Bound {
		is := func(k limit.Key) bool { return slices.Contains(kinds, k.Kind) }
		return limit.Bound{Most: most, Counts: func(held, wanted limit.Key) bool { return is(held) && is(wanted) }}
	}
	return limit.New(0,
		among(lookingBegun, looking, yielded),
		among(lookingAtOnce, looking),
		among(slowAtOnce, slow),
		among(downloadingAtOnce, downloading, slow),
	)
}

type round struct {
	w      *worker
	ctx    context.Context // of its work
	cancel context.CancelCauseFunc

	mu       sync.Mutex
	slot     *limit.Slot
	next     *limit.Limiter   // of the slot with which the looking round goes on; nil: it is the downloading one, or has ended
	marked   bool             // unpacking is recorded
	stalls   map[string]stall // of objects being downloaded
	progress stall            // of all of them
	turns    []*time.Timer    // until another deployment may have the slot, and another slow one
}

func newRound(ctx context.Context, w *worker, next *limit.Limiter) *round {
	t := &round{w: w, next: next, stalls: map[string]stall{}}
	t.ctx, t.cancel = context.WithCancelCause(ctx)
	return t
}

func (t *round) preempted() { t.cancel(errPreempted) }

// fetches bounds how long the looking round waits for a package, until done is called.
func (t *round) fetches() (done func()) {
	late := time.AfterFunc(yieldAfter, func() { t.startDownloading() })
	return func() {
		late.Stop()
		t.mu.Lock()
		defer t.mu.Unlock()
		clear(t.stalls)
	}
}

// startDownloading exchanges the slot for one for downloading; false: none is free.
func (t *round) startDownloading() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.startDownloadingLocked()
}

func (t *round) startDownloadingLocked() bool {
	if t.next == nil {
		return true
	}
	slot := t.next.Try(limit.Key{Party: t.w.id, Kind: downloading}, t.preempted)
	if slot == nil {
		t.cancel(errMustDownload)
		return false
	}
	t.slot.Release()
	t.slot, t.next = slot, nil
	return true
}

// wasSlow says why the round made no progress when it lost its slot; empty: others had a turn.
func (t *round) wasSlow() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.progress.waits {
		return ""
	}
	return t.progress.why
}

// release ends the round: a timer that goes off now takes no slot any more.
func (t *round) release() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.next = nil
	t.stopTurns()
	t.slot.Release()
}

// note records the progress of a download. The round is slow when all of its downloads are:
// another deployment may then have its slot after yieldAfter, a slow one after slowTurn.
func (t *round) note(p runtime.Progress) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ctx.Err() != nil {
		return // wasSlow tells the state before
	}
	if done := p.Done >= p.Total; done && p.Slow == "" && (p.Total > 0 || p.Done == 0) {
		delete(t.stalls, p.Object)
	} else {
		t.stalls[p.Object] = stall{p.Slow, p.Waits}
	}
	before := t.progress
	t.progress = t.stalled()
	why := t.progress.why
	t.w.says(func() string { return why })
	switch {
	case t.progress.why == "":
		t.stopTurns()
		t.slot.Spare(false)
	case t.startDownloadingLocked() && before.why == "":
		t.slot.Spare(true, downloading, slow) // not for others in line, only to shut the slots
		t.turns = []*time.Timer{t.spareAfter(yieldAfter, slow), t.spareAfter(slowTurn)}
	}
}

// spareAfter offers the slot to all but some kinds of work after d. The caller holds mu.
func (t *round) spareAfter(d time.Duration, except ...string) *time.Timer {
	return time.AfterFunc(d, func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		if t.progress.why != "" {
			t.slot.Spare(true, except...)
		}
	})
}

// stopTurns stops the timers, for work that makes progress or has ended. The caller holds mu.
func (t *round) stopTurns() {
	for _, turn := range t.turns {
		turn.Stop()
	}
}

// stall is why a download makes no progress.
type stall struct {
	why   string // empty: it makes progress
	waits bool   // only for other downloads
}

// stalled sums up the downloads of the round. The caller holds mu.
func (t *round) stalled() (sum stall) {
	for _, one := range t.stalls {
		if one.why == "" {
			return stall{}
		}
		if sum.why == "" || sum.waits {
			sum = one
		}
	}
	return sum
}

// bring is stage without a second attempt; it does not record its error.
func (r *reconciler) bring(ctx context.Context, w *worker, d *store.Deployment) error {
	defer r.tidied() // a prune was impossible meanwhile
	stage := func(ctx context.Context, t *round) error { return r.stageAndRecord(ctx, d, t) }
	if !w.tries.downloads {
		if err := r.inRound(ctx, w, d, looking, stage); !errors.Is(err, errMustDownload) && !errors.Is(err, errPreempted) {
			return err
		}
		w.tries.downloads = true
	}
	return r.download(ctx, w, d, stage)
}

// download runs stage in the downloading round, again whenever its slot was taken away.
func (r *reconciler) download(ctx context.Context, w *worker, d *store.Deployment, stage func(context.Context, *round) error) error {
	for {
		kind := downloading
		if w.tries.slow != "" {
			kind = slow
		}
		if err := r.inRound(ctx, w, d, kind, stage); !errors.Is(err, errPreempted) {
			return err
		}
	}
}

func (r *reconciler) stageAndRecord(ctx context.Context, d *store.Deployment, t *round) error {
	staged, artifacts, err := r.stageComponents(ctx, d, t)
	if err != nil {
		return err
	}
	err = r.ledger.stepWith(artifacts, d, eventStaged, func(d *store.Deployment) {
		d.Desired.Staged, d.Desired.Summary = staged.Staged, staged.Summary
	})
	if errors.Is(err, store.ErrFull) {
		return &fault{code: codeStorageFull, err: err}
	}
	return err
}

// inRound runs stage in one round, which begins with a slot of this kind.
func (r *reconciler) inRound(ctx context.Context, w *worker, d *store.Deployment, kind string, stage func(context.Context, *round) error) error {
	var next *limit.Limiter
	waits, why := "waits to download", ""
	switch kind {
	case looking:
		next, waits = r.projects.staging, "waits to be staged"
	case slow:
		why = "; " + w.tries.slow
	}
	t := newRound(ctx, w, next)
	defer t.cancel(nil)
	slot, err := w.take(ctx, r.projects.staging, kind, t.preempted, func(owners []string) string {
		return waits + ", behind " + named(owners) + why
	})
	if err != nil {
		return err
	}
	t.slot = slot
	defer t.release()
	if next != nil {
		defer yieldLater(slot)()
	}
	defer w.says(nil)
	err = stage(t.ctx, t)
	if err != nil && t.marked && d.Unpacking != nil { // the agent survived it
		if err := r.ledger.step(d, "unpacked", func(d *store.Deployment) { d.Unpacking = nil }); err != nil && !errors.Is(err, errSuperseded) {
			r.logger.Warn("cannot record that images are no longer being unpacked", "deployment", d.ID, "error", err)
		}
	}
	var f *fault
	switch {
	case err == nil:
		w.tries.downloads, w.tries.slow = false, ""
		return nil
	case ctx.Err() != nil:
		return err
	case t.ctx.Err() != nil:
		if errors.Is(context.Cause(t.ctx), errPreempted) {
			w.tries.slow = t.wasSlow()
		}
		return context.Cause(t.ctx)
	case errors.As(err, &f) && f.temporary():
		w.tries.slow = f.Error()
	}
	return err
}

// unpacks counts an attempt to unpack the images of a component, the only part of staging that
// can kill the agent repeatedly, for want of memory. Waiting and downloading are not counted:
// power cuts may interrupt a download for weeks. If a restarted agent finds as many layers left
// as at the last count, it did not survive that attempt; fewer are progress and restart the
// count, as does an attempt that ended in any way within the process. After maxAttempts the
// revision is given up.
func (r *reconciler) unpacks(t *round, d *store.Deployment, component string, layers int) error {
	t.mu.Lock()
	marked := t.marked
	t.marked = true
	t.mu.Unlock()
	if marked {
		return nil
	}
	return r.ledger.step(d, "unpacking", func(d *store.Deployment) {
		next := &store.Unpacking{Component: component, Layers: layers, Times: 1}
		if u := d.Unpacking; u != nil && u.Component == component && layers >= u.Layers {
			next.Times = u.Times + 1
		}
		d.Unpacking = next
	})
}

func unpackable(d *store.Deployment) error {
	if u := d.Unpacking; u != nil && u.Times >= maxAttempts {
		return &fault{code: codeInterrupted, component: u.Component, err: fmt.Errorf("this device or its agent went down %d times while unpacking the images", u.Times)}
	}
	return nil
}
