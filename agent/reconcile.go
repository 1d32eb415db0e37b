package agent

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/opencontainers/go-digest"
	"golang.org/x/time/rate"

	"github.com/margolite/margolite/agent/control"
	"github.com/margolite/margolite/agent/margo"
	"github.com/margolite/margolite/policy"
	"github.com/margolite/margolite/runtime"
	"github.com/margolite/margolite/runtime/contain"
	"github.com/margolite/margolite/runtime/limit"
	"github.com/margolite/margolite/store"
)

const (
	// Bounds of the time between two attempts at what failed.
	retryFirst = 5 * time.Second
	retryMost  = 10 * time.Minute
)

var errForgotten = errors.New("deployment forgotten")

// reconciler moves every deployment towards what was accepted (DS-26). Nothing else changes the
// runtime on behalf of deployments.
type reconciler struct {
	*base
	ledger   *ledger
	program  string // version of the agent
	stateDir string
	runDir   string
	locks    *locks
	projects *Projects // its slots for bringing images are also the reconciler's, see round
	loop     *loop

	summarizing *limit.Limiter        // for loading revisions staged without a summary
	applying    [lanes]*limit.Limiter // for changing containers
	asking      [lanes]*limit.Limiter // for running a hook
	wake        chan struct{}         // the set of deployments changed
	unpruned    atomic.Bool           // something is to be dropped
	tidy        chan struct{}         // a prune may be possible now

	mu      sync.Mutex
	workers map[string]*worker
}

type worker struct {
	id      string
	desired chan struct{} // the WFM wants something else
	runs    chan struct{} // what runs has changed; no reason for an early retry
	ruled   atomic.Bool   // the rules have not changed since they refused something

	// Used by the worker's goroutine alone:
	turn    *limit.Slot // it may change containers; nil: it may not
	lane    lane        // of turn
	kept    bool        // what worked last runs, and has not changed since
	tries   tries       // at the desired revision
	delay   *waiting    // the hook's verdict on the change delayed
	delayed proposal
	delays  time.Time // end of the delay, by a clock that cannot be set
	intact  *intact   // nil: not known
	last    string    // why it waited last

	running   map[string]*watched // installed components by name
	allowance *rate.Limiter       // of reports about them
	judgement time.Time           // when to look at them again without an event; zero: never

	mu        sync.Mutex
	interrupt context.CancelCauseFunc // ends its work; nil while it waits
	why       func() string           // why it waits or its downloads do not get on, for people; nil: neither
	verdict   policy.Verdict          // why its change may not begin; zero: it does not wait for the gate
	progress  map[string]control.Progress
}

func newWorker(id string) *worker {
	return &worker{
		id: id, allowance: newAllowance(),
		desired: make(chan struct{}, 1), runs: make(chan struct{}, 1),
	}
}

func newReconciler(b *base, o Options, l *ledger, projects *Projects, watched *loop) *reconciler {
	return &reconciler{
		base: b, ledger: l, program: o.Program.Version + " " + o.Program.Commit, stateDir: o.StateDir, runDir: o.RunDir, projects: projects, loop: watched,
		summarizing: newSlots(1, unbounded),
		applying:    newLanes(unbounded),
		asking:      newLanes(mostBegun),
		wake:        make(chan struct{}, 1),
		tidy:        make(chan struct{}, 1),
		workers:     map[string]*worker{},
	}
}

// changed interrupts the workers of deployments whose desired state changed.
func (r *reconciler) changed(ids []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, id := range ids {
		if w := r.workers[id]; w != nil {
			w.supersede()
		}
	}
	poke(r.wake)
}

// supersede interrupts the worker's work or wait.
func (w *worker) supersede() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.interrupt == nil {
		poke(w.desired)
		return
	}
	w.interrupt(errSuperseded)
}

func (r *reconciler) run(ctx context.Context) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	r.loop.works()
	r.prune() // a former agent may have been killed before
	wg.Go(func() { r.tidies(ctx) })
	for {
		r.loop.works()
		deployments, err := r.store.Deployments()
		if err != nil {
			// Readable records are worked on; the others need an operator.
			r.logger.Error("cannot read all deployments", "error", err)
		}
		r.mu.Lock()
		for _, d := range deployments {
			if r.workers[d.ID] != nil {
				continue
			}
			w := newWorker(d.ID)
			r.workers[d.ID] = w
			wg.Go(func() {
				r.work(ctx, w)
				r.mu.Lock()
				delete(r.workers, w.id)
				r.mu.Unlock()
				poke(r.wake) // it may have been published again meanwhile
			})
		}
		r.mu.Unlock()
		r.loop.waits()
		select {
		case <-ctx.Done():
			return nil
		case <-r.wake:
		case <-r.runtime.Changes():
			r.look(r.runtime.Changed())
		}
	}
}

// look makes idle and waiting workers of these projects, or of all, look again.
func (r *reconciler) look(projects []string, all bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, w := range r.workers {
		if all || slices.ContainsFunc(projects, func(project string) bool { return mayBeOf(project, w.id) }) {
			poke(w.runs)
		}
	}
}

func (r *reconciler) lookAll() { r.look(nil, true) }

// again makes every worker look again under new rules, even one that waits for its next try.
func (r *reconciler) again() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, w := range r.workers {
		w.ruled.Store(false)
		poke(w.runs)
		poke(w.desired)
	}
}

// nudge makes a deployment's worker look again without interrupting it.
func (r *reconciler) nudge(id string) {
	if w := r.worker(id); w != nil {
		poke(w.desired)
	}
}

func (r *reconciler) work(ctx context.Context, w *worker) {
	retry := backoff{first: retryFirst, most: retryMost}
	for ctx.Err() == nil {
		doing, interrupt := context.WithCancelCause(ctx)
		w.begin(interrupt)
		err := r.contained(doing, w)
		w.begin(nil) // from now on it is poked
		superseded := errors.Is(context.Cause(doing), errSuperseded) || errors.Is(err, errSuperseded)
		interrupt(nil)

		var f *fault
		var gate *waiting
		due, runs, ready := time.Duration(math.MaxInt64), w.runs, (func() bool)(nil)
		if superseded || !errors.As(err, &gate) {
			w.kept = false
			w.waitsNot()
		}
		switch {
		case ctx.Err() != nil, errors.Is(err, errForgotten):
			return
		case superseded:
			retry.reset()
			continue
		case err == nil:
			w.waitFor("")
			if !w.judgement.IsZero() {
				due = time.Until(w.judgement)
			}
		case gate != nil:
			w.waitFor(gate.Error())
			r.tellReason(w, waitingCode(gate.Reasons[0].Code), gate)
			due = gate.rest(r.now())
		case errors.As(err, new(*resting)):
			w.waitFor(err.Error())
			due, ready = time.Until(w.tries.due), func() bool { return r.cured(ctx, w) }
		default: // what runs has changed: no reason for an early retry
			due, runs = retry.fail(), nil
			switch full := isFull(err); {
			case full && runtime.Persists(err):
				ready = func() bool { return !runtime.Persists(err) }
			case full:
				due = min(due, fullMost)
			}
			switch news := w.waitFor(err.Error()); {
			case !errors.As(err, &f):
				if news {
					r.logger.Error("cannot process deployment", "deployment", w.id, "error", err)
				}
			case f.temporary(): // recorded already, or no news for the WFM
				r.tellReason(w, codeWaitsForRegistry, f)
			case isFull(f):
				r.tellReason(w, codeWaitsForSpace, f)
			}
			r.logger.Debug("deployment will be tried again", "deployment", w.id, "error", err)
		}
		if runs != nil {
			retry.reset()
		}
		desired, ran := w.idle(ctx, due, runs, ready)
		w.kept = w.kept && !desired && !ran
		if desired { // a new state or an operator wants it
			w.delay = nil
		}
	}
}

// drive takes a deployment as far as it can go now. nil: nothing to do until something changes.
// *fault: try again later. *waiting: the gate does not let it pass.
func (r *reconciler) drive(ctx context.Context, w *worker) error {
	for {
		d, err := r.ledger.see(w.id)
		if ctx.Err() != nil { // superseded before it read the record
			return ctx.Err()
		}
		if errors.Is(err, store.ErrNotFound) {
			return errForgotten
		}
		if err != nil {
			return err
		}
		if w.tries.revision != d.Desired.Digest {
			w.tries = triesOf(d.Desired.Digest)
		}
		if err := r.unkeep(&d); err != nil {
			return err
		}
		if err := r.resummarize(ctx, &d, false); err != nil && ctx.Err() == nil {
			r.logger.Debug("cannot summarize a staged revision", "deployment", d.ID, "error", err)
		}
		if again, err := r.advance(ctx, w, &d); err != nil || !again {
			return err
		}
	}
}

// advance takes a deployment one phase further. again: the record moved on.
func (r *reconciler) advance(ctx context.Context, w *worker, d *store.Deployment) (again bool, err error) {
	if Phase(d.Phase) != Active {
		w.running, w.judgement = nil, time.Time{}
	}
	switch Phase(d.Phase) {
	case Fetched:
		// That what worked last does not run was reported; the desired revision may be the cure.
		if err := r.ensureActive(ctx, w, d); err != nil && ctx.Err() != nil {
			return false, err
		}
		if a := answerTo(d, changeOf(d)); a != nil && a.Verdict == string(policy.Rejected) && asks(d) {
			return false, r.fail(ctx, w, d, rejection(a)) // nothing is fetched for it
		}
		w.ruled.Store(true) // retry only under other rules
		return true, r.stage(ctx, w, d)
	case Staged:
		w.ruled.Store(true)
		if d.Found {
			if adopted, err := r.adopt(ctx, w, d); adopted || err != nil {
				return true, err
			}
		}
		return true, r.try(ctx, w, d)
	case Applying:
		return true, r.apply(ctx, w, d)
	case Active:
		if err := r.keep(ctx, w, d); err != nil {
			return false, err
		}
		return false, r.tellRunning(ctx, w, d)
	case Failed:
		return r.mend(ctx, w, d)
	case Leaving:
		if declined(d) {
			return false, r.ensureActive(ctx, w, d) // until the site changes its mind, or the WFM
		}
		return false, r.try(ctx, w, d)
	case Removing:
		return false, r.remove(ctx, w, d)
	}
	return false, fmt.Errorf("deployment %s is in unknown phase %q", d.ID, d.Phase)
}

func (r *reconciler) try(ctx context.Context, w *worker, d *store.Deployment) error {
	done, err := r.pass(ctx, w, d)
	if !errors.As(err, new(*waiting)) { // a waiting change has not been tried
		w.tries.due, w.tries.ails = time.Time{}, false
	}
	if err != nil {
		return r.stays(ctx, w, d, err)
	}
	defer done()
	switch Phase(d.Phase) {
	case Leaving:
		if err := r.ledger.step(d, eventGo, nil); err != nil {
			return err
		}
		return r.remove(ctx, w, d)
	case Staged:
		if err := r.spare(ctx); err != nil {
			return errors.Join(err, r.ensureActive(ctx, w, d))
		}
		if err := r.ledger.step(d, eventGo, nil); err != nil {
			return err
		}
		w.tries = triesOf(d.Desired.Digest)
		w.tries.counted = true // with the step
	}
	return r.apply(ctx, w, d)
}

// apply makes the desired revision run and records it, with a way back unless the rules want
// none.
func (r *reconciler) apply(ctx context.Context, w *worker, d *store.Deployment) error {
	err := r.attempt(w, d)
	if err == nil {
		err = r.applyRevision(ctx, w, d, &d.Desired)
	}
	if err != nil {
		return r.fail(ctx, w, d, err)
	}
	if Phase(d.Phase) == Failed && hasFormer(d) { // the WFM is told of a change of what runs well
		if err := r.ledger.step(d, eventGo, nil); err != nil {
			return err
		}
	}
	off := r.rules(d).Rollback == policy.RollbackOff
	err = r.ledger.step(d, eventWorks, func(d *store.Deployment) {
		if off {
			d.Former = nil
		}
	})
	if err != nil {
		return err
	}
	w.tries.counted = false
	r.prune()
	return nil
}

// keep restores an active deployment after a restart, a reboot, or an outside change.
func (r *reconciler) keep(ctx context.Context, w *worker, d *store.Deployment) error {
	err := r.applyRevision(ctx, w, d, d.Active)
	switch {
	case err == nil:
		return nil
	case isLost(err) && r.stillThere(ctx, d.Active):
		r.ledger.lacks.Store(true) // the WFM has it
		return fmt.Errorf("it runs, but cannot be restored until the WFM is reachable: %s", err)
	}
	return r.fail(ctx, w, d, err)
}

// mend works on a failed deployment: it brings the former revision back and retries what may
// succeed later. It returns true if the record moved on.
func (r *reconciler) mend(ctx context.Context, w *worker, d *store.Deployment) (bool, error) {
	formerErr := r.ensureFormer(ctx, w, d)
	w.tries.ails = w.tries.ails || formerErr != nil
	switch code := codeOf(d.Fault); {
	case ctx.Err() != nil:
		return false, ctx.Err()
	case code == codeNotAllowed:
		if !hasFormer(d) {
			formerErr = r.ensureActive(ctx, w, d) // what runs may no longer be allowed
		}
		if w.ruled.Swap(true) {
			return false, formerErr
		}
		return true, r.stage(ctx, w, d)
	case len(d.Desired.Staged) == 0 && (!permanent(code) || causeOf(code) == ofDocument && d.Judged != r.judgedBy()):
		return true, r.stage(ctx, w, d)
	case permanent(code):
		return false, formerErr // until the WFM publishes something else
	case hasFormer(d) && formerErr == nil:
		if !r.triedAgain(d) {
			return false, nil // it was tried, and the former revision is back
		}
		if err := r.ripe(ctx, w, d); err != nil {
			return false, err
		}
	}
	return true, r.try(ctx, w, d)
}

// ensureFormer makes sure that the revision that worked last runs, unless it is the desired one
// and about to be tried; where none has worked, that nothing runs.
func (r *reconciler) ensureFormer(ctx context.Context, w *worker, d *store.Deployment) error {
	if d.Active != nil && !hasFormer(d) && !leaves(d) {
		return nil
	}
	return r.ensureActive(ctx, w, d)
}

// ensureActive makes sure that what worked last runs, unless it was left alone on purpose, or
// nothing if none has worked. It reports a failure: a plant may stand still.
func (r *reconciler) ensureActive(ctx context.Context, w *worker, d *store.Deployment) error {
	if d.Active == nil {
		return r.ensureNothing(ctx, w, d)
	}
	if d.Return == returnLeft {
		if r.leftToPeople(d) {
			return nil
		}
		if err := r.ledger.step(d, "return", func(d *store.Deployment) { d.Return = returnDue }); err != nil {
			return err // the rules have changed
		}
	}
	err := r.applyRevision(ctx, w, d, d.Active)
	switch {
	case err == nil:
		return r.undone(d)
	case ctx.Err() != nil:
		return err
	}
	r.logger.Error("cannot keep the last good revision running", "deployment", d.ID, "revision", d.Active.Digest.String(), "error", err)
	return errors.Join(err, r.notUndone(d, err))
}

// applyRevision makes exactly a staged revision of d run, component by component in order
// (AD-13), each one settled before the next (AD-06). What runs as it should is left alone; in a
// supervised revision, one that has worked before, so is what merely stopped. The error is a
// *fault, ctx's, or one of the device.
func (r *reconciler) applyRevision(ctx context.Context, w *worker, d *store.Deployment, rev *store.Revision) error {
	supervised := rev == d.Active
	if supervised && r.isIntact(ctx, w, rev) {
		return nil
	}
	l := changing
	switch {
	case supervised && d.Return != "", !supervised && runs(d, rev.Digest): // taken back by an operator, or by the WFM
		l = returning
	case supervised:
		l = keeping
	}
	done, err := r.turn(ctx, w, l)
	if err != nil {
		return err
	}
	defer done()
	w.intact = nil
	doc, err := r.document(rev.Digest) // not before: a thousand waiting deployments must not hold their documents
	if err != nil {
		return err
	}
	if err := r.removeProjects(ctx, d.ID, rev.Staged); err != nil {
		return err
	}
	var outlines []runtime.Outline
	for i, c := range doc.Components {
		if i > 0 && Phase(d.Phase) == Applying {
			if err := r.comesTo(d, i); err != nil {
				return err
			}
		}
		project, err := r.applyComponent(ctx, d.ID, doc, c, rev, supervised)
		if err != nil {
			return err
		}
		if len(project.Compose.Outside) > 0 {
			continue // files outside the package decide what is to run
		}
		outline, err := r.runtime.Outline(project)
		if err != nil {
			return err
		}
		outlines = append(outlines, outline)
	}
	if len(outlines) == len(doc.Components) {
		w.intact = &intact{*rev, outlines}
	}
	return nil
}

func (r *reconciler) comesTo(d *store.Deployment, i int) error {
	return r.ledger.step(d, "component", func(d *store.Deployment) {
		for j := range d.Components {
			switch c := &d.Components[j]; {
			case j < i:
				c.State = string(Active.State())
			case j == i && c.State == string(margo.Pending): // otherwise it came this far before a restart
				c.State = string(Applying.State())
			}
		}
	})
}

// ensureNothing removes everything but volumes of a deployment of which something was begun and
// nothing has worked. The record keeps the fault and the last output.
func (r *reconciler) ensureNothing(ctx context.Context, w *worker, d *store.Deployment) error {
	if d.Return != returnNothing || r.leftToPeople(d) {
		return nil
	}
	projects, err := r.projectsOf(ctx, d.ID)
	if err == nil && len(projects) > 0 {
		err = r.removeAll(ctx, w, d)
	}
	if err != nil && ctx.Err() == nil {
		r.logger.Error("cannot remove the failed deployment", "deployment", d.ID, "error", err)
	}
	return err
}

func (r *reconciler) projectsOf(ctx context.Context, id string) ([]runtime.ObservedProject, error) {
	projects, err := r.runtime.Observe(ctx)
	if err != nil {
		return nil, fmt.Errorf("cannot observe the runtime: %w", err)
	}
	return slices.DeleteFunc(projects, func(p runtime.ObservedProject) bool { return !margo.SameID(p.Labels[labelDeployment], id) }), nil
}

func (r *reconciler) removeProjects(ctx context.Context, id string, keep []store.Staged) error {
	projects, err := r.projectsOf(ctx, id)
	if err != nil {
		return err
	}
	for _, p := range slices.Backward(projects) {
		if slices.ContainsFunc(keep, func(s store.Staged) bool { return s.Project == p.Name }) {
			continue
		}
		if err := r.runtime.Remove(ctx, p.Name); err != nil {
			return runtimeFault(p.Labels[labelComponent], err)
		}
	}
	return nil
}

// remove removes everything of a deployment but its volumes, and forgets it. What cannot be
// removed is reported as failed and tried again.
func (r *reconciler) remove(ctx context.Context, w *worker, d *store.Deployment) error {
	if err := r.removeAll(ctx, w, d); err != nil {
		return r.fail(ctx, w, d, err)
	}
	r.locks.files.remove(ctx, d.ID) // before its record: one that is listed again has a new directory
	if err := r.ledger.step(d, eventGone, nil); err != nil {
		return err
	}
	r.prune()
	return errForgotten
}

func (r *reconciler) removeAll(ctx context.Context, w *worker, d *store.Deployment) error {
	done, err := r.turn(ctx, w, returning)
	if err != nil {
		return err
	}
	defer done()
	if err := r.removeProjects(ctx, d.ID, nil); err != nil {
		return err
	}
	// Files may remain without containers: of a killed removal, or loaded and never staged.
	for _, name := range ownProjects(d) {
		if err := r.runtime.Remove(ctx, name); err != nil {
			return runtimeFault("", err)
		}
	}
	return nil
}

func ownProjects(d *store.Deployment) []string {
	names := stagedProjects(d)
	for _, c := range d.Components {
		if name := projectName(d.ID, c.Name); !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

func stagedProjects(d *store.Deployment) []string {
	var names []string
	for _, rev := range revisions(d) {
		for _, s := range rev.Staged {
			if !slices.Contains(names, s.Project) {
				names = append(names, s.Project)
			}
		}
	}
	return names
}

// fail records, if it is news, that the desired revision cannot be had or the change may not be
// made, and brings the former revision back unless the deployment is being removed. It returns
// err as a *fault.
func (r *reconciler) fail(ctx context.Context, w *worker, d *store.Deployment, err error) error {
	var f *fault
	if ctx.Err() != nil || !errors.As(err, &f) {
		w.tries.ails = true // the revision is not at fault
		return err
	}
	if isLost(f) {
		r.ledger.lacks.Store(true) // the WFM may have it
	}
	w.tries.counted = false
	w.tries.ails = w.tries.ails || isFull(f) && r.spare(ctx) != nil // now: the way back may free space
	undo := Phase(d.Phase) == Applying || Phase(d.Phase) == Failed && d.Return == returnDue
	record := func(d *store.Deployment) {
		f.record(d, r.nameOf(d))
		d.Judged = ""
		if causeOf(f.code) == ofDocument {
			d.Judged = r.judgedBy()
		}
		if undo {
			r.aftermath(d)
		}
	}
	var failed error
	switch {
	case !f.same(d):
		failed = r.ledger.step(d, eventFails, record)
	case leaves(d):
	case causeOf(f.code) == ofDocument && d.Judged != r.judgedBy():
		failed = r.ledger.step(d, "judged", record)
	case d.Attempts > 0: // it ended, and not by a power cut
		failed = r.ledger.step(d, "failed", func(d *store.Deployment) { d.Attempts = 0 })
	}
	if failed != nil {
		return failed
	}
	if Phase(d.Phase) == Removing {
		return f
	}
	if err := r.ensureFormer(ctx, w, d); err != nil {
		w.tries.ails = true
		return errors.Join(f, err)
	}
	return f
}

// judgedBy identifies all that a document is judged by and that may change without it: the
// device's ids, the configuration with its keys, and the version of this program.
func (r *reconciler) judgedBy() string {
	set := r.settings.Load()
	return digest.FromString(strings.Join([]string{r.program, set.Device.ID, r.wfm.ClientID(), set.Basis}, "\n")).Encoded()[:16]
}

// prune soon drops images and artifacts that no revision needs.
func (r *reconciler) prune() {
	r.unpruned.Store(true)
	poke(r.tidy)
}

// tidied retries a prune that was held off; the work that held it off calls this when done.
func (r *reconciler) tidied() { poke(r.tidy) }

// tidies does what prune asks for until ctx is done, but not during staging, whose images are in
// no record yet.
func (r *reconciler) tidies(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-r.tidy:
		}
		if !r.unpruned.Load() {
			continue
		}
		err := contain.Call(func() error {
			waiting, stop := context.WithTimeout(ctx, pruneWait) // until stalled downloads end
			defer stop()
			open, ok := r.projects.staging.Shut(waiting)
			if !ok {
				return nil
			}
			defer open()
			r.unpruned.Store(false)
			_, err := r.dropUnneeded(ctx)
			return err
		})
		if err != nil {
			r.unpruned.Store(true)
		}
		if !r.mistakes.note("pruning", err) && err != nil && ctx.Err() == nil {
			r.logger.Warn("cannot remove unneeded data", "error", err)
		}
	}
}

func (w *worker) begin(interrupt context.CancelCauseFunc) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.interrupt, w.why, w.progress = interrupt, nil, nil
}

// waitFor keeps the reason for status and returns whether it is new.
func (w *worker) waitFor(reason string) (news bool) {
	w.says(func() string { return reason })
	news = reason != w.last
	w.last = reason
	return news
}

func (w *worker) advance(component string, p control.Progress) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.progress == nil {
		w.progress = map[string]control.Progress{}
	}
	w.progress[component] = p
}

// says sets the reason that status shows for no progress; nil: none.
func (w *worker) says(why func() string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.why = why
}

func (w *worker) waitsNot() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.verdict = policy.Verdict{}
}

func (w *worker) seen() (reason string, progress map[string]control.Progress) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.why != nil {
		reason = w.why()
	}
	return reason, maps.Clone(w.progress)
}

func (r *reconciler) worker(id string) *worker {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.workers[id]
}

func (r *reconciler) notify(id, component string) func(runtime.Event) {
	return func(e runtime.Event) {
		if !e.Done {
			return
		}
		r.hub.send(control.Event{
			Kind: control.ServiceChanged, Deployment: id, Component: component,
			Service: e.Service, Text: e.Step,
		})
	}
}

// intact is a revision whose containers, and no others of its deployment, were all on the device.
// While they still are, its packages need not be loaded to find nothing to do.
type intact struct {
	revision store.Revision
	outlines []runtime.Outline // of its components
}

// isIntact tells whether a revision was seen whole on the device and still is. When it cannot
// tell it returns false, and applying the revision finds out.
func (r *reconciler) isIntact(ctx context.Context, w *worker, rev *store.Revision) bool {
	if w.intact == nil || !reflect.DeepEqual(&w.intact.revision, rev) {
		return false
	}
	for _, o := range w.intact.outlines {
		if same, err := r.runtime.Intact(ctx, o); err != nil || !same {
			return false
		}
	}
	return true
}
