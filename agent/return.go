package agent

import (
	"context"
	"fmt"
	"strings"

	"github.com/opencontainers/go-digest"

	"github.com/margolite/margolite/agent/control"
	"github.com/margolite/margolite/agent/margo"
	"github.com/margolite/margolite/policy"
	"github.com/margolite/margolite/store"
)

// Values of store.Deployment.Return, see Phase.
const (
	returnDue     = "due"
	returnFailing = "failing"
	returnLeft    = "left"
	returnNothing = "nothing"
)

// maxAttempts is how often a revision that the agent does not survive is begun.
const maxAttempts = 3

// Rollback brings a deployment back to the revision before, until the WFM publishes another one.
// No rule delays it: the plant may stand still.
//
//   - A revision that runs, or is being applied, gives way to the one before.
//   - An update that failed and was left in place (policy.rollback) gives way to what worked
//     last. If the next update is already waiting, it keeps waiting.
//   - An update that failed and was undone needs no rollback; to go back further, the
//     revision has to be named.
//   - An update that has not begun is a matter of Reject.
//
// One step is kept: after a rollback there is none until another revision has worked.
func (a *Agent) Rollback(ctx context.Context, r control.ReturnRequest) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	id, err := a.deploymentID(r.Deployment)
	if err != nil {
		return err
	}
	return a.ledger.goBack(id, digest.Digest(r.Revision), margo.Shown(r.Caller.String(), control.MaxReason), margo.Shown(r.Reason, control.MaxReason))
}

// goBack records a request for the revision before; wanted, if not empty, names it.
func (l *ledger) goBack(id string, wanted digest.Digest, by, reason string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	before, err := l.read(id)
	if err != nil {
		return err
	}
	target, err := wayBack(&before, wanted)
	if err != nil {
		return err
	}
	if err := l.kept(target); err != nil {
		return fmt.Errorf("%w: deployment %s: %w", control.ErrConflict, id, err)
	}
	after, err := next(before, eventReturned, l.facts())
	if err != nil {
		return err
	}
	if Phase(after.Phase) == Failed {
		f := &fault{code: codeReturned, err: fmt.Errorf("%s: %s", backTo(target), withReason("requested by "+by, reason))}
		f.record(&after, l.nameOf(&after))
		if digestOf(before.Active) != target.Digest {
			after.Former = nil
		}
		after.Active = target
	}
	err = l.commit("return", &before, &after, nil, l.note(noteReturn, store.Entry{
		Deployment: id, Revision: target.Digest, By: by, Text: reason,
	}))
	if err != nil {
		return err
	}
	l.changed([]string{id})
	return nil
}

func backTo(target *store.Revision) string {
	return fmt.Sprintf("back to revision %s, which worked before", target.Digest)
}

func wayBack(d *store.Deployment, wanted digest.Digest) (*store.Revision, error) {
	refuse := func(format string, args ...any) (*store.Revision, error) {
		return nil, fmt.Errorf("%w: deployment %s: %s", control.ErrConflict, d.ID, fmt.Sprintf(format, args...))
	}
	target := d.Former
	switch phase := Phase(d.Phase); {
	case leaves(d):
		return refuse("the WFM no longer lists it")
	case d.Return == returnLeft:
		target = d.Active
	case phase == Fetched, phase == Staged:
		return refuse("revision %s is not applied yet; reject it to keep what runs", d.Desired.Digest)
	case phase == Applying && hasFormer(d):
		target = d.Active
	case phase == Failed && hasFormer(d) && (wanted == "" || wanted == d.Active.Digest):
		if d.Former != nil {
			return refuse("it is already back at revision %s; name revision %s to go back further", d.Active.Digest, d.Former.Digest)
		}
		return refuse("it is already back at revision %s, and no earlier one is kept", d.Active.Digest)
	}
	switch {
	case target == nil && d.Active == nil:
		return refuse("no revision of it has worked yet")
	case target == nil:
		return refuse("the previous revision is no longer kept on this device")
	case wanted != "" && wanted != target.Digest:
		return refuse("revision %s is not kept on this device; it can go back to %s", wanted, target.Digest)
	}
	return target, nil
}

// kept returns an error if the store lacks anything of a revision.
func (l *ledger) kept(rev *store.Revision) error {
	whole := l.store.HasArtifact(rev.Digest)
	for _, s := range rev.Staged {
		whole = whole && l.store.HasArtifact(s.Package)
	}
	if !whole {
		return fmt.Errorf("revision %s is no longer kept on this device", rev.Digest)
	}
	return nil
}

// attempt counts an attempt to apply the desired revision before anything is done. One that the
// agent did not survive maxAttempts times is given up unless it has worked before.
func (r *reconciler) attempt(w *worker, d *store.Deployment) error {
	if w.tries.counted || d.Active != nil && d.Active.Digest == d.Desired.Digest {
		return nil
	}
	if d.Attempts >= maxAttempts {
		return &fault{code: codeInterrupted, err: fmt.Errorf("this device or its agent went down %d times while the revision was being applied", d.Attempts)}
	}
	var notes []store.Entry
	if Phase(d.Phase) == Failed && hasFormer(d) && d.Return == "" { // what worked runs, and gives way once more
		c := changeOf(d)
		notes = append(notes, r.ledger.note(noteBegun, store.Entry{Deployment: d.ID, Revision: c.revision, Text: string(c.kind) + ", again"}))
	}
	err := r.ledger.step(d, "attempt", func(d *store.Deployment) {
		d.Attempts++
		if Phase(d.Phase) == Failed {
			d.Return = wayBackOf(d)
		}
	}, notes...)
	if err != nil {
		return err
	}
	w.tries.counted = true
	return nil
}

// wayBackOf is Return for a deployment whose desired revision was begun and does not work (yet).
func wayBackOf(d *store.Deployment) string {
	switch {
	case hasFormer(d) && d.Return != returnFailing:
		return returnDue
	case d.Active == nil && !d.Found:
		return returnNothing
	}
	return d.Return
}

// Fragile are the projects that only the reconciler may start: those to be removed, and those of
// revisions that this device may not have survived, whose attempts are counted first.
func (a *Agent) Fragile() []string {
	deployments, _ := a.o.Store.Deployments() // its worker reports an unreadable record
	var names []string
	for i := range deployments {
		d := &deployments[i]
		if d.Return == returnNothing && !a.reconciler.leftToPeople(d) {
			names = append(names, ownProjects(d)...)
			continue
		}
		switch Phase(d.Phase) {
		case Applying:
			names = append(names, stagedProjects(d)...)
		case Failed: // to be retried, or given up and still there
			if d.Attempts > 0 || codeOf(d.Fault) == codeInterrupted && (d.Active == nil || d.Return == returnLeft) {
				names = append(names, stagedProjects(d)...)
			}
		}
	}
	return names
}

// aftermath records what becomes of the containers of a revision that was begun and failed.
func (r *reconciler) aftermath(d *store.Deployment) {
	d.Return = wayBackOf(d)
	if !hasFormer(d) {
		return
	}
	text := backTo(d.Active)
	if r.leftToPeople(d) {
		d.Return = returnLeft
		text = fmt.Sprintf("it is left as it is; a rollback on request returns to revision %s", d.Active.Digest)
	}
	d.Fault.Message = shortened(text+": "+d.Fault.Message, maxFaultText)
}

func (r *reconciler) leftToPeople(d *store.Deployment) bool {
	rule := r.rules(d).Rollback
	return rule == policy.RollbackManual || rule == policy.RollbackOff
}

func (r *reconciler) undone(d *store.Deployment) error {
	if d.Return == "" {
		return nil
	}
	return r.ledger.step(d, "undone", func(d *store.Deployment) { d.Return = "" }, r.ledger.note(noteReturned, store.Entry{
		Deployment: d.ID, Revision: d.Active.Digest,
	}))
}

// notUndone records once that the revision which worked last cannot be restored, and reports it
// to the WFM, which may be the only one able to help.
func (r *reconciler) notUndone(d *store.Deployment, why error) error {
	if d.Return != returnDue {
		return nil
	}
	note := r.ledger.note(noteNotReturned, store.Entry{Deployment: d.ID, Revision: d.Active.Digest, Text: margo.Shown(why.Error(), control.MaxReason)})
	return r.ledger.step(d, "not undone", func(d *store.Deployment) {
		d.Return = returnFailing
		neither := fmt.Sprintf("revision %s, which worked before, does not run either ", d.Active.Digest)
		if Phase(d.Phase) == Failed && d.Fault != nil && !strings.HasPrefix(d.Fault.Message, neither) { // otherwise it was reported before a retry
			told := *d.Fault
			told.Message = shortened(fmt.Sprintf("%s(%s): %s", neither, margo.Shown(why.Error(), control.MaxReason),
				strings.TrimPrefix(told.Message, backTo(d.Active)+": ")), maxFaultText)
			d.Fault = &told
		}
	}, note)
}

func (r *reconciler) unkeep(d *store.Deployment) error {
	if d.Former == nil || r.rules(d).Rollback != policy.RollbackOff {
		return nil
	}
	if err := r.ledger.step(d, "unkeep", func(d *store.Deployment) { d.Former = nil }); err != nil {
		return err
	}
	r.prune()
	return nil
}

func (l *ledger) notes(before, after *store.Deployment) []store.Entry {
	e := store.Entry{Deployment: after.ID, Revision: after.Desired.Digest}
	var kind string
	switch phase := Phase(after.Phase); {
	case (phase == Failed || phase == Leaving) && after.Fault != nil:
		kind, e.Revision, e.Text = noteFailed, changeOf(after).revision, margo.Shown(after.Fault.Code+": "+after.Fault.Message, control.MaxReason)
		switch after.Fault.Code {
		case codeNotAllowed:
			kind = noteRefused
		case codeVetoed:
			kind = noteVetoed
		}
	case before.Phase == after.Phase:
		return nil
	case phase == Applying && Phase(before.Phase) == Failed: // noted when it was tried
		return nil
	case phase == Applying, phase == Removing:
		c := changeOf(after)
		kind, e.Revision, e.Text = noteBegun, c.revision, string(c.kind)
	case phase == Active:
		kind = noteDone
		if before.Found {
			e.Text = "it was already running"
		}
	case phase == Forgotten:
		kind, e.Revision = noteRemoved, changeOf(before).revision
	default:
		return nil
	}
	return []store.Entry{l.note(kind, e)}
}

func hasFormer(d *store.Deployment) bool {
	return d.Active != nil && d.Active.Digest != d.Desired.Digest
}
