package agent

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/opencontainers/go-digest"

	"github.com/margolite/margolite/agent/control"
	"github.com/margolite/margolite/agent/margo"
	"github.com/margolite/margolite/agent/wfm"
	"github.com/margolite/margolite/store"
)

var errSuperseded = errors.New("superseded by a newer manifest")

// ledger is the only writer of deployments. Each call writes phase and report in one transaction.
type ledger struct {
	*base
	reported func()      // there is something in the outbox
	deaf     func() bool // reports do not reach the WFM now
	// passes says that the gate lets a removal begin at once. It is called with mu held.
	passes func(d *store.Deployment) bool
	// changed tells workers that others changed their deployments. It is called with mu held, so
	// that no worker reads the new record and is interrupted afterwards.
	changed func(ids []string)
	turns   *turns

	// Version of the accepted manifest; 0: to be read.
	accepted atomic.Uint64
	lacks    atomic.Bool // something needed of it is lost

	mu      sync.Mutex             // held from reading a record to writing it, never during a call of the runtime
	taking  digest.Digest          // the manifest whose documents are being fetched
	pinned  map[digest.Digest]bool // its documents; no record needs them yet
	cleared bool                   // remains of former processes were dropped
}

func (l *ledger) see(id string) (store.Deployment, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.store.Deployment(id)
}

// begin starts to take the documents of a manifest. None is pruned, even if fetching fails, until
// another manifest is taken or the accepted one turns out to be the present one.
func (l *ledger) begin(m *wfm.Manifest) *intake {
	l.mu.Lock()
	defer l.mu.Unlock()
	if m.Digest != l.taking {
		l.pin(m)
	}
	return &intake{ledger: l, documents: map[digest.Digest][]byte{}, came: map[digest.Digest]head{}}
}

// hold puts documents into the store ahead of their manifest.
func (l *ledger) hold(documents map[digest.Digest][]byte) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.store.Commit("documents", store.Change{Artifacts: documents}); err != nil {
		return fmt.Errorf("cannot store documents: %w", err)
	}
	return nil
}

// settle says that the accepted manifest is the present one: others' documents may go.
func (l *ledger) settle() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.taking != "" || !l.cleared {
		l.pin(nil)
	}
}

// pin makes m the manifest that is being taken (nil: none) and drops what was fetched for another
// that was not accepted. The caller holds mu.
func (l *ledger) pin(m *wfm.Manifest) {
	l.taking, l.pinned, l.cleared = "", map[digest.Digest]bool{}, true
	var bundles []digest.Digest
	if m != nil {
		l.taking = m.Digest
		for _, ref := range m.Deployments {
			l.pinned[ref.Digest] = true
		}
		if m.Bundle != nil {
			bundles = append(bundles, m.Bundle.Digest)
		}
	}
	if err := errors.Join(l.store.Incoming().Keep(bundles...), l.pruneLocked()); err != nil {
		l.logger.Warn("cannot drop the downloads of an earlier manifest", "error", err)
	}
}

type adoption struct {
	scope  string // of its WFM
	epoch  uint64 // of that scope
	afresh bool   // the WFM may know nothing of its content: all of it is reported
	again  bool   // reports may be lost: all of it is reported, too
	// Who had it accepted although its version is not greater.
	operator string
}

// accept makes m the desired state, in one transaction with those of its documents that the store
// lacks. It tells the workers of what changes even on an error, since a commit that failed may be
// durable nevertheless. Only records that change are written; the phase of the others tells that
// they hold what m lists.
func (l *ledger) accept(ctx context.Context, m *wfm.Manifest, by adoption, in *intake) error {
	unrecorded := l.unrecorded(ctx) // before mu is taken: approvals and others must not wait for the runtime
	l.mu.Lock()
	defer l.mu.Unlock()
	held, err := l.store.Deployments()
	if err != nil {
		// A record that cannot be read is replaced if its deployment is listed.
		l.logger.Error("cannot read all deployments", "error", err)
	}
	at := facts{now: l.now(), accepted: m.Version, former: m.Version} // a former version of another WFM means nothing
	if before, known, _ := l.store.Manifest(); known && !by.afresh {
		at.former = before.Version
	}
	change := store.Change{
		Manifest:  &store.Manifest{Epoch: by.epoch, Version: m.Version, ETag: m.ETag, Digest: m.Digest, Scope: by.scope},
		Artifacts: in.documents,
		Unheard:   l.deaf(),
	}
	var touched []string
	put := func(before *store.Deployment, after store.Deployment) error {
		told := before
		if by.again {
			told = nil
		}
		if by.afresh { // no other version means anything to this WFM
			told, after.Adopted = nil, m.Version
		}
		report, err := l.report(told, &after, m.Version)
		if err != nil {
			return err
		}
		change.Deployments = append(change.Deployments, after)
		change.Reports = append(change.Reports, report...)
		if before != nil && before.ID != after.ID {
			change.Forget = append(change.Forget, before.ID)
			touched = append(touched, before.ID)
		}
		touched = append(touched, after.ID)
		return nil
	}
	known := byID(held)
	listed := make(map[string]bool, len(m.Deployments))
	unrecorded = slices.DeleteFunc(unrecorded, func(d store.Deployment) bool { return known[strings.ToLower(d.ID)] != nil })
	rejections := l.rejections()
	for i, ref := range m.Deployments {
		id := strings.ToLower(ref.ID)
		listed[id] = true
		before, after := known[id], store.Deployment{}
		if before != nil {
			after = *before
		}
		after.ID, after.Place = ref.ID, i+1
		if before != nil && holds(before, ref) {
			_, came := in.came[ref.Digest]
			switch {
			case before.ID != ref.ID, by.afresh, by.again:
				if err := put(before, after); err != nil {
					return err
				}
			case came: // its document had been lost
				touched = append(touched, ref.ID)
			case before.Place != i+1 && waitsForTurn(before): // no reason to restart its work
				change.Deployments = append(change.Deployments, after)
			}
			continue
		}
		document, err := in.head(ref.Digest)
		if err != nil {
			return fmt.Errorf("deployment %s: %w", ref.ID, err)
		}
		if before == nil {
			after.Found = slices.ContainsFunc(unrecorded, func(found store.Deployment) bool { return margo.SameID(found.ID, ref.ID) })
			after.Answers = rejections[id]
		}
		want(&after, ref.Digest, m.Version, document)
		if after, err = next(after, eventDesired, at); err == nil {
			err = put(before, after)
		}
		if err != nil {
			return err
		}
	}
	held = append(held, unrecorded...)
	for i := range held {
		before := &held[i]
		if listed[strings.ToLower(before.ID)] || leaves(before) {
			continue
		}
		after, err := next(*before, eventAbsent, at)
		if err == nil && l.passes(&after) {
			after, err = next(after, eventGo, at)
		}
		if err != nil {
			return err
		}
		after.Place = 0
		change.Journal = append(change.Journal, l.notes(before, &after)...)
		if err := put(before, after); err != nil {
			return err
		}
	}
	refusals, err := l.refuseIDs(m)
	if err != nil {
		return err
	}
	change.Reports = append(change.Reports, refusals...)
	change.Journal = append(change.Journal, l.noteAccepted(m, by, len(touched))...)
	l.accepted.Store(0) // to be read, whatever became of the transaction
	err = l.store.Commit("accept manifest", change)
	l.changed(touched)
	if err != nil {
		err = fmt.Errorf("cannot accept manifest %d: %w", m.Version, err)
	}
	if err != nil && !errors.Is(err, store.ErrAside) {
		return err
	}
	l.turns.note(change.Deployments...)
	l.accepted.Store(m.Version)
	l.lacks.Store(false)
	l.pin(nil) // the records need them now
	if len(change.Reports) > 0 {
		l.reported()
	}
	for i := range change.Deployments {
		l.announce(&change.Deployments[i])
	}
	return err
}

// refuseIDs reports the entries of a manifest that fail because of their ids. They have no
// records, so the rest of the agent never sees such an id.
func (l *ledger) refuseIDs(m *wfm.Manifest) ([]store.Report, error) {
	var reports []store.Report
	for _, d := range m.Refused {
		l.logger.Error("deployment is not run because of its id", "reason", d.Reason)
		if !d.CanReport() {
			continue
		}
		status := margo.Status{
			DeploymentID: d.ID, DeviceID: l.settings.Load().Device.ID, AdoptedVersion: m.Version, State: margo.Failed,
			Error: &margo.Fault{Code: codeInvalidID, Source: d.ID, Message: d.Reason},
		}
		body, err := status.Marshal()
		if err != nil {
			return nil, fmt.Errorf("cannot build status report of deployment %q: %w", d.ID, err)
		}
		reports = append(reports, store.Report{Deployment: d.ID, Version: m.Version, Weight: store.Failure, Body: body})
	}
	return reports, nil
}

func holds(d *store.Deployment, ref margo.DeploymentRef) bool {
	return d.Desired.Digest == ref.Digest && !leaves(d)
}

func leaves(d *store.Deployment) bool {
	return Phase(d.Phase) == Leaving || Phase(d.Phase) == Removing
}

func (l *ledger) version() uint64 {
	if v := l.accepted.Load(); v != 0 {
		return v
	}
	m, _, _ := l.store.Manifest() // the readable copy
	return m.Version
}

// byID are deployments by their ids in lower case.
func byID(deployments []store.Deployment) map[string]*store.Deployment {
	all := make(map[string]*store.Deployment, len(deployments))
	for i := range deployments {
		all[strings.ToLower(deployments[i].ID)] = &deployments[i]
	}
	return all
}

func idsOf(deployments []store.Deployment) []string {
	ids := make([]string, len(deployments))
	for i := range deployments {
		ids[i] = deployments[i].ID
	}
	return ids
}

// unrecorded lists, in phase Forgotten, deployments that have containers but no record, since the
// store was lost, with the components that run. Records are read before the runtime is observed,
// so that a deployment forgotten meanwhile is not listed. The caller does not hold mu.
func (l *ledger) unrecorded(ctx context.Context) []store.Deployment {
	records, _ := l.store.Deployments() // accept logs unreadable records
	recorded := byID(records)
	ctx, cancel := context.WithTimeout(ctx, observeTimeout)
	defer cancel()
	projects, err := l.runtime.Observe(ctx)
	if err != nil {
		l.logger.Warn("cannot find containers without a record", "error", err)
		return nil
	}
	var found []store.Deployment
	for _, p := range projects {
		id := p.Labels[labelDeployment]
		if id == "" || recorded[strings.ToLower(id)] != nil {
			continue
		}
		at := slices.IndexFunc(found, func(d store.Deployment) bool { return margo.SameID(d.ID, id) })
		if at < 0 {
			at = len(found)
			found = append(found, store.Deployment{ID: id})
		}
		found[at].Components = append(found[at].Components, store.Component{Name: p.Labels[labelComponent]})
	}
	return found
}

// want makes a revision of the manifest of this version the desired one (DS-19, DS-20).
func want(d *store.Deployment, revision digest.Digest, version uint64, document head) {
	d.Desired = store.Revision{Digest: revision, Version: version}
	for _, kept := range []*store.Revision{d.Active, d.Former} {
		if kept != nil && kept.Digest == revision {
			d.Desired.Staged, d.Desired.Summary = kept.Staged, kept.Summary // it is on the device already
			break
		}
	}
	d.Name, d.Components = document.name, document.components
}

// runs says that a revision worked last and nothing begun since would have touched it.
func runs(d *store.Deployment, revision digest.Digest) bool {
	return d.Active != nil && d.Active.Digest == revision && d.Return != returnLeft
}

// adopted is the manifest version that d is reported to have adopted (ST-12, ST-13), where
// accepted is that of the accepted manifest, or 0 if none can be read. Once begun, a revision
// counts as the accepted manifest's, whichever listed it first; before that, and during
// removal, the record tells.
func adopted(d *store.Deployment, accepted uint64) uint64 {
	switch Phase(d.Phase) {
	case Applying, Active, Failed:
		return cmp.Or(accepted, d.Adopted)
	}
	return d.Adopted
}

// facts are those of an event without a manifest.
func (l *ledger) facts() facts {
	accepted := l.version()
	return facts{now: l.now(), accepted: accepted, former: accepted}
}

// step records an event of a deployment together with its report. change, if not nil, edits the
// record afterwards. d is the record as the caller knows it and becomes what was written;
// errSuperseded if it was changed meanwhile.
func (l *ledger) step(d *store.Deployment, e event, change func(*store.Deployment), notes ...store.Entry) error {
	return l.stepWith(nil, d, e, change, notes...)
}

// stepWith is step with artifacts that the record needs from now on.
func (l *ledger) stepWith(
	artifacts map[digest.Digest][]byte, d *store.Deployment, e event, change func(*store.Deployment), notes ...store.Entry,
) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	before, err := l.current(d)
	if err != nil {
		return err
	}
	after, err := next(before, e, l.facts())
	if err != nil {
		return err
	}
	if change != nil {
		change(&after)
	}
	if transitions[e] != nil {
		notes = append(notes, l.notes(&before, &after)...)
	}
	if err := l.commit(string(e), &before, &after, artifacts, notes...); err != nil {
		return err
	}
	*d = after
	return nil
}

func (l *ledger) restore(data []byte) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.store.Commit("restore artifact", store.Change{Artifacts: map[digest.Digest][]byte{digest.FromBytes(data): data}})
}

// current reads a record and returns errSuperseded if the WFM or the site changed it since the
// caller read it. The caller holds mu.
func (l *ledger) current(seen *store.Deployment) (store.Deployment, error) {
	d, err := l.store.Deployment(seen.ID)
	if err != nil {
		return d, fmt.Errorf("cannot read deployment %s: %w", seen.ID, err)
	}
	if d.Desired.Digest != seen.Desired.Digest || d.Phase != seen.Phase || codeOf(d.Fault) != codeOf(seen.Fault) {
		return d, errSuperseded
	}
	return d, nil
}

func codeOf(f *store.Fault) string {
	if f == nil {
		return ""
	}
	return f.Code
}

// commit replaces before with after and reports the difference. The caller holds mu.
func (l *ledger) commit(verb string, before, after *store.Deployment, artifacts map[digest.Digest][]byte, notes ...store.Entry) error {
	reports, err := l.report(before, after, l.version())
	if err != nil {
		return err
	}
	change := store.Change{Reports: reports, Unheard: l.deaf(), Artifacts: artifacts, Journal: notes}
	if err := l.keepRejections(&change, before, after); err != nil {
		return err
	}
	if Phase(after.Phase) == Forgotten {
		change.Forget = []string{after.ID}
	} else {
		change.Deployments = []store.Deployment{*after}
	}
	if err := l.store.Commit(verb, change); err != nil {
		return fmt.Errorf("cannot record %q of deployment %s: %w", verb, after.ID, err)
	}
	l.turns.note(*after)
	if len(reports) > 0 {
		l.reported()
		l.announce(after)
	}
	return nil
}

func (l *ledger) needs() (needs, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.needed()
}

// prune drops artifacts that neither a revision nor a manifest being taken needs. Nothing is
// accepted meanwhile, since nothing needs its documents yet.
func (l *ledger) prune() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.pruneLocked()
}

func (l *ledger) pruneLocked() error {
	n, err := l.needed()
	if err != nil {
		return err
	}
	_, err = l.store.PruneArtifacts(n.artifacts)
	return err
}

// needed is what all revisions and a manifest being taken need. The caller holds mu.
func (l *ledger) needed() (n needs, err error) {
	deployments, err := l.store.Deployments()
	if err != nil { // an unreadable record may need any of them
		return n, fmt.Errorf("cannot read the deployments: %w", err)
	}
	n.artifacts = map[digest.Digest]bool{}
	maps.Copy(n.artifacts, l.pinned)
	for i := range deployments {
		d := &deployments[i]
		n.projects = append(n.projects, ownProjects(d)...)
		for _, r := range revisions(d) {
			n.artifacts[r.Digest] = true
			if r.Summary != nil {
				n.artifacts[r.Summary.Effects] = true
			}
			for _, s := range r.Staged {
				n.artifacts[s.Package] = true
				n.images = append(n.images, s.Images)
			}
		}
		if isFetching(d) {
			for _, c := range d.Components {
				n.fetching = append(n.fetching, projectName(d.ID, c.Name))
			}
		}
	}
	return n, nil
}

func revisions(d *store.Deployment) []*store.Revision {
	return slices.DeleteFunc([]*store.Revision{&d.Desired, d.Active, d.Former}, func(r *store.Revision) bool { return r == nil })
}

func isFetching(d *store.Deployment) bool {
	switch Phase(d.Phase) {
	case Fetched:
		return true
	case Failed:
		return len(d.Desired.Staged) == 0 && d.Fault != nil && !permanent(d.Fault.Code)
	}
	return false
}

// report builds the status report of a change under the accepted manifest of this version, or
// none if the WFM would see no difference (ST-01, ST-02).
func (l *ledger) report(before, after *store.Deployment, version uint64) ([]store.Report, error) {
	status := l.statusAt(after, version)
	body, err := status.Marshal()
	if err != nil {
		return nil, fmt.Errorf("cannot build status report of deployment %s: %w", after.ID, err)
	}
	if before != nil && before.Phase != "" {
		b := l.statusAt(before, version)
		// A newer version alone is not worth a report.
		b.AdoptedVersion = status.AdoptedVersion
		if former, err := b.Marshal(); err == nil && bytes.Equal(former, body) {
			return nil, nil
		}
	}
	weight := store.Step
	switch status.State {
	case margo.Failed:
		weight = store.Failure
	case margo.Removed:
		weight = store.End
	}
	return []store.Report{{Deployment: after.ID, Version: status.AdoptedVersion, Weight: weight, Body: body}}, nil
}

func (l *ledger) status(d *store.Deployment) margo.Status { return l.statusAt(d, l.version()) }

// statusAt is status under the accepted manifest of this version.
func (l *ledger) statusAt(d *store.Deployment, version uint64) margo.Status {
	s := margo.Status{
		DeploymentID:   d.ID,
		DeviceID:       l.settings.Load().Device.ID,
		AdoptedVersion: adopted(d, version),
		State:          Phase(d.Phase).State(),
		Error:          (*margo.Fault)(d.Fault),
	}
	for _, c := range d.Components {
		s.Components = append(s.Components, margo.ComponentStatus{
			Name: c.Name, State: margo.State(c.State), Error: (*margo.Fault)(c.Fault),
		})
	}
	switch {
	case len(s.Components) > 0:
		s.State = margo.OverallState(s.Components) // ST-04
	case Phase(d.Phase) == Leaving && d.Fault != nil:
		s.State = margo.Failed
	}
	if s.State == margo.Pending && s.Error == nil {
		s.Error = (*margo.Fault)(d.Waits)
	}
	return s
}

func (l *ledger) announce(d *store.Deployment) {
	status := l.status(d)
	state := string(status.State)
	e := control.Event{
		Kind: control.DeploymentChanged, Deployment: d.ID, State: state,
		Digest: d.Desired.Digest.String(), Version: status.AdoptedVersion,
	}
	attrs := []any{"deployment", d.ID, "state", state, "revision", d.Desired.Digest.String()}
	if d.Fault == nil {
		l.logger.Info("deployment changed", attrs...)
	} else {
		e.Error = (*control.Error)(d.Fault)
		l.logger.Warn("deployment changed", append(attrs, "code", d.Fault.Code, "error", d.Fault.Message)...)
	}
	l.hub.send(e)
	for _, c := range d.Components {
		l.hub.send(control.Event{
			Kind: control.DeploymentChanged, Deployment: d.ID, Component: c.Name,
			State: c.State, Error: (*control.Error)(c.Fault),
		})
	}
}
