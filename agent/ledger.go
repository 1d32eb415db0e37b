package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/margolite/margolite/agent/control"
	"github.com/margolite/margolite/agent/margo"
	"github.com/margolite/margolite/agent/wfm"
	"github.com/margolite/margolite/runtime"
	"github.com/margolite/margolite/store"
)

// errSuperseded says that the WFM published something newer about a deployment
// while it was being worked on.
var errSuperseded = errors.New("superseded by a newer manifest")

// ledger is the only writer of deployments. Each of its calls is one
// transaction that holds the new phase together with the report of it, so that
// neither is ever without the other.
type ledger struct {
	store    *store.Store
	runtime  Runtime // for what runs without a record
	settings *settings
	now      func() time.Time
	hub      *hub
	logger   *slog.Logger
	reported func()      // there is something in the outbox
	deaf     func() bool // nobody hears what is reported now

	mu sync.Mutex // held from reading a record to writing it
}

// adoption is how a manifest comes to be the accepted one.
type adoption struct {
	scope  string // of its WFM
	epoch  uint64 // of that scope
	afresh bool   // the WFM may know nothing of what it lists: all of it is reported
}

// accept makes m the desired state, in one transaction with every document
// that came with it, and returns the ids of the deployments that it changes,
// also beside an error: what failed may be durable nevertheless.
func (l *ledger) accept(ctx context.Context, m *wfm.Manifest, by adoption, documents map[digest.Digest][]byte) (touched []string, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	held, err := l.store.Deployments()
	if err != nil {
		// A record that cannot be read is replaced if its deployment is listed.
		l.logger.Error("cannot read all deployments", "error", err)
	}
	change := store.Change{
		Manifest:  &store.Manifest{Epoch: by.epoch, Version: m.Version, ETag: m.ETag, Digest: m.Digest, Scope: by.scope},
		Artifacts: documents,
		Unheard:   l.deaf(),
	}
	put := func(before *store.Deployment, after store.Deployment) error {
		former := before
		if by.afresh {
			former = nil
		}
		report, err := l.report(former, &after)
		if err != nil {
			return err
		}
		change.Deployments = append(change.Deployments, after)
		change.Reports = append(change.Reports, report...)
		if before != nil && before.ID != after.ID {
			change.Forget = append(change.Forget, before.ID)
			touched = append(touched, before.ID, after.ID)
			return nil
		}
		// A document that came although the revision is the same had been lost.
		if before == nil || before.Phase != after.Phase || before.Desired.Digest != after.Desired.Digest || documents[after.Desired.Digest] != nil {
			touched = append(touched, after.ID)
		}
		return nil
	}
	for _, ref := range m.Deployments {
		i := slices.IndexFunc(held, func(d store.Deployment) bool { return margo.SameID(d.ID, ref.ID) })
		var before *store.Deployment
		if i >= 0 {
			before = &held[i]
		}
		document := documents[ref.Digest]
		if document == nil && (before == nil || before.Desired.Digest != ref.Digest) {
			if document, err = l.store.Artifact(ref.Digest); err != nil {
				return nil, fmt.Errorf("cannot read document of deployment %s: %w", ref.ID, err)
			}
		}
		after, err := l.desire(before, ref, m.Version, document)
		if err != nil {
			return nil, err
		}
		if err := put(before, after); err != nil {
			return nil, err
		}
	}
	listed := func(id string) bool {
		return slices.ContainsFunc(m.Deployments, func(r margo.DeploymentRef) bool { return margo.SameID(id, r.ID) })
	}
	for i := range held {
		before := &held[i]
		if listed(before.ID) {
			continue
		}
		after, err := l.absent(before, m.Version)
		if err != nil {
			return nil, err
		}
		if err := put(before, after); err != nil {
			return nil, err
		}
	}
	for _, id := range l.unrecorded(ctx, held) {
		if listed(id) {
			continue
		}
		after, err := l.absent(&store.Deployment{ID: id}, m.Version)
		if err != nil {
			return nil, err
		}
		if err := put(nil, after); err != nil {
			return nil, err
		}
	}
	if err := l.store.Commit("accept manifest", change); err != nil {
		return touched, fmt.Errorf("cannot accept manifest %d: %w", m.Version, err)
	}
	l.logger.Info("manifest accepted", "version", m.Version, "digest", m.Digest.String(), "deployments", len(m.Deployments), "changed", len(touched))
	l.hub.send(control.Event{Kind: control.ManifestAccepted, Version: m.Version, Digest: m.Digest.String()})
	if len(change.Reports) > 0 {
		l.reported()
	}
	for i := range change.Deployments {
		if slices.Contains(touched, change.Deployments[i].ID) {
			l.announce(&change.Deployments[i])
		}
	}
	return touched, nil
}

// unrecorded are the ids of the deployments that have containers but no record:
// the store that knew them was lost.
func (l *ledger) unrecorded(ctx context.Context, held []store.Deployment) []string {
	ctx, cancel := context.WithTimeout(ctx, observeTimeout)
	defer cancel()
	projects, err := l.runtime.Observe(ctx)
	if err != nil {
		l.logger.Warn("cannot look for containers without a record", "error", err)
		return nil
	}
	var ids []string
	for _, p := range projects {
		id := p.Labels[labelDeployment]
		known := slices.ContainsFunc(held, func(d store.Deployment) bool { return margo.SameID(d.ID, id) }) ||
			slices.ContainsFunc(ids, func(other string) bool { return margo.SameID(other, id) })
		if id != "" && !known {
			ids = append(ids, id)
		}
	}
	return ids
}

// desire gives the record of a deployment that the manifest of version lists
// (DS-19 to DS-21). before is nil for a new one. The id is spelled as the
// manifest does.
func (l *ledger) desire(before *store.Deployment, ref margo.DeploymentRef, version uint64, document []byte) (store.Deployment, error) {
	if before == nil {
		before = &store.Deployment{ID: ref.ID, Adopted: version}
	}
	d := *before
	d.ID = ref.ID
	phase := Phase(d.Phase)
	if d.Desired.Digest == ref.Digest && phase != Removing {
		// It holds this revision already; the newer manifest lists it, too.
		d.Desired.Version = version
		if phase == Applying || phase == Active || phase == Failed { // ST-12
			d.Adopted = version
		}
		return d, nil
	}
	phase, err := next(phase, eventDesired)
	if err != nil {
		return d, err
	}
	d.Desired = store.Revision{Digest: ref.Digest, Version: version}
	if d.Active != nil && d.Active.Digest == ref.Digest {
		d.Desired.Staged = d.Active.Staged // a way back to what is on the device
	}
	if document != nil {
		d.Components = componentsOf(document)
	}
	d.Fault = nil
	l.enter(&d, phase, margo.Pending)
	return d, nil
}

// absent gives the record of a deployment that the manifest of version no
// longer lists (DS-22).
func (l *ledger) absent(before *store.Deployment, version uint64) (store.Deployment, error) {
	d := *before
	if Phase(d.Phase) == Removing {
		return d, nil
	}
	phase, err := next(Phase(d.Phase), eventAbsent)
	if err != nil {
		return d, err
	}
	d.Adopted = version
	d.Fault = nil
	l.enter(&d, phase, margo.Removing)
	return d, nil
}

// transition moves a deployment by one event, together with the report of it.
// change, if not nil, edits the record beyond its phase. revision is the
// desired one that the caller worked on: errSuperseded if it is not any more.
func (l *ledger) transition(id string, revision digest.Digest, e event, change func(*store.Deployment), artifacts map[digest.Digest][]byte) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	before, err := l.current(id, revision, e == eventGone)
	if err != nil {
		return err
	}
	phase, err := next(Phase(before.Phase), e)
	if err != nil {
		return fmt.Errorf("deployment %s: %w", id, err)
	}
	after := before
	after.Components = slices.Clone(before.Components)
	switch e {
	case eventGo, eventFails:
		after.Adopted = after.Desired.Version // ST-14: applying begins, or was refused for good
	case eventWorks:
		works := after.Desired
		after.Active = &works
		after.Fault = nil
	case eventGone:
		after.Fault = nil
	}
	if string(phase) != before.Phase {
		l.enter(&after, phase, componentState[e])
	}
	if change != nil {
		change(&after)
	}
	return l.commit(string(e), &before, &after, artifacts)
}

// componentState is the state that all components take with an event; with the
// others each keeps its own until the caller changes it.
var componentState = map[event]margo.State{
	eventStaged: margo.Pending,
	eventGo:     margo.Pending,
	eventWorks:  margo.Installed,
	eventGone:   margo.Removed,
}

// progress records the states of components within a phase, of a deployment
// that is being removed or is not.
func (l *ledger) progress(id string, revision digest.Digest, removing bool, change func(*store.Deployment)) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	before, err := l.current(id, revision, removing)
	if err != nil {
		return err
	}
	after := before
	after.Components = slices.Clone(before.Components)
	change(&after)
	return l.commit("component", &before, &after, nil)
}

// restore keeps an artifact that a revision needs and the store had lost.
func (l *ledger) restore(data []byte) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.store.Commit("restore artifact", store.Change{Artifacts: map[digest.Digest][]byte{digest.FromBytes(data): data}})
}

// current reads a record and checks that it is still what the caller works on.
func (l *ledger) current(id string, revision digest.Digest, removing bool) (store.Deployment, error) {
	d, err := l.store.Deployment(id)
	if err != nil {
		return d, fmt.Errorf("cannot read deployment %s: %w", id, err)
	}
	if d.Desired.Digest != revision || (Phase(d.Phase) == Removing) != removing {
		return d, errSuperseded
	}
	return d, nil
}

// commit writes after in place of before, with the report of the difference.
// The caller holds mu.
func (l *ledger) commit(verb string, before, after *store.Deployment, artifacts map[digest.Digest][]byte) error {
	reports, err := l.report(before, after)
	if err != nil {
		return err
	}
	change := store.Change{Reports: reports, Unheard: l.deaf(), Artifacts: artifacts}
	if Phase(after.Phase) == Forgotten {
		change.Forget = []string{after.ID}
	} else {
		change.Deployments = []store.Deployment{*after}
	}
	if err := l.store.Commit(verb, change); err != nil {
		return fmt.Errorf("cannot record %q of deployment %s: %w", verb, after.ID, err)
	}
	if len(reports) > 0 {
		l.reported()
		l.announce(after)
	}
	return nil
}

// keep says which images some revision needs, and for whom images are still to
// come.
func (l *ledger) keep() (runtime.Keep, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, keep, err := l.needed()
	return keep, err
}

// prune drops the artifacts that no revision needs. Nothing is accepted
// meanwhile, since its documents would not be needed by anything yet.
func (l *ledger) prune() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	artifacts, _, err := l.needed()
	if err != nil {
		return err
	}
	_, err = l.store.PruneArtifacts(artifacts)
	return err
}

// unpruned says that the agent ended before it had dropped what no revision
// needs: artifacts go last. While a deployment is being fetched, what has come
// of it looks the same.
func (l *ledger) unpruned() (bool, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	artifacts, keep, err := l.needed()
	if err != nil || len(keep.Fetching) > 0 {
		return false, err
	}
	n, err := l.store.CountUnused(artifacts)
	return n > 0, err
}

// needed is what the revisions of all deployments need.
func (l *ledger) needed() (artifacts map[digest.Digest]bool, keep runtime.Keep, err error) {
	deployments, err := l.store.Deployments()
	if err != nil {
		return nil, keep, err // a record that cannot be read may need any of them
	}
	artifacts = map[digest.Digest]bool{}
	need := func(r *store.Revision) {
		artifacts[r.Digest] = true
		for _, s := range r.Staged {
			artifacts[s.Package] = true
			keep.Images = append(keep.Images, s.Images)
		}
	}
	for i := range deployments {
		d := &deployments[i]
		need(&d.Desired)
		if d.Active != nil {
			need(d.Active)
		}
		if isFetching(d) {
			for _, c := range d.Components {
				keep.Fetching = append(keep.Fetching, projectName(d.ID, c.Name))
			}
		}
	}
	return artifacts, keep, nil
}

// isFetching says that the desired revision of d is still to be staged.
func isFetching(d *store.Deployment) bool {
	switch Phase(d.Phase) {
	case Fetched:
		return true
	case Failed:
		return len(d.Desired.Staged) == 0 && d.Fault != nil && !permanent(d.Fault.Code)
	}
	return false
}

// enter puts d into a phase and, if state is not empty, all its components
// into a state.
func (l *ledger) enter(d *store.Deployment, p Phase, state margo.State) {
	d.Phase = string(p)
	d.Since = l.now().UTC()
	if state == "" {
		return
	}
	components := make([]store.Component, len(d.Components))
	for i, c := range d.Components {
		components[i] = store.Component{Name: c.Name, State: string(state)}
	}
	d.Components = components
}

// report builds the status report of a change, or none if the WFM would see no
// difference (ST-01, ST-02).
func (l *ledger) report(before, after *store.Deployment) ([]store.Report, error) {
	body, err := l.status(after).Marshal()
	if err != nil {
		return nil, fmt.Errorf("cannot build status report of deployment %s: %w", after.ID, err)
	}
	if before != nil && before.Phase != "" {
		b := l.status(before)
		// A newer version alone is not worth a report.
		b.AdoptedVersion = after.Adopted
		if former, err := b.Marshal(); err == nil && bytes.Equal(former, body) {
			return nil, nil
		}
	}
	weight := store.Step
	switch l.status(after).State {
	case margo.Failed:
		weight = store.Failure
	case margo.Removed:
		weight = store.End
	}
	return []store.Report{{Deployment: after.ID, Version: after.Adopted, Weight: weight, Body: body}}, nil
}

// status is what the WFM is told about d.
func (l *ledger) status(d *store.Deployment) margo.Status {
	s := margo.Status{
		DeploymentID:   d.ID,
		DeviceID:       l.settings.Load().Device.ID,
		AdoptedVersion: d.Adopted,
		State:          Phase(d.Phase).State(),
		Error:          wireFault(d.Fault),
	}
	for _, c := range d.Components {
		s.Components = append(s.Components, margo.ComponentStatus{
			Name: c.Name, State: margo.State(c.State), Error: wireFault(c.Fault),
		})
	}
	if len(s.Components) > 0 {
		s.State = margo.OverallState(s.Components) // ST-04
	}
	return s
}

// announce tells people and listeners what became of a deployment.
func (l *ledger) announce(d *store.Deployment) {
	state := string(l.status(d).State)
	e := control.Event{
		Kind: control.DeploymentChanged, Deployment: d.ID, State: state,
		Digest: d.Desired.Digest.String(), Version: d.Adopted,
	}
	attrs := []any{"deployment", d.ID, "state", state, "revision", d.Desired.Digest.String()}
	if d.Fault == nil {
		l.logger.Info("deployment changed", attrs...)
	} else {
		e.Error = controlError(d.Fault)
		l.logger.Warn("deployment changed", append(attrs, "code", d.Fault.Code, "error", d.Fault.Message)...)
	}
	l.hub.send(e)
	for _, c := range d.Components {
		l.hub.send(control.Event{
			Kind: control.DeploymentChanged, Deployment: d.ID, Component: c.Name,
			State: c.State, Error: controlError(c.Fault),
		})
	}
}

// componentsOf lists the components of a document, as far as it can be read.
func componentsOf(document []byte) []store.Component {
	d, _ := margo.ParseDeployment(document) // what is wrong with it is found out when it is staged
	if d == nil {
		return nil
	}
	components := make([]store.Component, len(d.Components))
	for i, c := range d.Components {
		components[i] = store.Component{Name: c.Name}
	}
	return components
}

func wireFault(f *store.Fault) *margo.Fault {
	if f == nil {
		return nil
	}
	return &margo.Fault{Code: f.Code, Source: f.Source, Message: f.Message}
}

func controlError(f *store.Fault) *control.Error {
	if f == nil {
		return nil
	}
	return &control.Error{Code: f.Code, Source: f.Source, Message: f.Message}
}
