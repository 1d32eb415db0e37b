package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"github.com/margolite/margolite/agent/control"
	"github.com/margolite/margolite/agent/margo"
	"github.com/margolite/margolite/agent/pace"
	"github.com/margolite/margolite/agent/wfm"
	"github.com/margolite/margolite/store"
)

const (
	// reportsAtOnce bounds how much of the outbox is read at a time.
	reportsAtOnce = 1024
	// reportFirst and reportMost bound the time between two attempts to deliver.
	reportFirst = time.Second
	reportMost  = 5 * time.Minute
)

// reporter delivers the outbox to the WFM: at least once, in order for each
// deployment, for as long as it takes.
type reporter struct {
	wfm     WFM
	silence *pace.Silence
	store   *store.Store
	hub     *hub
	logger  *slog.Logger
	pending chan struct{} // there may be something to deliver
	logged  string        // the last problem that was logged, to log it once
}

func newReporter(o Options, s *pace.Silence, h *hub) *reporter {
	return &reporter{wfm: o.WFM, silence: s, store: o.Store, hub: h, logger: o.Logger, pending: make(chan struct{}, 1)}
}

// poke says that there is something in the outbox, or that the WFM answers.
func (r *reporter) poke() { poke(r.pending) }

// run delivers until ctx is done.
func (r *reporter) run(ctx context.Context) error {
	retry := backoff{first: reportFirst, most: reportMost}
	for {
		if r.silence.Wait(ctx) != nil {
			return nil
		}
		read, err := r.deliver(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if errors.Is(err, errHeld) || r.silence.Hold().Downtime > 0 {
			continue // in downtime errors are of no interest (POL-02)
		}
		r.note(err)
		if err == nil {
			retry.reset()
			if read > 0 {
				continue // there may be more than is read at a time
			}
			select {
			case <-ctx.Done():
				return nil
			case <-r.pending:
			}
			continue
		}
		// A poll that succeeds wakes it early.
		if !wait(ctx, retry.fail(), r.pending, nil) {
			return nil
		}
	}
}

// deliver posts what is in the outbox, as far as it is read at a time, and
// returns how many reports that were. Without an error all of them are done
// with. A report that the WFM will never take is dropped with an error in the
// log, and one that it cannot take now holds up only those of its deployment.
func (r *reporter) deliver(ctx context.Context) (read int, err error) {
	reports, err := r.store.NextReports(reportsAtOnce)
	if err != nil && len(reports) == 0 {
		return 0, fmt.Errorf("cannot read the outbox: %w", err)
	}
	err = nil // what cannot be read is no reason to keep the others
	var done []uint64
	blocked := map[string]bool{} // deployments whose oldest report has to wait
	for _, report := range reports {
		if blocked[report.Deployment] {
			continue
		}
		if r.silence.Hold().Left() > 0 {
			err = errHeld // somebody else was answered meanwhile
			break
		}
		postErr := r.wfm.PostStatus(ctx, report.Deployment, report.Body)
		r.silence.Note(postErr)
		if postErr == nil {
			r.delivered(report)
		}
		if postErr == nil || r.hopeless(report, postErr) {
			done = append(done, report.Sequence)
			continue
		}
		err = postErr
		if concernsAll(postErr) {
			break
		}
		blocked[report.Deployment] = true
	}
	if ackErr := r.store.AckReports(done...); ackErr != nil {
		return 0, errors.Join(err, fmt.Errorf("cannot clear the outbox: %w", ackErr)) // they are sent again
	}
	return len(reports), err
}

// hopeless says, and logs, that a report will never be taken.
func (r *reporter) hopeless(report store.Report, err error) bool {
	var answered *wfm.Error
	if !errors.As(err, &answered) {
		return false
	}
	switch answered.Status {
	case http.StatusBadRequest, http.StatusUnprocessableEntity:
		r.logger.Error("the WFM refuses a status report; it is dropped", "deployment", report.Deployment, "error", err)
		return true
	case http.StatusNotFound, http.StatusConflict:
		if _, err := r.store.Deployment(report.Deployment); errors.Is(err, store.ErrNotFound) {
			r.logger.Warn("the WFM does not know a deployment that is gone; its report is dropped", "deployment", report.Deployment)
			return true
		}
	}
	return false
}

// concernsAll says that an error tells nothing about the one report: nobody's
// gets through now.
func concernsAll(err error) bool {
	var answered *wfm.Error
	if !errors.As(err, &answered) || answered.RetryAfter > 0 {
		return true
	}
	switch answered.Status {
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusTooManyRequests,
		http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return true
	}
	return false
}

// delivered tells listeners of a report that reached the WFM.
func (r *reporter) delivered(report store.Report) {
	e := control.Event{Kind: control.ReportDelivered, Deployment: report.Deployment}
	if s, err := margo.ParseStatus(report.Body); err == nil {
		e.State, e.Version = string(s.State), s.AdoptedVersion
	}
	r.hub.send(e)
}

// note logs a problem once, not with each attempt.
func (r *reporter) note(err error) {
	problem := ""
	if err != nil {
		problem = err.Error()
	}
	if problem != "" && problem != r.logged {
		r.logger.Warn("cannot deliver status reports; they are kept", "error", err)
	}
	r.logged = problem
}
