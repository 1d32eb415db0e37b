package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/margolite/margolite/agent/control"
	"github.com/margolite/margolite/runtime"
	"github.com/margolite/margolite/store"
)

// What the agent does after losing its store, or a part of it: what runs goes on, records come
// again with the next manifest, and what already runs as that wants is taken over.

const (
	// rejectionsSetting names the record of what the site has rejected, a setting since those
	// outlive the records of deployments.
	rejectionsSetting = "rejections"
	damageShown       = 30 * 24 * time.Hour
)

// adopt takes over what was found running without a record if it is the desired revision: nothing
// changes, so nobody is asked. false: it is another one.
func (r *reconciler) adopt(ctx context.Context, w *worker, d *store.Deployment) (bool, error) {
	same, err := r.isThere(ctx, d)
	if err != nil || !same {
		return false, err
	}
	if err := r.applyRevision(ctx, w, d, &d.Desired); err != nil { // waits until it has settled
		return true, r.fail(ctx, w, d, err)
	}
	if err := r.ledger.step(d, eventFound, nil); err != nil {
		return true, err
	}
	r.prune()
	return true, nil
}

// isThere says that exactly the containers of the desired revision are on the device.
func (r *reconciler) isThere(ctx context.Context, d *store.Deployment) (bool, error) {
	if _, err := r.document(d.Desired.Digest); err != nil {
		return false, err
	}
	projects, err := r.projectsOf(ctx, d.ID)
	if err != nil {
		return false, err
	}
	wanted := stagedProjects(d)
	if slices.ContainsFunc(projects, func(p runtime.ObservedProject) bool { return !slices.Contains(wanted, p.Name) }) {
		return false, nil
	}
	rev, err := r.loadRevision(ctx, d.ID, &d.Desired, true)
	if err != nil {
		return false, err
	}
	for _, c := range rev.components {
		c.project.Pin(c.images)
		if same, err := r.runtime.Matches(ctx, c.project); err != nil || !same {
			return false, nil // applying it reports the fault
		}
	}
	return true, nil
}

// foundImages are a running project's images by reference, to keep where tags have moved.
func (r *reconciler) foundImages(ctx context.Context, project string) map[string]digest.Digest {
	p, err := r.runtime.ObserveProject(ctx, project)
	if err != nil {
		return nil // applying reports it
	}
	images := map[string]digest.Digest{}
	for _, c := range p.Containers {
		_, pin, _ := strings.Cut(c.Image, "@")
		if d := digest.Digest(pin); c.Labels.Image != "" && d.Validate() == nil {
			images[c.Labels.Image] = d
		}
	}
	return images
}

// isLost says that an error comes from the loss of what a revision needs in the store.
func isLost(err error) bool {
	return errors.Is(err, store.ErrNotFound) || errors.Is(err, store.ErrCorrupt)
}

// stillThere says that every component of a revision still has its containers.
func (r *reconciler) stillThere(ctx context.Context, rev *store.Revision) bool {
	projects, err := r.runtime.Observe(ctx)
	if err != nil {
		return false
	}
	for _, s := range rev.Staged {
		if !slices.ContainsFunc(projects, func(p runtime.ObservedProject) bool { return p.Name == s.Project && len(p.Containers) > 0 }) {
			return false
		}
	}
	return len(rev.Staged) > 0
}

// rejections reads what the site has rejected, by deployment id in lower case.
func (l *ledger) rejections() map[string][]store.Answer {
	all := map[string][]store.Answer{}
	record, set, err := l.store.Setting(rejectionsSetting)
	if err == nil && set {
		err = json.Unmarshal(record, &all)
	}
	if err != nil {
		l.logger.Error("cannot read the rejected revisions", "error", err)
	}
	return all
}

// keepRejections adds a deployment's rejections, if it has or had any, to a change of the store.
func (l *ledger) keepRejections(change *store.Change, before, after *store.Deployment) error {
	now := remembered(after.Answers)
	if len(remembered(before.Answers))+len(now) == 0 {
		return nil
	}
	all := l.rejections()
	if all[strings.ToLower(after.ID)] = now; len(now) == 0 || Phase(after.Phase) == Forgotten {
		delete(all, strings.ToLower(after.ID))
	}
	var record []byte
	if len(all) > 0 {
		var err error
		if record, err = json.Marshal(all); err != nil {
			return fmt.Errorf("cannot save the rejected revisions: %w", err)
		}
	}
	change.Settings = map[string][]byte{rejectionsSetting: record}
	return nil
}

// noteDamage records damage of the store in the journal, once.
func (a *Agent) noteDamage() {
	d, damaged := a.o.Store.Damage()
	if !damaged {
		return
	}
	journal, _ := a.o.Store.Journal(store.JournalFilter{}) // an unreadable journal counts as empty
	if slices.ContainsFunc(journal, func(e store.Entry) bool { return e.Kind == noteDamaged && !e.Time.Before(d.At) }) {
		return
	}
	a.o.Logger.Error("the store was damaged and is recreated; workloads keep running", "security", true, "found", d.Text, "kept", d.Kept)
	a.ledger.record(a.ledger.note(noteDamaged, store.Entry{Text: d.Text}))
}

func (a *Agent) damageOf() *control.Damage {
	d, damaged := a.o.Store.Damage()
	if !damaged || a.o.Now().Sub(d.At) > damageShown {
		return nil
	}
	return &control.Damage{At: d.At, Text: d.Text, Kept: d.Kept}
}
