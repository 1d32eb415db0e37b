package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/opencontainers/go-digest"

	"github.com/margolite/margolite/agent/control"
	"github.com/margolite/margolite/agent/margo"
	"github.com/margolite/margolite/policy"
	"github.com/margolite/margolite/store"
)

const maxAnswers = 16

// Approve approves a pending or future change. If it has begun, that is no error.
func (a *Agent) Approve(ctx context.Context, r control.AnswerRequest) error {
	return a.answer(ctx, r, policy.Approved)
}

// Reject blocks a change until it is approved. For one that has begun the error says how to undo
// it.
func (a *Agent) Reject(ctx context.Context, r control.AnswerRequest) error {
	return a.answer(ctx, r, policy.Rejected)
}

func (a *Agent) answer(ctx context.Context, r control.AnswerRequest, verdict policy.Answer) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	id, err := a.deploymentID(r.Deployment)
	if err != nil {
		return err
	}
	d, err := a.ledger.answer(id, store.Answer{
		Revision: digest.Digest(r.Revision), Verdict: string(verdict),
		By: margo.Shown(r.Caller.String(), control.MaxReason), Reason: margo.Shown(r.Reason, control.MaxReason), At: a.o.Now().UTC(),
	})
	if d != nil && verdict == policy.Approved { // nil: it was said before
		a.reconciler.nudge(id)
	}
	return err
}

// answer records the site's answer about a deployment's change, with its consequences, and
// returns the record; nil: nothing new.
func (l *ledger) answer(id string, a store.Answer) (*store.Deployment, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	before, err := l.read(id)
	if err != nil {
		return nil, err
	}
	verdict, change := policy.Answer(a.Verdict), changeOf(&before)
	a.Change = string(change.kind)
	if a.Revision != change.revision || !asks(&before) {
		return nil, unasked(&before, a.Revision, verdict)
	}
	if said := answerTo(&before, change); said != nil && said.Verdict == a.Verdict && (verdict == policy.Rejected || !declined(&before)) {
		return nil, nil
	}
	verb, note, after := "approve", noteApproved, before
	switch {
	case verdict == policy.Rejected:
		verb, note = "reject", noteRejected
		after, err = next(before, eventFails, l.facts())
		rejection(&a).record(&after, l.nameOf(&after))
	case declined(&before):
		after, err = next(before, eventReopened, l.facts())
	}
	if err != nil {
		return nil, err
	}
	after.Answers = withAnswer(before.Answers, a)
	err = l.commit(verb, &before, &after, nil, l.note(note, store.Entry{
		Deployment: after.ID, Revision: a.Revision, By: a.By, Text: withReason(a.Change, a.Reason),
	}))
	if err != nil {
		return nil, err
	}
	if verdict == policy.Rejected {
		l.changed([]string{after.ID})
	}
	return &after, nil
}

func (l *ledger) read(id string) (store.Deployment, error) {
	d, err := l.store.Deployment(id)
	switch {
	case errors.Is(err, store.ErrNotFound):
		return d, fmt.Errorf("deployment %s: %w", id, control.ErrNotFound)
	case err != nil:
		return d, fmt.Errorf("cannot read deployment %s: %w", id, err)
	}
	return d, nil
}

func declined(d *store.Deployment) bool {
	code := codeOf(d.Fault)
	return code == codeRejected || code == codeVetoed
}

// unasked says why an answer about a revision does not concern what d waits for; nil if it comes
// late and would change nothing.
func unasked(d *store.Deployment, revision digest.Digest, verdict policy.Answer) error {
	next := changeOf(d)
	done := false // or about to be
	switch Phase(d.Phase) {
	case Applying, Active, Removing:
		done = next.revision == revision
	}
	switch {
	case done && verdict == policy.Approved:
		return nil
	case done && Phase(d.Phase) == Applying:
		return fmt.Errorf("%w: revision %s of deployment %s is being applied; a rollback undoes it", control.ErrConflict, revision, d.ID)
	case done && Phase(d.Phase) == Removing:
		return fmt.Errorf("%w: deployment %s is being removed", control.ErrConflict, d.ID)
	case asks(d):
		return fmt.Errorf("%w: the pending change of deployment %s is the %s of revision %s", control.ErrConflict, d.ID, nounOf(next.kind), next.revision)
	case d.Fault != nil:
		return fmt.Errorf("%w: deployment %s has no pending change: revision %s has failed (%s)", control.ErrConflict, d.ID, d.Desired.Digest, d.Fault.Code)
	}
	return fmt.Errorf("%w: deployment %s has no pending change", control.ErrConflict, d.ID)
}

func nounOf(kind policy.ChangeKind) string {
	return cmp.Or(map[policy.ChangeKind]string{policy.Install: "installation", policy.Remove: "removal"}[kind], "update")
}

// answerTo is the site's answer to c, or nil. Installation and update count as the same.
func answerTo(d *store.Deployment, c proposal) *store.Answer {
	for i := range slices.Backward(d.Answers) {
		a := &d.Answers[i]
		removal := policy.ChangeKind(a.Change) == policy.Remove
		if a.Revision == c.revision && removal == (c.kind == policy.Remove) {
			return a
		}
	}
	return nil
}

// withAnswer adds an answer, replacing that about the same change.
func withAnswer(answers []store.Answer, a store.Answer) []store.Answer {
	kept := slices.DeleteFunc(slices.Clone(answers), func(other store.Answer) bool {
		return other.Revision == a.Revision && other.Change == a.Change
	})
	kept = append(kept, a)
	return kept[max(0, len(kept)-maxAnswers):]
}

// remembered are the answers that still count when the WFM wants something else: rejections stay,
// approvals have to be given again.
func remembered(answers []store.Answer) []store.Answer {
	return slices.DeleteFunc(slices.Clone(answers), func(a store.Answer) bool { return policy.Answer(a.Verdict) != policy.Rejected })
}

func rejection(a *store.Answer) *fault {
	return &fault{code: codeRejected, err: errors.New(withReason("rejected by "+a.By, a.Reason))}
}

func withReason(text, reason string) string {
	if reason == "" {
		return text
	}
	return text + ": " + reason
}
