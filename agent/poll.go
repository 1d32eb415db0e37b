package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/margolite/margolite/agent/control"
	"github.com/margolite/margolite/agent/identity"
	"github.com/margolite/margolite/agent/margo"
	"github.com/margolite/margolite/agent/wfm"
	"github.com/margolite/margolite/capability"
	"github.com/margolite/margolite/store"
)

// maxPollDelay bounds how long failed polls make the next one wait, unless the
// interval is longer or the WFM asked for more.
const maxPollDelay = 5 * time.Minute

// capabilitiesSetting names the record of the capabilities that the WFM
// acknowledged: its scope and the digest of the document.
const capabilitiesSetting = "capabilities"

// errRefused marks what the WFM published and this device does not accept. The
// running state stays, and the next good manifest is accepted.
var errRefused = errors.New("manifest refused")

// poller asks the WFM for the desired state (DS-01).
type poller struct {
	device   Device
	facts    func() (capability.Facts, error)
	interval time.Duration
	wfm      WFM
	store    *store.Store
	ledger   *ledger
	hub      *hub
	logger   *slog.Logger
	now      func() time.Time
	accepted func(ids []string) // the desired state of these deployments changed
	contact  func()             // the WFM answered
	requests chan chan error    // of sync; each has room for its answer

	mu    sync.Mutex
	state pollState
}

// pollState is what polling knows beyond the store. It is lost with the process.
type pollState struct {
	reachable   bool
	last        time.Time // end of the last poll
	lastContact time.Time
	next        time.Time
	notBefore   time.Time // the WFM asked for silence until then (ERR-04)
	err         error     // of the last poll
	refused     string    // why the manifest that the WFM serves is refused
	logged      string    // the last problem that was logged, to log it once
	report      bool      // send the capabilities although they were acknowledged
	unreported  string    // the last problem with capabilities that was logged, to log it once

	refusedManifest *control.RefusedManifest // the one that is refused for its version alone
	permit          *permission              // to accept it nevertheless
	told            []string                 // refusals that were logged
}

func newPoller(o Options, l *ledger, h *hub, accepted func([]string), contact func()) *poller {
	return &poller{
		device: o.Device, facts: o.Facts, interval: o.PollInterval,
		wfm: o.WFM, store: o.Store, ledger: l, hub: h, logger: o.Logger, now: o.Now,
		accepted: accepted, contact: contact, requests: make(chan chan error),
	}
}

// run polls until ctx is done.
func (p *poller) run(ctx context.Context) error {
	retry := backoff{first: p.interval, most: max(p.interval, maxPollDelay)}
	var answer chan error // of whoever asked for this poll
	for {
		err := p.poll(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if answer != nil {
			answer <- err
			answer = nil
		}
		delay := p.interval - rand.N(p.interval/10+1) // a fleet spreads over time
		if _, after := wfm.Retry(err); err != nil && !errors.Is(err, errRefused) {
			delay = max(delay, retry.fail(), after)
		} else {
			retry.reset()
		}
		p.mu.Lock()
		p.state.next = p.now().Add(delay)
		p.mu.Unlock()

		if answer, err = p.pause(ctx, delay); err != nil {
			return nil
		}
	}
}

// pause waits for d, or until somebody asks for a poll and the WFM did not ask
// for silence. The error is ctx's.
func (p *poller) pause(ctx context.Context, d time.Duration) (answer chan error, err error) {
	t := time.NewTimer(d)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-t.C:
			until := p.Until()
			if until.IsZero() {
				return nil, nil
			}
			t.Reset(until.Sub(p.now())) // a report was answered with the wish for silence
		case answer := <-p.requests:
			err := p.silence()
			if err == nil {
				return answer, nil
			}
			answer <- err
		}
	}
}

// silence is an error for as long as the WFM asked not to be called (ERR-04).
func (p *poller) silence() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if left := p.state.notBefore.Sub(p.now()); left > 0 {
		return fmt.Errorf("%w: the WFM asked not to be called for another %s", control.ErrConflict, left.Round(time.Second))
	}
	return nil
}

// Until is when the WFM may be called again; zero when that is now.
func (p *poller) Until() time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.state.notBefore.After(p.now()) {
		return p.state.notBefore
	}
	return time.Time{}
}

// Note takes note of how a call of the WFM ended.
func (p *poller) Note(err error) {
	_, after := wfm.Retry(err)
	p.mu.Lock()
	defer p.mu.Unlock()
	if until := p.now().Add(after); after > 0 && until.After(p.state.notBefore) {
		p.state.notBefore = until
	}
}

// Wait returns when the WFM may be called again. The error is ctx's.
func (p *poller) Wait(ctx context.Context) error {
	for until := p.Until(); !until.IsZero(); until = p.Until() {
		if !wait(ctx, until.Sub(p.now()), nil, nil) {
			return ctx.Err()
		}
	}
	return ctx.Err()
}

// sync polls now, unless the WFM asked for silence.
func (p *poller) sync(ctx context.Context) error {
	answer := make(chan error, 1)
	select {
	case p.requests <- answer:
	case <-ctx.Done():
		return ctx.Err()
	}
	select {
	case err := <-answer:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// poll makes one round: capabilities if they changed (CAP-01, CAP-03), then
// the manifest. Its outcome is kept for status, and logged when it differs
// from the one before.
func (p *poller) poll(ctx context.Context) error {
	scope, err := p.wfm.Identity()
	if err == nil {
		err = p.reportCapabilities(ctx, scope)
	}
	if err == nil {
		err = p.fetch(ctx, scope)
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}

	var answered *wfm.Error
	reachable := err == nil || errors.As(err, &answered) || errors.Is(err, errRefused)
	now := p.now()
	problem := ""
	if err != nil {
		problem = err.Error()
	}
	p.mu.Lock()
	p.state.last, p.state.err, p.state.reachable = now, err, reachable
	if reachable {
		p.state.lastContact = now
	}
	if _, after := wfm.Retry(err); after > 0 {
		p.state.notBefore = now.Add(after)
	}
	var version *versionRefusal
	switch {
	case errors.As(err, &version):
		p.state.refused, p.state.refusedManifest = problem, version.manifest
	case errors.Is(err, errRefused):
		p.state.refused, p.state.refusedManifest = problem, nil
	case err == nil:
		p.state.refused, p.state.refusedManifest = "", nil
	}
	outage := problem // what is refused is told for itself
	if errors.Is(err, errRefused) {
		outage = ""
	}
	fresh := outage != p.state.logged
	p.state.logged = outage
	p.mu.Unlock()

	switch {
	case err == nil:
		if fresh {
			p.logger.Info("polling works again")
		}
		p.hub.send(control.Event{Kind: control.PollSucceeded})
	case errors.Is(err, errRefused):
		if p.untold(problem) {
			p.logger.Error("manifest refused; what runs keeps running", "security", true, "error", err)
		}
		p.hub.send(control.Event{Kind: control.ManifestRefused, Text: problem})
	default:
		if fresh {
			attrs := []any{"error", err}
			var known *identity.Error
			if errors.As(err, &known) {
				attrs = append(attrs, "mend", known.Mend())
			}
			p.logger.Warn("cannot poll the WFM; what runs keeps running", attrs...)
		}
		p.hub.send(control.Event{Kind: control.PollFailed, Text: problem})
	}
	if reachable {
		p.contact()
	}
	return err
}

// reportCapabilities sends the capabilities if the WFM does not have these. A
// WFM that answers, but does not take them, does not keep the device from
// polling, and neither does a machine that can no longer be described.
func (p *poller) reportCapabilities(ctx context.Context, scope string) error {
	p.mu.Lock()
	force := p.state.report
	p.mu.Unlock()
	held, _, err := p.store.Setting(capabilitiesSetting)
	if err != nil {
		return fmt.Errorf("cannot read which capabilities were reported: %w", err)
	}
	doc, err := Describe(p.device, p.facts, p.logger)
	if err != nil && strings.HasPrefix(string(held), scope+" ") {
		p.complain("capabilities of this device are not reported", err)
		return nil
	}
	if err != nil {
		return err // they are the first exchange (CAP-01)
	}
	mark := []byte(scope + " " + digest.FromBytes(doc).String())
	if !force && string(held) == string(mark) {
		return nil
	}
	err = p.wfm.PutCapabilities(ctx, p.device.ID, doc)
	if err == nil {
		p.logger.Info("capabilities reported", "digest", digest.FromBytes(doc).String())
		return p.acknowledge(mark)
	}
	var answered *wfm.Error
	if !errors.As(err, &answered) || answered.RetryAfter > 0 {
		return fmt.Errorf("cannot report capabilities: %w", err)
	}
	p.complain("the WFM does not take the capabilities of this device", err)
	if answered.Status == http.StatusBadRequest || answered.Status == http.StatusUnprocessableEntity {
		return p.acknowledge(mark) // the same bytes would be refused again
	}
	return nil // they are offered again with the next poll
}

// complain logs a problem with the capabilities once.
func (p *poller) complain(text string, err error) {
	p.mu.Lock()
	fresh := p.state.unreported != err.Error()
	p.state.unreported = err.Error()
	p.mu.Unlock()
	if fresh {
		p.logger.Error(text, "error", err)
	}
}

func (p *poller) acknowledge(mark []byte) error {
	if err := p.store.Commit("capabilities", store.Change{Settings: map[string][]byte{capabilitiesSetting: mark}}); err != nil {
		return fmt.Errorf("cannot record reported capabilities: %w", err)
	}
	p.mu.Lock()
	p.state.report = false
	p.mu.Unlock()
	return nil
}

// fetch asks for the manifest and accepts it if it is new. When its documents
// are gone from the WFM the manifest was probably replaced meanwhile: it is
// asked for once more (DS-14).
func (p *poller) fetch(ctx context.Context, scope string) error {
	held, ok, err := p.store.Manifest()
	if err != nil && !ok {
		return fmt.Errorf("cannot read the accepted manifest: %w", err)
	}
	etag := held.ETag
	if !ok || held.Scope != scope {
		held, etag = store.Manifest{}, ""
	}
	if !p.whole() {
		etag = "" // what was lost has to come again
	}
	m, err := p.wfm.Manifest(ctx, etag)
	if errors.Is(err, wfm.ErrNotModified) {
		return nil // DS-05
	}
	var answered *wfm.Error
	if errors.As(err, &answered) && answered.Status == http.StatusNotFound {
		// Not known yet: it may have lost what it knew of this device.
		p.mu.Lock()
		p.state.report = true
		p.mu.Unlock()
	}
	if err != nil {
		return refusal(err)
	}
	err = p.take(ctx, scope, held, m)
	if !errors.Is(err, wfm.ErrSuperseded) {
		return refusal(err)
	}
	if again, againErr := p.wfm.Manifest(ctx, ""); againErr == nil && again.Digest != m.Digest {
		err = p.take(ctx, scope, held, again)
	}
	return refusal(err)
}

// take checks the version of a manifest, gets its documents and accepts both.
func (p *poller) take(ctx context.Context, scope string, held store.Manifest, m *wfm.Manifest) error {
	same := m.Version == held.Version && m.Digest == held.Digest
	adopted := adoption{scope: scope, epoch: held.Epoch}
	var permit *permission
	switch {
	case held.Version == 0: // the first one of this WFM
		adopted.afresh = true
	case same, m.Version > held.Version:
	default:
		if permit = p.permitted(m); permit == nil {
			return p.refuse(held, m)
		}
		adopted.epoch, adopted.afresh = held.Epoch+1, true
	}
	var need []margo.DeploymentRef
	for _, ref := range m.Deployments {
		if _, err := p.store.Artifact(ref.Digest); err != nil {
			need = append(need, ref)
		}
	}
	if same && len(need) == 0 && p.recorded(held, m) {
		return nil // DS-05; otherwise something was lost, and is filled in again
	}
	var documents map[digest.Digest][]byte
	if len(need) > 0 {
		var err error
		if documents, err = p.wfm.Documents(ctx, m, need); err != nil {
			return err
		}
	}
	for d, body := range documents {
		size := int64(len(body))
		p.hub.send(control.Event{Kind: control.DocumentVerified, Digest: d.String(), Progress: &control.Progress{Done: size, Total: size}})
	}
	if permit != nil {
		p.accepting(permit, held)
	}
	changed, err := p.ledger.accept(ctx, m, adopted, documents)
	p.accepted(changed)
	return err
}

// whole says that nothing which came with the accepted manifest is known to be
// lost: every record can be read, and the document of every deployment that
// failed for a reason of this device.
func (p *poller) whole() bool {
	deployments, err := p.store.Deployments()
	if err != nil {
		return false
	}
	return !slices.ContainsFunc(deployments, func(d store.Deployment) bool {
		if Phase(d.Phase) != Failed || d.Fault == nil || d.Fault.Code != codeInternal {
			return false
		}
		_, err := p.store.Artifact(d.Desired.Digest)
		return err != nil
	})
}

// recorded says that the database holds the manifest and what it lists. Without
// its ETag it was lost, unless the WFM gives none.
func (p *poller) recorded(held store.Manifest, m *wfm.Manifest) bool {
	if held.ETag == "" && m.ETag != "" {
		return false
	}
	deployments, _ := p.store.Deployments() // what cannot be read is not recorded
	return !slices.ContainsFunc(m.Deployments, func(ref margo.DeploymentRef) bool {
		return !slices.ContainsFunc(deployments, func(d store.Deployment) bool {
			return margo.SameID(d.ID, ref.ID) && d.Desired.Digest == ref.Digest
		})
	})
}

// refusal marks an error about the content that the WFM serves as errRefused,
// and lets the rest pass.
func refusal(err error) error {
	var invalid margo.Errors
	if errors.As(err, &invalid) {
		return fmt.Errorf("%w: %w", errRefused, err)
	}
	for _, content := range []error{wfm.ErrDigestMismatch, wfm.ErrTooLarge, wfm.ErrBundle, wfm.ErrContentType, wfm.ErrSuperseded} {
		if errors.Is(err, content) && !errors.Is(err, errRefused) {
			return fmt.Errorf("%w: %w", errRefused, err)
		}
	}
	return err
}
