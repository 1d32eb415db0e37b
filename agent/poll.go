package agent

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/margolite/margolite/agent/control"
	"github.com/margolite/margolite/agent/margo"
	"github.com/margolite/margolite/agent/pace"
	"github.com/margolite/margolite/agent/wfm"
	"github.com/margolite/margolite/runtime/contain"
	"github.com/margolite/margolite/store"
)

// capabilitiesSetting names the record of the capabilities that the WFM acknowledged: its scope
// and the digest of the document.
const capabilitiesSetting = "capabilities"

// errRefused marks what the WFM published and this device does not accept. The running state
// stays, and the next good manifest is accepted.
var errRefused = errors.New("manifest refused")

// errHeld: nothing may be sent now (ERR-04, POL-01).
var errHeld = errors.New("polling is paused")

// maxTold bounds how many refusals are remembered, to log each of them once.
const maxTold = 16

// poller asks the WFM for the desired state (DS-01).
type poller struct {
	*base
	silence *pace.Silence
	ledger  *ledger
	random  pace.Random
	loop    *loop
	contact func() // the WFM answered
	again   func() // report the current state of every deployment again

	requests   chan *request // of sync
	configured chan struct{} // the settings changed
	woken      chan struct{} // the WFM may be reachable again
	changed    chan struct{} // the machine changed

	polls   *pace.Polls         // of run
	told    cache[string, bool] // refusals that were logged, each once (DS-07)
	vain    vain                // fetches of what is not acceptable; of run as well
	wholeAt int64               // store write count + 1 when it was last whole; 0: unknown; of run as well
	permit  *permission         // that the present poll has; nil: none; of run as well
	retell  time.Duration       // when to report the current state again, by uptime; 0: not decided; of run as well
	report  bool                // send the capabilities although they were acknowledged; of run as well
	// The last problems with polls and with capabilities that were logged; of run as well.
	logged, unreported string

	mu    sync.Mutex
	state pollState
}

// pollState is what polling knows beyond the store. It is lost with the process.
type pollState struct {
	control.WFMStatus // without the fields of silence and settings
	lastSuccess       time.Time
	succeeded         int64 // polls since the start: good, with a refused manifest, failed
	refusals          int64
	failed            int64
}

type request struct {
	permit *permission // to accept what was refused; nil: none
	answer chan error  // has room for one
}

func newPoller(b *base, random pace.Random, quiet *pace.Silence, l *ledger, watched *loop) *poller {
	return &poller{
		base: b, random: random, silence: quiet, ledger: l, loop: watched,
		told: cache[string, bool]{most: maxTold}, requests: make(chan *request), configured: make(chan struct{}, 1), woken: make(chan struct{}, 1), changed: make(chan struct{}, 1),
	}
}

func (p *poller) run(ctx context.Context) error {
	_, accepted, _ := p.store.Manifest() // the poll reports what is unreadable
	p.polls = pace.NewPolls(p.moment(), p.settings.Load().Poll, p.random, accepted)
	for {
		closed, asker, err := p.pause(ctx)
		if err != nil {
			return nil
		}
		p.permit = nil
		if asker != nil {
			p.permit, p.vain = asker.permit, vain{} // the fault may have been fixed
		}
		p.loop.works()
		asked, err := p.contained(ctx, closed)
		p.loop.waits()
		if ctx.Err() != nil {
			return nil
		}
		switch {
		case errors.Is(err, errHeld): // it remains due
		case !asked && err == nil:
			p.polls.Skip(p.moment())
		case errors.Is(err, errRefused), errors.Is(err, store.ErrFull), p.silence.Hold().Downtime > 0: // not the WFM's failure, or of no interest (POL-02)
			p.polls.Done(p.moment(), nil)
		default:
			p.polls.Done(p.moment(), err)
		}
		if asker != nil {
			asker.answer <- err
		}
	}
}

// contained polls. A panic, which the WFM may provoke by what it serves, is a failed poll.
func (p *poller) contained(ctx context.Context, closed bool) (asked bool, err error) {
	err = contain.Call(func() (err error) {
		asked, err = p.poll(ctx, closed)
		return err
	})
	if p.mistakes.note("poll", err) {
		p.learn(func(s *pollState) {
			s.LastPoll, s.LastError = p.now().UTC(), err.Error()
			s.failed++
		})
	}
	return asked, err
}

func (p *poller) learn(change func(*pollState)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change(&p.state)
}

// pause waits until a poll is due, or one is requested and nothing holds it back. closed: no
// window is open for the manifest. The error is ctx's.
func (p *poller) pause(ctx context.Context) (closed bool, asker *request, err error) {
	for {
		plan := p.polls.Plan(p.moment(), p.silence.Hold())
		p.learn(func(s *pollState) {
			s.Waiting, s.NextPoll, s.ClosedUntil = string(plan.Reason), plan.Next.UTC(), plan.Opens.UTC()
		})
		if plan.Wait <= 0 {
			return plan.Closed, nil, ctx.Err()
		}
		t := time.NewTimer(plan.Wait)
		select {
		case <-ctx.Done():
			err = ctx.Err()
		case <-t.C:
		case <-p.configured:
			p.vain = vain{} // other limits or credentials may help
			p.polls.Configure(p.moment(), p.settings.Load().Poll)
		case <-p.woken:
			p.vain = vain{} // the network may be up for only an hour
			p.polls.Wake(p.moment())
		case <-p.changed:
			p.polls.Tell(p.moment())
		case asker = <-p.requests:
			if refused := p.held(); refused != nil {
				asker.answer <- refused
				asker = nil
			}
		}
		t.Stop()
		if asker != nil || err != nil {
			return false, asker, err
		}
	}
}

// held is an error for as long as nothing may be sent (ERR-04, POL-01).
func (p *poller) held() error {
	hold := p.silence.Hold()
	left := hold.Left().Round(time.Second)
	switch {
	case hold.Left() == 0:
		return nil
	case hold.Reason() == pace.Downtime:
		return fmt.Errorf("%w: %w: downtime lasts for another %s", control.ErrConflict, errHeld, left)
	default:
		return fmt.Errorf("%w: %w: the WFM asked for silence for another %s", control.ErrConflict, errHeld, left)
	}
}

func (p *poller) sync(ctx context.Context, permit *permission) error {
	asker := &request{permit, make(chan error, 1)}
	select {
	case p.requests <- asker:
	case <-ctx.Done():
		return ctx.Err()
	}
	select {
	case err := <-asker.answer:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// poll makes one round: capabilities if they changed (CAP-01, CAP-03), then the manifest unless
// no window is open. Except in downtime (POL-02), the outcome is kept for status and logged when
// it differs from the last one. It returns whether the WFM was called.
func (p *poller) poll(ctx context.Context, closed bool) (asked bool, err error) {
	scope, err := p.wfm.Identity(ctx)
	if err == nil {
		p.learn(func(s *pollState) { s.Identity = scope }) // for status
		asked, err = p.reportCapabilities(ctx)
	} else {
		p.silence.Note(err) // the answer to onboarding may ask for silence
	}
	if err == nil && !closed {
		err = p.held() // the reporter may have been asked for silence meanwhile
	}
	if err == nil && !closed {
		asked, err = true, refusal(p.fetch(ctx, scope))
		p.silence.Note(err)
	}
	if ctx.Err() != nil {
		return asked, ctx.Err()
	}
	if errors.Is(err, errHeld) || err == nil && !asked || err != nil && p.silence.Hold().Downtime > 0 {
		return asked, err // nothing new is known
	}

	reachable, problem, at := err == nil || answered(err), "", p.now().UTC()
	if err != nil {
		problem = err.Error()
	}
	p.learn(func(s *pollState) {
		s.LastPoll, s.LastError, s.Reachable = at, problem, reachable
		if reachable {
			s.LastContact = at
		}
	})
	before := p.logged
	p.logged = problem
	switch {
	case err == nil:
		p.learn(func(s *pollState) {
			s.lastSuccess = at
			s.succeeded++
			if !closed {
				s.Refused, s.RefusedManifest = "", nil
			}
		})
		if before != "" {
			p.logger.Info("polling works again")
		}
		if !closed {
			p.tellAgain()
		}
		p.hub.send(control.Event{Kind: control.PollSucceeded})
	case errors.Is(err, errRefused): // reported separately
		p.logged = ""
		var version *versionRefusal
		var of *control.RefusedManifest
		if errors.As(err, &version) {
			of = version.manifest
		}
		p.learn(func(s *pollState) {
			s.refusals++
			s.Refused, s.RefusedManifest = problem, of
		})
		if p.told.put(problem, true) {
			p.report = p.report || of != nil && of.Version < of.Accepted // it may have lost them as well
			p.logger.Error("manifest refused; workloads keep running", "security", true, "error", err)
			p.ledger.noteRefused(problem, of)
		}
		p.hub.send(control.Event{Kind: control.ManifestRefused, Text: problem})
	default:
		p.learn(func(s *pollState) { s.failed++ })
		if problem != before {
			attrs := []any{"error", err}
			var known interface{ Mend() string }
			if errors.As(err, &known) {
				attrs = append(attrs, "mend", known.Mend())
			}
			p.logger.Warn("cannot poll the WFM; workloads keep running", attrs...)
		}
		p.hub.send(control.Event{Kind: control.PollFailed, Text: problem})
	}
	if reachable {
		p.contact()
	}
	return asked, err
}

// tellAgain has the current state reported again when due (ST-10): the first time anywhere in the
// interval, then up to a tenth of it early, so that a fleet that was switched on together does
// not report together.
func (p *poller) tellAgain() {
	every, now := p.settings.Load().Reports.Interval, p.moment().Up
	if every <= 0 {
		return
	}
	tenth := max(every/10, 1)
	if p.retell == 0 {
		p.retell = now + tenth + p.random(max(every-tenth, 1))
	}
	p.retell = min(p.retell, now+every) // the interval may be shorter now
	if now >= p.retell {
		p.retell = now + every - p.random(tenth)
		p.again()
	}
}

// answered says that an error came as an answer of the WFM or the server of its manifest.
func answered(err error) bool {
	var (
		refused *wfm.Error
		other   interface{ Answered() bool }
	)
	return errors.As(err, &refused) || errors.Is(err, errRefused) || errors.As(err, &other) && other.Answered()
}

// reportCapabilities sends the capabilities if the WFM does not have them. Polling goes on even
// if the WFM does not take them, or the machine cannot be described. It returns whether the WFM
// was called.
func (p *poller) reportCapabilities(ctx context.Context) (asked bool, err error) {
	record, _, err := p.store.Setting(capabilitiesSetting)
	if err != nil {
		return false, fmt.Errorf("cannot read which capabilities were reported: %w", err)
	}
	held := parseAcknowledged(record)
	device := p.settings.Load().Device
	doc, err := Describe(device, p.facts, p.logger)
	audience := p.wfm.Audience()
	if err != nil && held.audience == audience {
		p.complain("not reporting the capabilities of this device", err)
		return false, nil
	}
	if err != nil {
		return false, err // they are the first exchange (CAP-01)
	}
	sum := digest.FromBytes(doc).String()
	if !p.report && held == (acknowledged{audience, sum, device.ID}) {
		return false, nil
	}
	err = p.wfm.PutCapabilities(ctx, device.ID, doc)
	p.silence.Note(err)
	mark := acknowledged{p.wfm.Audience(), sum, device.ID} // it may be known only since this request
	if err == nil {
		p.logger.Info("capabilities reported", "digest", sum)
		return true, p.acknowledge(mark, p.leave(ctx, held, mark)...)
	}
	var answered *wfm.Error
	if !errors.As(err, &answered) || p.silence.Hold().Silence > 0 {
		if ctx.Err() == nil && beside(err) {
			p.complain("cannot report the capabilities of this device", err)
			return true, nil
		}
		return true, fmt.Errorf("cannot report capabilities: %w", err)
	}
	p.complain("the WFM does not accept the capabilities of this device", err)
	if !answered.Page && (answered.Status == http.StatusBadRequest || answered.Status == http.StatusUnprocessableEntity) {
		return true, p.acknowledge(mark) // the same bytes would be refused again
	}
	return true, nil // they are offered again with the next poll
}

// beside says that an error concerns only the receiver of reports, and is no reason not to poll.
func beside(err error) bool {
	var other interface{ Beside() bool }
	return errors.As(err, &other) && other.Beside()
}

func (p *poller) complain(text string, err error) {
	if p.unreported != err.Error() {
		p.unreported = err.Error()
		p.logger.Error(text, "error", err)
	}
}

// leave withdraws what was reported of this device under another id or to another WFM, and
// returns journal entries about it. It is tried once, before the new report is acknowledged;
// after a power cut again.
func (p *poller) leave(ctx context.Context, before, now acknowledged) []store.Entry {
	if before.device == "" || before.device == now.device && before.audience == now.audience {
		return nil
	}
	e, _ := withdraw(ctx, p.wfm, before, p.now()) // the entry says why the WFM was not told
	return []store.Entry{e}
}

func (p *poller) acknowledge(mark acknowledged, journal ...store.Entry) error {
	change := store.Change{Settings: map[string][]byte{capabilitiesSetting: mark.record()}, Journal: journal}
	if err := p.store.Commit("capabilities", change); err != nil {
		return fmt.Errorf("cannot record reported capabilities: %w", err)
	}
	p.report = false
	return nil
}

// fetch asks for the manifest and accepts it if it is new. If its documents are gone from the WFM
// it was probably replaced meanwhile and is asked for once more (DS-14).
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
		p.ledger.settle()
		return nil // DS-05
	}
	var answered *wfm.Error
	if errors.As(err, &answered) && answered.Status == http.StatusNotFound {
		// Not known yet: it may have lost what it knew of this device.
		p.report = true
	}
	if err == nil {
		err = p.stillOf(ctx, scope)
	}
	if err != nil {
		return err
	}
	err = p.take(ctx, scope, held, m)
	if !errors.Is(err, wfm.ErrSuperseded) {
		return err
	}
	if again, againErr := p.wfm.Manifest(ctx, ""); againErr == nil && again.Digest != m.Digest && p.stillOf(ctx, scope) == nil {
		err = p.take(ctx, scope, held, again)
	}
	return err
}

// stillOf fails if the WFM changed during a poll, by configuration or by the id that it gave this
// device: their versions do not compare.
func (p *poller) stillOf(ctx context.Context, scope string) error {
	now, err := p.wfm.Identity(ctx)
	if err == nil && now != scope {
		err = fmt.Errorf("the desired state is requested again: it was for %s, now it is for %s", scope, now)
	}
	return err
}

// take checks the version of a manifest, gets the missing documents and accepts both.
func (p *poller) take(ctx context.Context, scope string, held store.Manifest, m *wfm.Manifest) error {
	same := m.Version == held.Version && m.Digest == held.Digest
	adopted := adoption{scope: scope, epoch: held.Epoch}
	var used *permission
	switch {
	case held.Version == 0: // the first one of this WFM
		adopted.afresh = true
	case same, m.Version > held.Version:
		adopted.again = held.ETag == "" && m.ETag != "" // the database was lost, with reports that waited
	default:
		if used = p.permit; used == nil || used.Version != m.Version || used.Digest != m.Digest.String() {
			return p.refuse(held, m)
		}
		adopted.epoch, adopted.afresh = held.Epoch+1, true
		adopted.operator = control.Caller{UID: used.UID}.String()
	}
	in := p.ledger.begin(m) // what the store has of it stays from now on
	var need []margo.DeploymentRef
	for _, ref := range m.Deployments {
		if _, err := p.store.Artifact(ref.Digest); err != nil { // a damaged one is fetched again
			need = append(need, ref)
		}
	}
	// Without its ETag the manifest was lost from the database, unless the WFM gives none.
	if same && len(need) == 0 && p.recorded(m) && (held.ETag != "" || m.ETag == "") {
		p.ledger.settle()
		p.ledger.lacks.Store(false) // the WFM does not have what is lost
		return nil                  // DS-05; otherwise something was lost, and is filled in again
	}
	if len(m.Warnings) > 0 {
		p.logger.Warn("manifest accepted although it has faults", "version", m.Version, "reason", m.Warnings.Error())
	}
	if len(need) > 0 {
		if err := p.vain.before(m.Digest, p.moment().Up); err != nil {
			return err
		}
		keep := func(d digest.Digest, document []byte) error {
			p.loop.works()
			return in.keep(d, document)
		}
		if err := p.wfm.Documents(ctx, m, need, keep); err != nil {
			if again, _ := wfm.Retry(err); again {
				return errors.Join(err, in.save()) // the next attempt resumes there
			}
			if errors.Is(refusal(err), errRefused) {
				p.vain.note(m.Digest, p.moment().Up, p.settings.Load().Poll.Interval, err)
			}
			return err
		}
	}
	if used != nil {
		used.used.Store(true)
	}
	return p.ledger.accept(ctx, m, adopted, in)
}

// whole says that nothing of the accepted manifest is known to be lost or unreadable.
func (p *poller) whole() bool {
	if p.ledger.lacks.Load() {
		return false
	}
	writes := p.store.Writes()
	if p.wholeAt != writes+1 { // otherwise nothing was written since the last check
		if _, err := p.store.Deployments(); err != nil {
			return false
		}
		p.wholeAt = writes + 1
	}
	return true
}

func (p *poller) recorded(m *wfm.Manifest) bool {
	deployments, _ := p.store.Deployments() // an unreadable record counts as missing
	known := byID(deployments)
	return !slices.ContainsFunc(m.Deployments, func(ref margo.DeploymentRef) bool {
		d := known[strings.ToLower(ref.ID)]
		return d == nil || !holds(d, ref)
	})
}

// refusal marks an error about the content served as errRefused, and returns others unchanged.
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
