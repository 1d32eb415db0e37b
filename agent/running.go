package agent

import (
	"context"
	"fmt"
	"slices"
	"time"

	"golang.org/x/time/rate"

	"github.com/margolite/margolite/agent/margo"
	"github.com/margolite/margolite/runtime"
	"github.com/margolite/margolite/runtime/health"
	"github.com/margolite/margolite/store"
)

const (
	codeServiceExited        = "SERVICE_EXITED"         // it ended, and its restart policy leaves it so
	codeServiceRestarting    = "SERVICE_RESTARTING"     // it ends again and again
	codeServiceUnhealthy     = "SERVICE_UNHEALTHY"      // its health check fails
	codeServiceNotStarted    = "SERVICE_NOT_STARTED"    // it cannot be started, or what it waits for failed
	codeServiceNotResponding = "SERVICE_NOT_RESPONDING" // its shim does not answer
)

// Bounds of what is reported of a running deployment, however often it changes.
const (
	tellAtOnce = 3                // changes that are reported at once ...
	tellEvery  = 20 * time.Minute // ... and one more in each such time
)

// silentFor is the time between two looks at a shim that does not respond.
const silentFor = 10 * time.Second

// A component fails repeatedly at the third time within ten grace times of the one before.
const (
	relapses = 3
	relapse  = 10
)

type trouble struct {
	code    string
	service string
	detail  string
}

// troubleOf is what is wrong with a container at now, or nil. again is after how long to look
// again, since the answer may change without an event (a shim does not report that it responds
// again; a restarted service is well only after settle); 0: never.
func troubleOf(c *runtime.ObservedContainer, now time.Time, settle time.Duration) (t *trouble, again time.Duration) {
	service := c.Replica().String()
	switch c.State {
	case runtime.Unresponsive:
		return &trouble{codeServiceNotResponding, service, "its shim does not respond"}, silentFor
	case runtime.Created:
		if c.Undecided { // after a power cut this takes as long as the checks of others
			return nil, 0
		}
		detail := "it cannot be started"
		if c.Waiting != "" {
			detail = "it waits for " + c.Waiting
		}
		return &trouble{codeServiceNotStarted, service, detail}, 0
	case runtime.Stopped:
		code := codeServiceExited
		if c.Restarting {
			code = codeServiceRestarting
		}
		return &trouble{code, service, fmt.Sprintf("it ended with code %d", c.ExitCode)}, 0
	case runtime.Running:
		if c.Health.State == health.Unhealthy {
			return &trouble{codeServiceUnhealthy, service, withReason(fmt.Sprintf("its last health check ended with code %d", c.Health.Code), c.Health.Output)}, 0
		}
		if left := c.Started.Add(settle).Sub(now); c.Restarts > 0 && left > 0 {
			return &trouble{codeServiceRestarting, service, fmt.Sprintf("it was restarted %d times", c.Restarts)}, left
		}
	}
	return nil, 0
}

// rank orders troubles; the first says most about what is wrong.
func (t *trouble) rank() int {
	return slices.Index([]string{
		codeServiceNotResponding, codeServiceExited, codeServiceRestarting, codeServiceUnhealthy, codeServiceNotStarted,
	}, t.code)
}

// watched is how an installed component has been doing. It belongs to the worker and starts empty
// in each process: the record has what was reported.
type watched struct {
	verdict *trouble  // to be told; nil: that it is installed
	ill     time.Time // since when it has not been well; zero: it is well
	well    time.Time // since when there has been no trouble, while ill
	turns   int       // how often it fell ill since the last report
	falls   int       // how often it fell ill, each time soon after the last
	fell    time.Time // the last time
	told    *trouble  // the WFM; nil: that it is installed
}

// look notes and judges what is wrong at now. due: time may change the verdict; zero: never.
func (w *watched) look(now time.Time, t *trouble, set *Settings) (due time.Time) {
	w.verdict = w.told // until it has been ill or well for long enough
	switch {
	case t != nil:
		if w.ill.IsZero() || !w.well.IsZero() { // it falls ill
			if now.Sub(w.fell) > relapse*set.Reports.Grace {
				w.falls = 0
			}
			w.turns, w.falls, w.fell = w.turns+1, w.falls+1, now
		}
		if w.ill.IsZero() {
			w.ill = now
		}
		w.well = time.Time{}
		if due = w.ill.Add(set.Reports.Grace); now.Before(due) {
			return due
		}
	case !w.ill.IsZero():
		if w.well.IsZero() {
			w.well = now
		}
		if due = w.well.Add(w.recovery(set)); now.Before(due) {
			return due
		}
		w.ill, w.well = time.Time{}, time.Time{}
	}
	w.verdict = t
	return time.Time{}
}

// recovery is how long a component has to be well: longer if it fails repeatedly, so that a
// service which ends every half minute is not well in between.
func (w *watched) recovery(set *Settings) time.Duration {
	if w.falls >= relapses {
		return max(set.Settle, set.Reports.Grace)
	}
	return set.Settle
}

func (w *watched) text(t *trouble, since time.Time) string {
	text := fmt.Sprintf("service %s: %s; failing since %s", t.service, t.detail, since.UTC().Format(time.RFC3339))
	if w.turns > 1 {
		text += fmt.Sprintf(", and failed %d times since the last report", w.turns)
	}
	return text
}

// tellsAsMuchAs says that t is no news to a WFM that was told of told. Which service a former
// process reported is not known.
func (t *trouble) tellsAsMuchAs(told *trouble) bool {
	if t == nil || told == nil {
		return t == told
	}
	return t.code == told.code && (told.service == "" || t.service == told.service)
}

func newAllowance() *rate.Limiter { return rate.NewLimiter(rate.Every(tellEvery), tellAtOnce) }

// tellRunning reports to the WFM where a running deployment is doing otherwise than reported, and
// changes nothing else. Afterwards w.judgement says when to look again.
func (r *reconciler) tellRunning(ctx context.Context, w *worker, d *store.Deployment) error {
	set, now := r.settings.Load(), time.Now()
	w.judgement = time.Time{}
	again := func(t time.Time) {
		if !t.IsZero() && (w.judgement.IsZero() || t.Before(w.judgement)) {
			w.judgement = t
		}
	}
	news := false
	for _, c := range d.Components {
		seen := w.running[c.Name]
		if seen == nil {
			seen = &watched{}
			if c.Fault != nil {
				seen.told, seen.ill = &trouble{code: c.Fault.Code}, now.Add(-set.Reports.Grace)
			}
			if w.running == nil {
				w.running = map[string]*watched{}
			}
			w.running[c.Name] = seen
		}
		t, due, err := r.troubleIn(ctx, d, c.Name, now, set)
		if err != nil {
			return err
		}
		again(due)
		again(seen.look(now, t, set))
		news = news || !seen.verdict.tellsAsMuchAs(seen.told)
	}
	if !news {
		return nil
	}
	told := w.allowance.ReserveN(now, 1)
	if wait := told.DelayFrom(now); wait > 0 {
		told.CancelAt(now)
		again(now.Add(wait))
		return nil
	}
	err := r.ledger.step(d, "running", func(d *store.Deployment) {
		d.Fault = nil
		var first *trouble
		for i := range d.Components {
			c, seen := &d.Components[i], w.running[d.Components[i].Name]
			t := seen.verdict
			if t == nil {
				c.State, c.Fault = string(margo.Installed), nil
				continue
			}
			text := seen.text(t, r.now().Add(seen.ill.Sub(now)))
			c.State, c.Fault = string(margo.Failed), &store.Fault{Code: t.code, Source: c.Name, Message: shortened(text, maxFaultText)}
			if first == nil || t.rank() < first.rank() {
				first = t
				d.Fault = &store.Fault{Code: t.code, Source: r.nameOf(d), Message: shortened("component "+c.Name+": "+text, maxFaultText)}
			}
		}
	})
	if err != nil {
		told.CancelAt(now)
		return err
	}
	for _, seen := range w.running {
		seen.told, seen.turns = seen.verdict, 0
	}
	return nil
}

func (r *reconciler) troubleIn(ctx context.Context, d *store.Deployment, component string, now time.Time, set *Settings) (*trouble, time.Time, error) {
	staged := stagedOf(d.Desired.Staged, component)
	if !set.Reports.Running || staged == nil {
		return nil, time.Time{}, nil
	}
	project, err := r.runtime.ObserveProject(ctx, staged.Project)
	if err != nil {
		return nil, time.Time{}, fmt.Errorf("cannot observe component %s: %w", component, err)
	}
	var worst *trouble
	var due time.Time
	for i := range project.Containers {
		t, again := troubleOf(&project.Containers[i], r.now(), set.Settle)
		if t != nil && (worst == nil || t.rank() < worst.rank()) {
			worst = t
		}
		if again > 0 && (due.IsZero() || now.Add(again).Before(due)) {
			due = now.Add(again)
		}
	}
	return worst, due, nil
}
