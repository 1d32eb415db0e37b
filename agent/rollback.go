package agent

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"

	"github.com/margolite/margolite/agent/control"
	"github.com/margolite/margolite/agent/wfm"
	"github.com/margolite/margolite/store"
)

// versionRefusal is a manifest refused for its version alone (DS-06, A-03), unless permitted.
type versionRefusal struct {
	text     string
	manifest *control.RefusedManifest
}

func (r *versionRefusal) Error() string { return errRefused.Error() + ": " + r.text }

func (r *versionRefusal) Unwrap() error { return errRefused }

// permission is an operator's permission to accept exactly one manifest although its version is
// not greater than the accepted one.
type permission struct {
	control.RollbackRequest
	used atomic.Bool
}

// AcceptRollback polls, and accepts the named manifest if the WFM still serves it.
func (a *Agent) AcceptRollback(ctx context.Context, r control.RollbackRequest) error {
	permit := &permission{RollbackRequest: r}
	err := a.poller.sync(ctx, permit)
	if !permit.used.Load() && (err == nil || errors.Is(err, errRefused)) {
		return fmt.Errorf("%w: the WFM does not serve version %d (%s) now", control.ErrConflict, r.Version, r.Digest)
	}
	return err
}

func (p *poller) refuse(held store.Manifest, m *wfm.Manifest) error {
	what := fmt.Sprintf("version %d is lower than the accepted %d", m.Version, held.Version)
	if m.Version == held.Version {
		what = fmt.Sprintf("version %d was accepted with other content (%s, now %s)", m.Version, held.Digest, m.Digest)
	}
	r := &versionRefusal{text: what + "; if the WFM has lost its state, `margolite accept-rollback` accepts it [DS-06]"}
	p.mu.Lock()
	before := p.state.RefusedManifest
	p.mu.Unlock()
	if before != nil && before.Version == m.Version && before.Digest == m.Digest.String() {
		r.manifest = before
		return r
	}
	since := p.now().UTC()
	if before != nil {
		since = before.Since // nothing was accepted in between
	}
	r.manifest = &control.RefusedManifest{Since: since, Accepted: held.Version, Version: m.Version, Digest: m.Digest.String(), Deployments: make([]string, 0, len(m.Deployments))}
	deployments, _ := p.store.Deployments() // an unreadable record would be added, too
	known := byID(deployments)
	listed := make(map[string]bool, len(m.Deployments))
	for _, ref := range m.Deployments {
		id := strings.Clone(ref.ID) // the rest of the manifest need not stay in memory
		r.manifest.Deployments = append(r.manifest.Deployments, id)
		listed[strings.ToLower(id)] = true
		switch d := known[strings.ToLower(id)]; {
		case d == nil || leaves(d):
			r.manifest.Added = append(r.manifest.Added, id)
		case d.Desired.Digest != ref.Digest:
			r.manifest.Changed = append(r.manifest.Changed, id)
		}
	}
	for i := range deployments {
		if id := deployments[i].ID; !listed[strings.ToLower(id)] {
			r.manifest.Removed = append(r.manifest.Removed, id)
		}
	}
	return r
}
