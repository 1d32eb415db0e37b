package agent

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/margolite/margolite/agent/control"
	"github.com/margolite/margolite/agent/margo"
	"github.com/margolite/margolite/agent/pace"
	"github.com/margolite/margolite/agent/wfm"
	"github.com/margolite/margolite/runtime/contain"
	"github.com/margolite/margolite/store"
)

const (
	// reportsAtOnce bounds the reports looked at or deleted at a time. Bodies are read one by
	// one.
	reportsAtOnce = 256
	// parkedMost bounds the time between attempts with reports that only a change at the WFM,
	// which it would not announce, can help. The outbox is also looked at this often.
	parkedMost = 6 * time.Hour
)

// reporter delivers the outbox to the WFM: at least once, in order for each deployment, for as
// long as it takes. While reports get through, every one is sent (ST-01, ST-02). Otherwise the
// store keeps the newest of each deployment and what that does not tell: that it was gone
// meanwhile, and its last failures.
type reporter struct {
	*base
	silence  *pace.Silence
	loop     *loop
	pending  chan struct{} // there may be something to deliver
	contact  chan struct{} // the WFM answers
	since    atomic.Int64  // since when the outbox has not been empty, by uptime; 0: it is, as far as known
	isDeaf   atomic.Bool   // the last attempt did not reach the WFM
	retry    retry         // for attempts that got no reports through
	held     map[string]*heldReports
	finished []uint64 // to be deleted
	status   func(d *store.Deployment) margo.Status
	again    atomic.Bool // the current state is to be reported again
	untold   []string    // deployments still to be reported so
	logged   string      // the last problem that was logged, to log it once
	full     bool        // dropping reports was logged

	mu   sync.Mutex
	told map[string]control.Reported // what the WFM took last of each deployment, since the start
}

// heldReports are those of a deployment whose oldest one the WFM did not take.
type heldReports struct {
	retry
	until  time.Time
	newest uint64 // of those looked at
}

func newReporter(b *base, quiet *pace.Silence, l *loop) *reporter {
	return &reporter{
		base: b, silence: quiet, loop: l, pending: make(chan struct{}, 1), contact: make(chan struct{}, 1),
		held: map[string]*heldReports{}, told: map[string]control.Reported{},
	}
}

func (r *reporter) poke() {
	r.since.CompareAndSwap(0, max(int64(r.moment().Up), 1))
	poke(r.pending)
}

func (r *reporter) tellAgain() {
	r.again.Store(true)
	poke(r.pending)
}

func (r *reporter) reached() { poke(r.contact) }

func (r *reporter) deaf() bool { return r.isDeaf.Load() || r.silence.Hold().Left() > 0 }

func (r *reporter) run(ctx context.Context) error {
	r.since.Store(max(int64(r.moment().Up), 1))
	for {
		if r.silence.Wait(ctx) != nil {
			return nil
		}
		select {
		case <-r.contact: // from before this round
		default:
		}
		f := unheard
		r.loop.works()
		err := contain.Call(func() (err error) {
			f, err = r.round(ctx)
			return err
		})
		r.loop.waits()
		r.mistakes.note("delivery of reports", err)
		if ctx.Err() != nil {
			return nil
		}
		if f != silenced && r.silence.Hold().Downtime == 0 { // in downtime errors are of no interest (POL-02)
			r.note(err)
		}
		if !r.rest(ctx, f) {
			return nil
		}
	}
}

func (r *reporter) rest(ctx context.Context, f fate) bool {
	switch f {
	case silenced:
		return true // run waits for it
	case unheard, refused, retired:
		return pace.Sleep(ctx, r.retry.after(f), r.contact) == nil
	}
	r.retry = retry{}
	next := r.now().Add(parkedMost)
	for _, h := range r.held {
		if h.until.Before(next) {
			next = h.until
		}
	}
	return pace.Sleep(ctx, next.Sub(r.now()), r.pending) == nil
}

// round posts what can be posted now, and deletes finished reports in one transaction for each
// batch read. It returns taken, even if some deployments' reports are held, or why none got
// through.
func (r *reporter) round(ctx context.Context) (fate, error) {
	waits := map[string]bool{} // deployments whose reports are held; true: the rest waits for the next round, too
	var problem, refusal error
	for after := uint64(0); ; {
		reports, err := r.store.Reports(after, reportsAtOnce)
		if err != nil && !errors.Is(err, store.ErrCorrupt) {
			return unheard, fmt.Errorf("cannot read the outbox: %w", err)
		}
		problem = errors.Join(problem, err) // an unreadable report does not hold up the others
		if len(reports) == 0 {
			break
		}
		after = reports[len(reports)-1].Sequence
		for _, report := range reports {
			if slices.Contains(r.finished, report.Sequence) || r.holds(report, waits) {
				continue
			}
			if r.silence.Hold().Left() > 0 {
				return silenced, r.acknowledge()
			}
			r.loop.works()
			f, err := r.post(ctx, report)
			if err != nil && ctx.Err() != nil {
				return f, errors.Join(err, r.acknowledge())
			}
			switch f {
			case unheard, refused, retired:
				r.isDeaf.Store(true)
				return f, errors.Join(err, r.acknowledge())
			case parked, later:
				r.hold(report, f)
				waits[report.Deployment] = true
				refusal = err // the latest stands for all of them
			case lost:
				continue
			default:
				r.finished = append(r.finished, report.Sequence)
				delete(r.held, report.Deployment)
			}
			r.isDeaf.Store(false)
		}
		if err := r.acknowledge(); err != nil {
			return unheard, err // only this is retried
		}
	}
	maps.DeleteFunc(r.held, func(id string, _ *heldReports) bool {
		_, seen := waits[id]
		return !seen
	})
	if problem == nil && len(r.held) == 0 {
		r.since.Store(0)
	}
	f, err := r.repeat(ctx)
	return f, errors.Join(problem, refusal, err)
}

// repeat posts the current state of deployments that are to be reported again, straight from
// their records: nothing is written, and a restart forgets the rest. A deployment with waiting
// reports needs none: the newest says the same.
func (r *reporter) repeat(ctx context.Context) (_ fate, problem error) {
	if r.again.Swap(false) {
		deployments, _ := r.store.Deployments() // its worker reports an unreadable record
		r.untold = idsOf(deployments)
	}
	for ; len(r.untold) > 0; r.untold = r.untold[1:] {
		d, err := r.store.Deployment(r.untold[0])
		if err != nil {
			continue // it is gone
		}
		waiting, err := r.store.WaitingReports() // after the record, whose next change is reported there
		if err != nil {
			return taken, err
		}
		if waiting[d.ID] > 0 {
			continue
		}
		if r.silence.Hold().Left() > 0 {
			return silenced, nil
		}
		status := r.status(&d)
		body, err := status.Marshal()
		if err != nil {
			problem = errors.Join(problem, fmt.Errorf("cannot build status report of deployment %s: %w", d.ID, err))
			continue
		}
		r.loop.works()
		f, err := r.send(ctx, d.ID, body)
		if f == unheard || f == refused || f == retired {
			return f, errors.Join(problem, err)
		}
	}
	return taken, problem
}

func (r *reporter) holds(report store.Report, waits map[string]bool) bool {
	h, blocked := r.held[report.Deployment], waits[report.Deployment]
	if h == nil || !blocked && !h.until.After(r.now()) {
		return false
	}
	if h.fate == parked && !blocked && (report.Sequence > h.newest || r.isGone(report.Deployment)) {
		h.until, blocked = time.Time{}, true // its state changed: it is retried with the next round
	}
	h.newest, waits[report.Deployment] = max(h.newest, report.Sequence), blocked // reports behind it are no news
	return true
}

func (r *reporter) hold(report store.Report, f fate) {
	h := r.held[report.Deployment]
	if h == nil {
		h = &heldReports{}
		r.held[report.Deployment] = h
	}
	h.until, h.newest = r.now().Add(h.after(f)), max(h.newest, report.Sequence)
}

// acknowledge deletes finished reports. They are remembered until that works, so that a full disk
// does not make the agent send them again.
func (r *reporter) acknowledge() error {
	if len(r.finished) == 0 {
		return nil
	}
	if err := r.store.AckReports(r.finished...); err != nil {
		return fmt.Errorf("cannot clear the outbox: %w", err)
	}
	r.finished = r.finished[:0]
	return nil
}

func (r *reporter) post(ctx context.Context, report store.Report) (fate, error) {
	body, err := r.store.ReportBody(report.Sequence)
	switch {
	case errors.Is(err, store.ErrNotFound): // superseded just now
		return lost, nil
	case err != nil:
		return unheard, fmt.Errorf("cannot read the outbox: %w", err)
	}
	return r.send(ctx, report.Deployment, body)
}

func (r *reporter) send(ctx context.Context, deployment string, body []byte) (fate, error) {
	err := r.wfm.PostStatus(ctx, deployment, body)
	r.silence.Note(err)
	if err == nil {
		r.delivered(deployment, body)
		return taken, nil
	}
	gone := r.isGone(deployment)
	f := fateOf(err, gone)
	switch {
	case f != hopeless:
		return f, err
	case gone:
		r.logger.Warn("the WFM rejected a report about a removed deployment; it is dropped", "deployment", deployment, "error", err)
	default:
		r.logger.Error("the WFM rejected a status report; it is dropped", "deployment", deployment, "error", err)
	}
	return f, nil
}

func (r *reporter) isGone(deployment string) bool {
	_, err := r.store.Deployment(deployment)
	return errors.Is(err, store.ErrNotFound)
}

// fate is what becomes of a report, and of those behind it.
type fate int

const (
	taken    fate = iota // the WFM has it
	lost                 // it was dropped meanwhile
	hopeless             // the WFM will never take it: it is dropped
	parked               // the WFM may take it after some change; its deployment waits
	later                // the WFM may take it later; its deployment waits
	unheard              // no reports get through now
	silenced             // the WFM must not be called now
	refused              // no reports are taken until an operator acts
	retired              // the same, and the WFM ended the relationship
)

// retry spaces consecutive attempts that end in the same fate.
type retry struct {
	fate fate
	backoff
}

func (r *retry) after(f fate) time.Duration {
	if r.fate != f {
		*r = retry{f, backoff{first: time.Second, most: 5 * time.Minute}}
		switch f {
		case parked:
			r.first, r.most = 10*time.Minute, parkedMost
		case refused:
			r.first = time.Minute // an immediate retry is useless (ERR-05)
		case retired:
			r.first, r.most = 2*time.Hour, 2*time.Hour // as rarely as polls
		}
	}
	return r.fail()
}

// fateOf decides by the problem's type, else by the status (ERR-01, ERR-02, ERR-05). gone: the
// device no longer has the deployment.
func fateOf(err error, gone bool) fate {
	var answered *wfm.Error
	if !errors.As(err, &answered) {
		return unheard
	}
	if answered.Problem.Retired() {
		return retired
	}
	unknown := parked
	if gone {
		unknown = hopeless
	}
	switch answered.Problem.Kind() {
	case margo.ProblemInvalidRequest, margo.ProblemSemanticError:
		return hopeless
	case margo.ProblemNotAuthorized, margo.ProblemInvalidClient, margo.ProblemCannotGenerateResponse,
		margo.ProblemInvalidCertificateFormat, margo.ProblemCertificateNotTrusted,
		margo.ProblemInvalidDigestHeader, margo.ProblemSignatureVerificationFailed: // the device's fault, not the report's
		return refused
	case margo.ProblemDeploymentNotFound, margo.ProblemDeviceNotFound, margo.ProblemGatewayNotFound:
		return unknown
	}
	status := answered.Status
	if answered.Page && slices.Contains([]int{http.StatusBadRequest, http.StatusNotFound, http.StatusGone, http.StatusUnprocessableEntity}, status) {
		return later // it may come from a proxy that rejects the certificate, or knows no such path
	}
	switch status {
	case http.StatusBadRequest, http.StatusRequestEntityTooLarge, http.StatusUnprocessableEntity:
		return hopeless
	case http.StatusRequestTimeout, http.StatusTooEarly, http.StatusTooManyRequests,
		http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return unheard
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusMethodNotAllowed, http.StatusNotAcceptable,
		http.StatusProxyAuthRequired, http.StatusUnsupportedMediaType, http.StatusNotImplemented:
		return refused
	}
	switch {
	case status < 400: // a redirect, which is not followed
		return refused
	case status >= 500 && answered.Problem.Retryable:
		return later
	}
	return unknown
}

// delivered notes what the WFM took, unless the deployment is gone.
func (r *reporter) delivered(deployment string, body []byte) {
	e := control.Event{Kind: control.ReportDelivered, Deployment: deployment}
	if s, err := margo.ParseStatus(body); err == nil {
		e.State, e.Version = string(s.State), s.AdoptedVersion
		gone, at := r.isGone(deployment), r.now().UTC()
		r.mu.Lock()
		r.told[deployment] = control.Reported{State: e.State, At: at}
		if gone {
			delete(r.told, deployment)
		}
		r.mu.Unlock()
	}
	r.hub.send(e)
}

func (r *reporter) reported(deployment string, waiting int) *control.Reported {
	r.mu.Lock()
	defer r.mu.Unlock()
	told := r.told[deployment]
	told.Waiting = waiting
	return &told
}

func (r *reporter) note(err error) {
	problem := ""
	if err != nil {
		problem = err.Error()
	}
	if problem != "" && problem != r.logged {
		r.logger.Warn("cannot deliver status reports; they are kept", "error", err)
	}
	r.logged = problem
	if !r.full && r.store.DroppedReports() > 0 {
		r.full = true
		r.logger.Warn("too many pending status reports; the oldest of little importance are dropped")
	}
}
