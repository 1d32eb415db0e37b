package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/margolite/margolite/agent/control"
	"github.com/margolite/margolite/agent/wfm"
	"github.com/margolite/margolite/store"
)

const (
	noteStarted          = "agent.started"
	noteManifestAccepted = "manifest.accepted"
	noteManifestRefused  = "manifest.refused"
	noteManifestRollback = "manifest.rollback" // accepted although its version is not greater
	noteApproved         = "change.approved"
	noteRejected         = "change.rejected"
	noteRefused          = "change.refused" // for what it asks of the device
	noteVetoed           = "change.vetoed"  // by the site's hook
	noteBegun            = "change.begun"
	noteDone             = "change.done"
	noteFailed           = "change.failed"
	noteRemoved          = "change.removed"
	noteReturn           = "rollback.asked" // by hand
	noteReturned         = "rollback.done"  // the former revision runs again
	noteNotReturned      = "rollback.failed"
	noteHeld             = "lock.taken"
	noteReleased         = "lock.released"
	noteExpired          = "lock.expired"
	noteWithdrawn        = "capabilities.withdrawn"    // the WFM heard that the device is gone
	noteNotWithdrawn     = "capabilities.notwithdrawn" // it did not
	noteSecurity         = "security"
	noteDamaged          = "store.damaged"
)

const (
	// lately is how many of the newest entries are searched to avoid repetition.
	lately = 64
	// refusalsADay bounds the manifest refusals kept of one day, so that a changing WFM does not
	// drive out everything else. The log has all.
	refusalsADay = 16
)

func (l *ledger) note(kind string, e store.Entry) store.Entry {
	e.Kind, e.Time = kind, l.now()
	return e.Tidy()
}

// record writes entries that come with no other change.
func (l *ledger) record(entries ...store.Entry) {
	if err := l.store.Commit("journal", store.Change{Journal: entries}); err != nil {
		l.logger.Warn("cannot write the journal", "error", err)
	}
}

// recent are the newest entries of the journal, oldest first.
func (l *ledger) recent() []store.Entry {
	entries, _ := l.store.Journal(store.JournalFilter{Last: lately}) // an unreadable journal counts as empty
	return entries
}

// told says that entries has an entry like e, apart from its time.
func told(entries []store.Entry, e store.Entry) bool {
	return slices.ContainsFunc(entries, func(other store.Entry) bool { return other.Kind == e.Kind && other.Text == e.Text })
}

// tell logs an entry that was written to the journal, with its chain, so that a copy of the log
// elsewhere proves what the journal said. Acceptances and people's decisions are events, too.
func (b *base) tell(e store.Entry) {
	log := b.logger.Info
	attrs := []any{"kind", e.Kind, "sequence", e.Sequence, "chain", e.Chain.String()}
	for _, a := range [][2]string{{"deployment", e.Deployment}, {"revision", e.Revision.String()}, {"by", e.By}, {"text", e.Text}} {
		if a[1] != "" {
			attrs = append(attrs, a[0], a[1])
		}
	}
	if e.Version > 0 {
		attrs = append(attrs, "version", e.Version)
	}
	if e.Kind == noteSecurity || e.Kind == noteManifestRollback {
		log, attrs = b.logger.Warn, append(attrs, "security", true)
	}
	log("journal entry written", attrs...)
	event := control.Event{Kind: control.EventKind(e.Kind), Deployment: e.Deployment, Version: e.Version, Digest: e.Revision.String(), Text: e.Text}
	if e.By != "" {
		event.Text = withReason("by "+e.By, e.Text)
	}
	switch e.Kind {
	case noteManifestRollback:
		b.hub.send(event)
		event.Kind = control.ManifestAccepted
	case noteExpired:
		event.Kind, event.Text = control.LockReleased, "ended: "+e.Text
	case noteManifestAccepted, noteApproved, noteRejected, noteReturn, noteHeld, noteReleased:
	default:
		return
	}
	b.hub.send(event)
}

// noteStart records damage to the journal, and the start unless nothing happened since the last.
func (a *Agent) noteStart() {
	var entries []store.Entry
	if _, err := a.o.Store.VerifyJournal(); err != nil {
		if e := a.ledger.note(noteSecurity, store.Entry{Text: err.Error()}); !told(a.ledger.recent(), e) {
			entries = append(entries, e)
		}
	}
	p := a.o.Program
	start := a.ledger.note(noteStarted, store.Entry{Text: fmt.Sprintf("version %s, commit %s", p.Version, p.Commit)})
	newest := append(a.ledger.recent(), entries...)
	if !told(newest[max(0, len(newest)-1):], start) {
		entries = append(entries, start)
	}
	if len(entries) > 0 {
		a.ledger.record(entries...)
	}
}

// noteAccepted records the acceptance of m, unless it is a repetition that changes nothing.
func (l *ledger) noteAccepted(m *wfm.Manifest, by adoption, changed int) []store.Entry {
	held, known, _ := l.store.Manifest() // the readable copy
	if known && changed == 0 && held.Version == m.Version && held.Digest == m.Digest && held.Epoch == by.epoch && held.Scope == by.scope {
		return nil
	}
	e := store.Entry{Version: m.Version, Revision: m.Digest, Text: fmt.Sprintf("%d listed, %d changed", len(m.Deployments), changed)}
	for _, d := range m.Refused {
		e.Text += "; not run: " + d.Reason
	}
	e.Text = shortened(e.Text, maxFaultText)
	if by.operator == "" {
		return []store.Entry{l.note(noteManifestAccepted, e)}
	}
	e.By = by.operator
	e.Text += fmt.Sprintf("; in place of version %d (%s)", held.Version, held.Digest)
	return []store.Entry{l.note(noteManifestRollback, e)}
}

// noteRefused records a refusal once, even across restarts. of is nil for an unknown manifest.
func (l *ledger) noteRefused(problem string, of *control.RefusedManifest) {
	e := store.Entry{Text: strings.TrimPrefix(problem, errRefused.Error()+": ")}
	if of != nil {
		e.Version, e.Revision = of.Version, digest.Digest(of.Digest)
	}
	e = l.note(noteManifestRefused, e)
	recent := l.recent()
	today := 0
	for _, other := range recent {
		if other.Kind == noteManifestRefused && e.Time.Sub(other.Time).Abs() < 24*time.Hour {
			today++
		}
	}
	if today < refusalsADay && !told(recent, e) {
		l.record(e)
	}
}

// History gives entries of the journal, oldest first.
func (a *Agent) History(_ context.Context, r control.HistoryRequest) ([]control.Entry, error) {
	entries, err := a.o.Store.Journal(store.JournalFilter{From: r.Since, Last: r.Last, Deployment: r.Deployment})
	if err != nil && !errors.Is(err, store.ErrCorrupt) {
		return nil, fmt.Errorf("cannot read the journal: %w", err)
	}
	if err != nil {
		a.o.Logger.Warn("cannot read all of the journal", "error", err)
	}
	history := make([]control.Entry, len(entries))
	for i, e := range entries {
		history[i] = control.Entry{
			Sequence: e.Sequence, Time: e.Time, Kind: e.Kind, Deployment: e.Deployment, Revision: e.Revision.String(),
			Version: e.Version, By: e.By, Text: e.Text, Chain: e.Chain.String(),
		}
	}
	return history, nil
}

// Backup gives a copy of all records.
func (a *Agent) Backup(context.Context) (*os.File, error) { return a.o.Store.Copy(a.o.Reserve) }

// VerifyHistory checks that nothing in the journal was changed.
func (a *Agent) VerifyHistory(context.Context) (control.Verification, error) {
	sum, err := a.o.Store.VerifyJournal()
	if err != nil && !errors.Is(err, store.ErrCorrupt) {
		return control.Verification{}, fmt.Errorf("cannot read the journal: %w", err)
	}
	v := control.Verification{Entries: sum.Entries, First: sum.First, Head: sum.Head.Chain.String()}
	if err != nil {
		v.Problem = err.Error()
	}
	return v, nil
}
