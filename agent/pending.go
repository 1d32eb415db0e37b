package agent

import (
	"slices"

	"github.com/margolite/margolite/agent/control"
	"github.com/margolite/margolite/agent/margo"
	"github.com/margolite/margolite/store"
)

// pends says that a change of d waits, or was refused by the site.
func pends(d *store.Deployment) bool {
	switch Phase(d.Phase) {
	case Staged, Leaving:
		return asks(d)
	case Failed:
		return declined(d)
	}
	return false
}

// pendingOf describes the change for which pends is true; nil: there is none.
func (r *reconciler) pendingOf(d *store.Deployment) *control.Pending {
	if !pends(d) {
		return nil
	}
	next, is := changeOf(d), r.differenceOf(d)
	p := &control.Pending{
		Kind: string(next.kind), Revision: next.revision.String(), Services: is.Services, Parameters: is.Parameters, Cut: is.Cut,
	}
	if a := answerTo(d, next); a != nil {
		p.Answer = a.Verdict
	}
	if w := r.worker(d.ID); w != nil && Phase(d.Phase) != Failed {
		w.mu.Lock()
		v := w.verdict
		w.mu.Unlock()
		for _, reason := range v.Reasons {
			p.Reasons = append(p.Reasons, control.Reason{Code: string(reason.Code), Text: reason.Text})
		}
		p.Until = v.Until.UTC()
	}
	return p
}

// differenceOf is the effect of the next change of d, as far as that is staged.
func (r *reconciler) differenceOf(d *store.Deployment) (is differ) {
	switch {
	case leaves(d) && d.Active != nil:
		e, known := r.effectsOf(d.Active)
		is = e.Removal
		is.Cut = is.Cut || !known
	case !leaves(d) && len(d.Desired.Staged) > 0:
		e, known := r.effectsOf(&d.Desired)
		if known && r.tellsChange(d) {
			return e.Change
		}
		is.Cut = true
	}
	return is
}

// shortestSecret is the least length, in bytes, of secrets that are searched for in other values:
// shorter ones turn up by chance.
const shortestSecret = 4

// parametersOf are the values that a document sets, by name, and which of them are secrets by
// name or use.
func parametersOf(doc *margo.Deployment) (values map[string]string, secrets []string) {
	values = make(map[string]string, len(doc.Parameters))
	for _, p := range doc.Parameters {
		if p.Value.IsNull() {
			continue
		}
		value := p.Value.Text()
		values[p.Name] = value
		secret := p.Sensitive || isSecret(p.Name, value) || slices.ContainsFunc(p.Targets, func(t margo.Target) bool { return isSecret(t.Pointer, "") })
		if secret && len(value) >= shortestSecret {
			secrets = append(secrets, value)
		}
	}
	return values, secrets
}
