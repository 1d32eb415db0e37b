package agent

import (
	"context"
	"slices"

	"github.com/opencontainers/go-digest"

	"github.com/margolite/margolite/agent/control"
	"github.com/margolite/margolite/agent/margo"
	"github.com/margolite/margolite/policy"
	"github.com/margolite/margolite/runtime"
	"github.com/margolite/margolite/store"
)

// maxPending is how many differences are kept in memory.
const maxPending = 256

// knownChange is what becomes of a deployment between two revisions as they were
// staged.
type knownChange struct {
	between digest.Digest
	is      differ
}

// knownDifference is the difference between two revisions of a deployment, if it is known.
func (r *reconciler) knownDifference(id string, between digest.Digest) (differ, bool) {
	k, ok := r.pending.get(id)
	return k.is, ok && k.between == between
}

// describe finds out what the change of a deployment does that waits or was
// rejected, from what is on the device alone.
func (r *reconciler) describe(ctx context.Context, d *store.Deployment) {
	kind, ok := pendingKind(d)
	if !ok || !isStaged(d, kind) {
		return
	}
	between := revisionsOf(d, kind)
	if _, known := r.knownDifference(d.ID, between); known {
		return
	}
	r.finding.Lock()
	defer r.finding.Unlock()
	if ctx.Err() != nil || !r.pending.hasRoom(d.ID) {
		return
	}
	is, err := r.differenceOf(ctx, d, kind)
	if err != nil { // status says that there is more than is shown
		r.logger.Debug("cannot tell what a change does", "deployment", d.ID, "error", err)
		return
	}
	r.pending.put(d.ID, knownChange{between, is})
}

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
		if !isStaged(d, kind) {
			continue
		}
		is, known := r.knownDifference(d.ID, revisionsOf(d, kind))
		all[i].Services, all[i].Parameters, all[i].Cut = is.services, is.parameters, is.cut || !known
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

func isStaged(d *store.Deployment, kind policy.ChangeKind) bool {
	return kind == policy.Remove || len(d.Desired.Staged) > 0
}

// revisionsOf tells one pair of revisions from another. The same document may have
// been staged again, with other images.
func revisionsOf(d *store.Deployment, kind policy.ChangeKind) digest.Digest {
	return keyOf([]any{kind, d.Active, d.Desired})
}

// pendingChange is what the change of a deployment waits for.
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

func (r *reconciler) differenceOf(ctx context.Context, d *store.Deployment, kind policy.ChangeKind) (differ, error) {
	var from, to stagedRevision
	var err error
	if d.Active != nil {
		if from, err = r.revision(ctx, d.ID, d.Active); err != nil {
			return differ{}, err
		}
	}
	if kind != policy.Remove {
		if to, err = r.revision(ctx, d.ID, &d.Desired); err != nil {
			return differ{}, err
		}
	}
	return difference(from, to, func(ref string, image digest.Digest) int64 {
		bytes, _ := r.runtime.ImageSize(ctx, ref, image) // 0: not known
		return bytes
	}), nil
}

func (r *reconciler) revision(ctx context.Context, id string, rev *store.Revision) (stagedRevision, error) {
	var loaded stagedRevision
	unused := map[string]map[string]bool{}
	doc, err := r.loadStaged(ctx, id, rev, false, func(c margo.Component, s *store.Staged, p *runtime.Project) {
		unused[c.Name] = p.Compose.Unused
		loaded.components = append(loaded.components, stagedComponent{name: c.Name, signed: isSigned(c, s), project: p, images: s.Images})
	})
	if err != nil {
		return loaded, err
	}
	loaded.parameters, loaded.secrets = parametersOf(doc)
	if w := r.worker(id); w != nil {
		w.found(rev.Digest, doc, unused)
	}
	return loaded, nil
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
