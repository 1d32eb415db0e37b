package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/opencontainers/go-digest"

	"github.com/margolite/margolite/agent/margo"
	"github.com/margolite/margolite/policy"
	"github.com/margolite/margolite/runtime"
	"github.com/margolite/margolite/runtime/limit"
	"github.com/margolite/margolite/store"
)

// What is asked about a revision time and again is found out when it is staged, while
// its packages are loaded anyway, and kept with its record as store.Summary.

// effects is what a revision does to its deployment, as the store keeps it.
type effects struct {
	Change  differ `json:"change"`  // when it takes the place of the revision that worked last, store.Summary.Before
	Removal differ `json:"removal"` // when it goes
}

// revisionOf is a revision of these components.
func revisionOf(doc *margo.Deployment, components []stagedComponent) stagedRevision {
	unused := map[string]map[string]bool{}
	for _, c := range components {
		unused[c.name] = c.project.Compose.Unused
	}
	r := stagedRevision{doc: doc, components: components, unread: doc.Unread(unused)}
	r.parameters, r.secrets = parametersOf(doc)
	return r
}

// loadRevision is loadStaged for all components at once.
func (r *reconciler) loadRevision(ctx context.Context, id string, rev *store.Revision, fetch bool) (stagedRevision, error) {
	var components []stagedComponent
	doc, err := r.loadStaged(ctx, id, rev, fetch, func(c margo.Component, s *store.Staged, p *runtime.Project) {
		components = append(components, stagedComponent{name: c.Name, signed: isSigned(c, s), project: p, images: s.Images})
	})
	if err != nil {
		return stagedRevision{}, err
	}
	return revisionOf(doc, components), nil
}

// asks is what a revision asks of the device: where its packages come from, and what
// their services want.
func (r stagedRevision) asks() (all []policy.ServiceAsk) {
	for i, c := range r.components {
		all = append(append(all, packageAsk(r.doc.Components[i])), asksOf(c)...)
	}
	return all
}

// summarize gives the summary of a revision and its effects, for the store. former is
// what it is to take the place of; nil: nothing.
func (r *reconciler) summarize(ctx context.Context, id string, former *store.Revision, rev stagedRevision) (s *store.Summary, artifact []byte) {
	s = &store.Summary{Reserved: store.Resources(sum(rev.asks())), Unread: rev.unread}
	size := func(ref string, image digest.Digest) int64 {
		bytes, _ := r.runtime.ImageSize(ctx, ref, image) // 0: not known
		return bytes
	}
	e := effects{Removal: difference(rev, stagedRevision{}, size)}
	var before stagedRevision
	var err error
	if former != nil {
		before, err = r.loadRevision(ctx, id, former, false)
	}
	if err == nil {
		s.Before, e.Change = digestOf(former), difference(before, rev, size)
	} else { // status says that there is more than is shown
		r.logger.Debug("cannot tell what a change does", "deployment", id, "error", err)
	}
	artifact, _ = json.Marshal(e) // cannot fail: it is made of texts and numbers
	s.Effects = digest.FromBytes(artifact)
	return s, artifact
}

// digestOf is the digest of the document of a revision; empty: there is none.
func digestOf(rev *store.Revision) digest.Digest {
	if rev == nil {
		return ""
	}
	return rev.Digest
}

// resummarize gives the staged revisions of d the summaries that they lack, from the
// packages on the device or, with fetch, their origins: an earlier version of this
// program staged them, or the change that waits is another one since.
func (r *reconciler) resummarize(ctx context.Context, d *store.Deployment, fetch bool) error {
	kind, pending := pendingKind(d)
	removed := pending && kind == policy.Remove
	var err error
	if d.Active != nil && (d.Active.Summary == nil || removed && !r.store.HasArtifact(d.Active.Summary.Effects)) {
		err = r.summarizeStaged(ctx, d, d.Active, d.Former, fetch)
	}
	if len(d.Desired.Staged) > 0 && (d.Desired.Summary == nil || pending && !removed && !r.tellsChange(d)) {
		err = errors.Join(err, r.summarizeStaged(ctx, d, &d.Desired, d.Active, fetch))
	}
	return err
}

func (r *reconciler) summarizeStaged(ctx context.Context, d *store.Deployment, rev, former *store.Revision, fetch bool) error {
	slot, err := r.summarizing.Acquire(ctx, limit.Key{Party: d.ID}, nil, nil)
	if err != nil {
		return err
	}
	defer slot.Release()
	defer yieldLater(slot)()
	loaded, err := r.loadRevision(ctx, d.ID, rev, fetch)
	if err != nil {
		return err
	}
	s, artifact := r.summarize(ctx, d.ID, former, loaded)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return r.ledger.summarized(d, rev, s, artifact)
}

// tellsChange says that the summary of the desired revision tells what becomes of what
// worked last.
func (r *reconciler) tellsChange(d *store.Deployment) bool {
	s := d.Desired.Summary
	return s != nil && s.Before == digestOf(d.Active) && r.store.HasArtifact(s.Effects)
}

// effectsOf reads what a revision does to its deployment; false: that is not known.
func (r *reconciler) effectsOf(rev *store.Revision) (e effects, known bool) {
	if rev.Summary == nil {
		return e, false
	}
	body, err := r.store.Artifact(rev.Summary.Effects)
	if err == nil {
		err = json.Unmarshal(body, &e)
	}
	return e, err == nil
}

// summarized records the summary of a revision, in d as well, wherever that is.
func (l *ledger) summarized(d *store.Deployment, rev *store.Revision, s *store.Summary, artifact []byte) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	key := keyOf(rev)
	with := func(held *store.Revision) *store.Revision {
		if held == nil || keyOf(held) != key {
			return held
		}
		filled := *held
		filled.Summary = s
		return &filled
	}
	fill := func(d *store.Deployment) {
		d.Desired, d.Active, d.Former = *with(&d.Desired), with(d.Active), with(d.Former)
	}
	before, err := l.store.Deployment(d.ID)
	if err != nil {
		return fmt.Errorf("cannot read deployment %s: %w", d.ID, err)
	}
	after := before
	fill(&after)
	if err := l.commit("summary", &before, &after, map[digest.Digest][]byte{s.Effects: artifact}); err != nil {
		return err
	}
	fill(d)
	return nil
}

func sum(asks []policy.ServiceAsk) policy.Resources {
	var all policy.Resources
	for _, a := range asks {
		all = all.Plus(a.Reserved)
	}
	return all
}

// heldBeside is what the other deployments reserve: what runs of them, or is
// about to. Where that is not known for one of them, nobody may count on the rest.
func (r *reconciler) heldBeside(ctx context.Context, id string) (policy.Resources, error) {
	deployments, err := r.store.Deployments()
	if err != nil && len(deployments) == 0 {
		return policy.Resources{}, fmt.Errorf("cannot read the deployments: %w", err)
	}
	var held policy.Resources
	for i := range deployments {
		d := &deployments[i]
		if margo.SameID(d.ID, id) || holding(d) == nil {
			continue
		}
		if holding(d).Summary == nil {
			err := r.resummarize(ctx, d, true)
			switch {
			case ctx.Err() != nil:
				return held, ctx.Err()
			case holding(d).Summary == nil: // as text: it is no failure of the deployment that asks
				return held, fmt.Errorf("cannot tell what deployment %s reserves: %v", d.ID, err)
			}
		}
		held = held.Plus(policy.Resources(holding(d).Summary.Reserved))
	}
	return held, nil
}

// holding is the revision of a deployment that has a share of the device; nil: none.
func holding(d *store.Deployment) *store.Revision {
	switch Phase(d.Phase) {
	case Staged, Applying, Active:
		if len(d.Desired.Staged) > 0 {
			return &d.Desired
		}
	}
	return d.Active
}
