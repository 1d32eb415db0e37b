package agent

import (
	"slices"

	"github.com/margolite/margolite/agent/control"
	"github.com/margolite/margolite/agent/margo"
	"github.com/margolite/margolite/policy"
	"github.com/margolite/margolite/store"
)

// pendingOf gives the change of each deployment, nil where there is none to tell of.
func (r *reconciler) pendingOf(deployments []store.Deployment) []*control.Pending {
	all := make([]*control.Pending, len(deployments))
	for i := range deployments {
		d := &deployments[i]
		kind, ok := pendingKind(d)
		if !ok {
			continue
		}
		all[i] = r.pendingChange(d, kind)
		if is, told := r.differenceOf(d, kind); told {
			all[i].Services, all[i].Parameters, all[i].Cut = is.Services, is.Parameters, is.Cut
		}
	}
	return all
}

// pendingKind is the kind of the change that waits or was refused by the site;
// false: there is none.
func pendingKind(d *store.Deployment) (policy.ChangeKind, bool) {
	switch Phase(d.Phase) {
	case Staged, Leaving:
		return changeOf(d).kind, asks(d)
	case Failed:
		return changeOf(d).kind, declined(d)
	}
	return "", false
}

func (r *reconciler) pendingChange(d *store.Deployment, kind policy.ChangeKind) *control.Pending {
	next := changeOf(d)
	p := &control.Pending{Kind: string(kind), Revision: next.revision.String()}
	if a := answerTo(d, next); a != nil {
		p.Answer = a.Verdict
	}
	if w := r.worker(d.ID); w != nil && Phase(d.Phase) != Failed {
		v := w.lastVerdict()
		for _, reason := range v.Reasons {
			p.Reasons = append(p.Reasons, control.Reason{Code: string(reason.Code), Text: reason.Text})
		}
		p.Until = moment(v.Until)
	}
	return p
}

func (w *worker) lastVerdict() policy.Verdict {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.verdict
}

// differenceOf is what a change of d does to it; false: it is not staged.
func (r *reconciler) differenceOf(d *store.Deployment, kind policy.ChangeKind) (is differ, staged bool) {
	switch {
	case kind != policy.Remove && len(d.Desired.Staged) == 0:
		return is, false
	case kind != policy.Remove:
		e, known := r.effectsOf(&d.Desired)
		if !known || !r.tellsChange(d) {
			return differ{Cut: true}, true
		}
		return e.Change, true
	case d.Active == nil:
		return is, true
	}
	e, known := r.effectsOf(d.Active)
	e.Removal.Cut = e.Removal.Cut || !known
	return e.Removal, true
}

// shortestSecret is how many bytes a secret has at least that is looked for in
// other values: shorter ones turn up by chance.
const shortestSecret = 4

// parametersOf are the values that a document sets, by name, and those of them
// that are secrets by their names or by what they are for.
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
