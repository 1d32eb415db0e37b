package agent

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/opencontainers/go-digest"

	"github.com/margolite/margolite/agent/margo"
	"github.com/margolite/margolite/policy"
	"github.com/margolite/margolite/runtime/limit"
	"github.com/margolite/margolite/store"
)

// What is asked about a revision again and again is determined when it is staged, with its
// packages loaded, and kept in its record as store.Summary.

// effects is what a revision does to its deployment, as the store keeps it.
type effects struct {
	Change  differ `json:"change"`  // when it takes the place of the revision that worked last, store.Summary.Before
	Removal differ `json:"removal"` // when it goes
}

func revisionOf(doc *margo.Deployment, components []stagedComponent) stagedRevision {
	unused := map[string]map[string]bool{}
	for _, c := range components {
		unused[c.name] = c.project.Compose.Unused
	}
	r := stagedRevision{doc: doc, components: components, unread: doc.Unread(unused)}
	r.parameters, r.secrets = parametersOf(doc)
	return r
}

// loadRevision loads a staged revision from the store; with fetch, it downloads what is missing.
func (r *reconciler) loadRevision(ctx context.Context, id string, rev *store.Revision, fetch bool) (stagedRevision, error) {
	doc, err := r.document(rev.Digest)
	if err != nil {
		return stagedRevision{}, err
	}
	var components []stagedComponent
	for _, c := range doc.Components {
		one, err := r.loadStaged(ctx, id, doc, c, rev, fetch)
		if err != nil {
			return stagedRevision{}, err
		}
		components = append(components, one)
	}
	return revisionOf(doc, components), nil
}

func (r *reconciler) loadStaged(
	ctx context.Context, id string, doc *margo.Deployment, c margo.Component, rev *store.Revision, fetch bool,
) (stagedComponent, error) {
	s := stagedOf(rev.Staged, c.Name)
	if s == nil {
		return stagedComponent{}, &fault{code: codeInternal, component: c.Name, err: errors.New("it was not staged")}
	}
	var data []byte
	var err error
	if fetch {
		data, err = r.stagedPackage(ctx, c, s, nil)
	} else {
		data, err = r.store.Artifact(s.Package)
	}
	if err != nil {
		return stagedComponent{}, runtimeFault(c.Name, err)
	}
	return r.load(ctx, id, doc, c, s, data)
}

// asks is what a revision's package origins and services ask of the device.
func (r stagedRevision) asks() (all []policy.ServiceAsk) {
	for i, c := range r.components {
		all = append(append(all, packageAsk(r.doc.Components[i])), asksOf(c)...)
	}
	return all
}

// summarize gives a revision's summary and effects, for the store. former is what it replaces.
func (r *reconciler) summarize(ctx context.Context, id string, former *store.Revision, rev stagedRevision) (s *store.Summary, artifact []byte) {
	s = &store.Summary{Reserved: store.Resources(policy.Reserved(rev.asks())), Unread: rev.unread}
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
	} else { // status says that more changes than is shown
		r.logger.Debug("cannot tell what a change does", "deployment", id, "error", err)
	}
	artifact, _ = json.Marshal(e) // cannot fail: only texts and numbers
	s.Effects = digest.FromBytes(artifact)
	return s, artifact
}

func digestOf(rev *store.Revision) digest.Digest {
	if rev == nil {
		return ""
	}
	return rev.Digest
}

// resummarize adds the summaries that staged revisions of d lack, because an earlier version of
// this program staged them or another change waits now. They come from the packages on the device
// or, with fetch, their origins.
func (r *reconciler) resummarize(ctx context.Context, d *store.Deployment, fetch bool) error {
	pending := pends(d)
	removed := pending && leaves(d)
	var desired, active *store.Summary
	var err, desiredErr error
	if d.Active != nil && (d.Active.Summary == nil || removed && !r.store.HasArtifact(d.Active.Summary.Effects)) {
		active, err = r.summarizeStaged(ctx, d.ID, nil, d.Active, fetch) // it no longer replaces anything
	}
	if len(d.Desired.Staged) > 0 && (d.Desired.Summary == nil || pending && !removed && !r.tellsChange(d)) {
		desired, desiredErr = r.summarizeStaged(ctx, d.ID, d.Active, &d.Desired, fetch)
	}
	err = errors.Join(err, desiredErr)
	if desired == nil && active == nil {
		return err
	}
	was := digestOf(d.Active)
	return errors.Join(err, r.ledger.step(d, "summary", func(d *store.Deployment) {
		d.Desired.Summary = cmp.Or(desired, d.Desired.Summary)
		if active != nil && digestOf(d.Active) == was { // unless it was rolled back further meanwhile
			summarized := *d.Active
			summarized.Summary = active
			d.Active = &summarized
		}
	}))
}

func (r *reconciler) summarizeStaged(ctx context.Context, id string, former, rev *store.Revision, fetch bool) (*store.Summary, error) {
	slot, err := r.summarizing.Acquire(ctx, limit.Key{Party: id}, nil, nil)
	if err != nil {
		return nil, err
	}
	defer slot.Release()
	defer yieldLater(slot)()
	loaded, err := r.loadRevision(ctx, id, rev, fetch)
	if err != nil {
		return nil, err
	}
	s, artifact := r.summarize(ctx, id, former, loaded)
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	return s, r.ledger.restore(artifact) // if a prune drops it before the record names it, it is made again
}

// tellsChange says that the desired revision's summary was made against what worked last.
func (r *reconciler) tellsChange(d *store.Deployment) bool {
	s := d.Desired.Summary
	return s != nil && s.Before == digestOf(d.Active) && r.store.HasArtifact(s.Effects)
}

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

// heldBeside is what the other deployments reserve, running or about to. If that is unknown for
// one of them, it fails: nobody may count on the rest.
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
