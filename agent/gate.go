package agent

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/margolite/margolite/agent/control"
	"github.com/margolite/margolite/policy"
	"github.com/margolite/margolite/runtime/limit"
	"github.com/margolite/margolite/store"
)

const (
	// gateLook bounds the sleep of a change that waits for a time of day: clocks are set.
	gateLook = time.Minute
	// gateLeast bounds how often a change that may pass any moment asks.
	gateLeast = time.Second
	// locksLook is how often a change that waits for a lock checks it: the kernel does not report
	// when a process releases one.
	locksLook = 5 * time.Second
	// consentLasts is how long the hook's consent is good while the change waits for its turn.
	consentLasts = 30 * time.Second
)

// proposal is one change to a deployment, as it is decided about and answered by the site.
type proposal struct {
	kind policy.ChangeKind
	// The digest of the document that it leads to; of a removal, of the one that goes.
	revision digest.Digest
}

// changeOf is the change that is next for d or being made.
func changeOf(d *store.Deployment) proposal {
	switch {
	case !leaves(d) && d.Active == nil && !d.Found:
		return proposal{policy.Install, d.Desired.Digest}
	case !leaves(d):
		return proposal{policy.Update, d.Desired.Digest}
	case d.Active != nil:
		return proposal{policy.Remove, d.Active.Digest}
	case d.Desired.Digest == "": // no record told of it: there is no document, but an answer needs a name
		return proposal{policy.Remove, digest.FromString(strings.ToLower(d.ID))}
	}
	return proposal{policy.Remove, d.Desired.Digest}
}

// asks says that d has a change about which the site may still answer: the gate is still to be
// asked, or the site has said no.
func asks(d *store.Deployment) bool {
	switch Phase(d.Phase) {
	case Leaving:
		return true
	case Fetched, Staged:
		return !runs(d, d.Desired.Digest)
	case Failed:
		switch code := codeOf(d.Fault); {
		case runs(d, d.Desired.Digest):
			return false
		case code == codeRejected, code == codeVetoed, code == codeNotAllowed:
			return true
		default: // never staged, a failed installation, or an update that is retried
			return !permanent(code) && (len(d.Desired.Staged) == 0 || !hasFormer(d) || passing(code))
		}
	}
	return false
}

type waiting struct{ policy.Verdict }

func (w *waiting) Error() string {
	texts := make([]string, len(w.Reasons))
	for i, r := range w.Reasons {
		texts[i] = r.String()
	}
	return strings.Join(texts, "; ")
}

func (w *waiting) rest(now time.Time) time.Duration {
	rest := retryMost
	for _, r := range w.Reasons {
		switch r.Code {
		case policy.WaitsForApproval:
		case policy.WaitsForLock:
			rest = min(rest, locksLook)
		default:
			rest = min(rest, gateLook)
		}
	}
	if !w.Until.IsZero() {
		rest = min(rest, w.Until.Sub(now))
	}
	return max(rest, gateLeast)
}

// labels are those of the document that comes and of the one that runs, so that a document cannot
// escape the rules for what it replaces.
func (r *reconciler) labels(d *store.Deployment) []map[string]string {
	var sets []map[string]string
	add := func(document digest.Digest) {
		if labels := r.headOf(document).labels; !slices.ContainsFunc(sets, func(set map[string]string) bool { return maps.Equal(set, labels) }) {
			sets = append(sets, labels)
		}
	}
	if Phase(d.Phase) != Leaving || d.Active == nil {
		add(d.Desired.Digest)
	}
	if d.Active != nil {
		add(d.Active.Digest)
	}
	return sets
}

func (r *reconciler) rules(d *store.Deployment) policy.Rules {
	return r.settings.Load().Gate.RulesFor(d.ID, r.headOf(d.Desired.Digest).labels)
}

func (r *reconciler) verdict(d *store.Deployment) policy.Verdict {
	next := changeOf(d)
	c := policy.Change{Deployment: d.ID, Labels: r.labels(d), Kind: next.kind}
	if a := answerTo(d, next); a != nil {
		c.Answer = policy.Answer(a.Verdict)
	}
	if next.kind == policy.Remove && d.Active == nil && !d.Found && d.Desired.Digest != "" && c.Answer == policy.Unanswered {
		c.Answer = policy.Approved // it never ran: there is nothing to lose
	}
	return r.settings.Load().Gate.Decide(c, policy.Situation{
		Now: r.now(), ClockWrong: r.locks.wrong(), Locks: r.locks.held(d.ID), Before: r.ledger.turns.before(d.ID),
	})
}

// passes says that a removal may begin at once, without asking anybody.
func (r *reconciler) passes(d *store.Deployment) bool {
	return len(r.hooks(d)) == 0 && r.verdict(d).Go
}

func (r *reconciler) hooks(d *store.Deployment) []policy.Hook {
	var hooks []policy.Hook
	for _, labels := range r.labels(d) {
		h := r.settings.Load().Gate.RulesFor(d.ID, labels).Hook
		same := func(other policy.Hook) bool { return slices.Equal(other.Command, h.Command) }
		if len(h.Command) > 0 && !slices.ContainsFunc(hooks, same) {
			hooks = append(hooks, h)
		}
	}
	return hooks
}

// decide asks the rules about the next change of d: *waiting, or a *fault of codeRejected.
func (r *reconciler) decide(d *store.Deployment) error {
	v := r.verdict(d)
	switch {
	case v.Rejected:
		return rejection(answerTo(d, changeOf(d)))
	case !v.Go:
		return &waiting{v}
	}
	return nil
}

// pass lets the next change of d begin; else *waiting, or a final *fault. done ends the turn.
func (r *reconciler) pass(ctx context.Context, w *worker, d *store.Deployment) (done func(), err error) {
	if runs(d, d.Desired.Digest) && !leaves(d) {
		return r.turn(ctx, w, returning) // nobody is asked: the WFM withdrew the change
	}
	l := changing
	if leaves(d) {
		l = returning
	}
	if err := r.decide(d); err != nil { // most waiting changes get no further
		return nil, err
	}
	w.waitsNot()
	for {
		asked, err := r.ask(ctx, w, d)
		if err != nil {
			return nil, err
		}
		began := time.Now()
		if done, err = r.turn(ctx, w, l); err != nil {
			return nil, err
		}
		if err := r.decide(d); err != nil { // the turn may have taken long
			done()
			return nil, err
		}
		if asked && time.Since(began) > consentLasts {
			done()
			continue
		}
		if !leaves(d) {
			if err := r.admitRevision(ctx, d); err != nil {
				done()
				return nil, err
			}
		}
		w.waitsNot()
		return done, nil
	}
}

// ask asks the site's hooks about the next change of d, but not before the time that one gave.
func (r *reconciler) ask(ctx context.Context, w *worker, d *store.Deployment) (asked bool, err error) {
	hooks := r.hooks(d)
	if len(hooks) == 0 {
		return false, nil
	}
	next := changeOf(d)
	if w.delay != nil && w.delayed == next && time.Now().Before(w.delays) {
		return true, w.delay
	}
	for _, h := range hooks {
		err := r.consult(ctx, w, h, d.ID, next)
		var again *waiting
		if errors.As(err, &again) {
			w.delay, w.delayed, w.delays = again, next, time.Now().Add(again.rest(r.now()))
		}
		if err != nil {
			return true, err
		}
	}
	w.delay = nil
	return true, nil
}

// turn waits for a slot of a lane, which allows the worker to change containers. A slot of
// another lane is given back first: undoing a failed change is not part of that change. A worker
// that already has its turn in the lane keeps it.
func (r *reconciler) turn(ctx context.Context, w *worker, l lane) (done func(), err error) {
	if w.turn != nil && w.lane == l {
		return func() {}, nil
	}
	w.endTurn()
	slot, err := w.take(ctx, r.applying[l], "", nil, func(owners []string) string {
		return fmt.Sprintf("waits for its turn: %s %s", named(owners), workOf[l])
	})
	if err != nil {
		return nil, err
	}
	w.turn, w.lane = slot, l
	stop := yieldLater(slot)
	return func() {
		stop()
		slot.Release()
		if w.turn == slot {
			w.turn = nil
		}
	}, nil
}

var workOf = [lanes]string{changing: "being installed or updated", returning: "being rolled back or removed", keeping: "being checked"}

func (w *worker) endTurn() {
	if w.turn != nil {
		w.turn.Release()
		w.turn = nil
	}
}

// take waits for a slot, and status shows who is ahead. kind and preempt: see limit.Limiter.
func (w *worker) take(ctx context.Context, from *limit.Limiter, kind string, preempt func(), reason func(owners []string) string) (*limit.Slot, error) {
	key := limit.Key{Party: w.id, Kind: kind}
	slot, err := from.Acquire(ctx, key, preempt, func(bool) {
		w.says(func() string {
			if owners := from.Ahead(key); len(owners) > 0 {
				return reason(owners)
			}
			return ""
		})
	})
	w.says(nil)
	if err != nil {
		return nil, ctx.Err()
	}
	return slot, nil
}

// waits records why a change waits, and reports it if that is news.
func (w *worker) waits(r *reconciler, d *store.Deployment, gate *waiting) {
	w.mu.Lock()
	news := !slices.Equal(w.verdict.Reasons, gate.Reasons)
	w.verdict = gate.Verdict
	w.mu.Unlock()
	if !news {
		return
	}
	next := changeOf(d)
	r.logger.Info("a change is waiting", "deployment", d.ID, "change", string(next.kind), "revision", next.revision.String(), "reason", gate.Error())
	r.hub.send(control.Event{Kind: control.ChangeWaits, Deployment: d.ID, Digest: next.revision.String(), Text: gate.Error()})
}

// stays handles a change that may not begin: what worked last runs on, and a final refusal is
// recorded. The error says when to look again.
func (r *reconciler) stays(ctx context.Context, w *worker, d *store.Deployment, why error) error {
	var gate *waiting
	var f *fault
	switch {
	case errors.As(why, &gate):
	case errors.As(why, &f) && f.temporary(): // whether it may begin cannot be told now
		return errors.Join(f, r.ensureActive(ctx, w, d))
	default:
		return r.fail(ctx, w, d, why)
	}
	w.waits(r, d, gate)
	if w.kept {
		return gate
	}
	if err := r.ensureActive(ctx, w, d); err != nil {
		return err
	}
	w.kept = true
	return gate
}

// turns caches the order in which the manifest lists the deployments whose change is neither made
// nor has failed: each waiting change asks for it.
type turns struct {
	store *store.Store
	came  func(id string) // the deployment is the first now

	mu     sync.Mutex
	places map[string]place // by id in lower case; nil: to be read
}

type place struct {
	id     string
	number int // from 1
}

// before is the deployment whose turn precedes that of id; empty: there is none.
func (t *turns) before(id string) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.places == nil {
		t.places = map[string]place{}
		deployments, _ := t.store.Deployments() // an unreadable one has no change
		for i := range deployments {
			t.put(&deployments[i])
		}
	}
	var nearest place
	for _, p := range t.places {
		if p.number < t.places[strings.ToLower(id)].number && p.number > nearest.number {
			nearest = p
		}
	}
	return nearest.id
}

// note takes new records into account, and wakes a deployment that becomes the first.
func (t *turns) note(deployments ...store.Deployment) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.places == nil {
		return
	}
	before := t.first()
	var fresh []string // their workers begin anyway
	for i := range deployments {
		d := &deployments[i]
		if _, waited := t.places[strings.ToLower(d.ID)]; !waited {
			fresh = append(fresh, d.ID)
		}
		t.put(d)
	}
	if now := t.first(); now != "" && now != before && !slices.Contains(fresh, now) {
		t.came(now)
	}
}

// put adds one record. The caller holds mu.
func (t *turns) put(d *store.Deployment) {
	id := strings.ToLower(d.ID)
	if d.Place > 0 && waitsForTurn(d) {
		t.places[id] = place{d.ID, d.Place}
		return
	}
	delete(t.places, id)
}

// first is the deployment that waits for no other. The caller holds mu.
func (t *turns) first() string {
	var first place
	for _, p := range t.places {
		if first.number == 0 || p.number < first.number {
			first = p
		}
	}
	return first.id
}

func waitsForTurn(d *store.Deployment) bool {
	switch Phase(d.Phase) {
	case Fetched, Staged, Applying:
		return true
	}
	return false
}
