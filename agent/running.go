package agent

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/margolite/margolite/agent/margo"
	"github.com/margolite/margolite/runtime"
	"github.com/margolite/margolite/runtime/health"
	"github.com/margolite/margolite/store"
)

// Codes of what is wrong with a service of a component that was installed.
const (
	codeServiceExited        = "SERVICE_EXITED"         // it ended, and its restart policy leaves it so
	codeServiceRestarting    = "SERVICE_RESTARTING"     // it ends again and again
	codeServiceUnhealthy     = "SERVICE_UNHEALTHY"      // its health check fails
	codeServiceNotStarted    = "SERVICE_NOT_STARTED"    // it cannot be started, or what it waits for failed
	codeServiceNotResponding = "SERVICE_NOT_RESPONDING" // its shim does not answer
)

// What is told of a deployment that runs is bounded, however often it changes.
const (
	tellAtOnce = 3                // changes that are told as they come ...
	tellEvery  = 20 * time.Minute // ... and one more in each such time
)

// silentFor is the time between two looks at a shim that does not respond.
const silentFor = 10 * time.Second

// A component falls ill again and again when it does so for the third time with no
// more than ten grace times in between.
const (
	relapses = 3
	relapse  = 10
)

type trouble struct {
	code    string
	service string
	detail  string
}

// troubleOf is what is wrong with a container at now, if anything is. again is when
// that may change without any news: a shim that responds again says nothing of it, and a
// service that was restarted is not well before it has run for settle.
func troubleOf(c *runtime.ObservedContainer, now time.Time, settle time.Duration) (t *trouble, again time.Time) {
	service := c.Replica().String()
	switch c.State {
	case runtime.Unresponsive:
		return &trouble{codeServiceNotResponding, service, "its shim does not respond"}, now.Add(silentFor)
	case runtime.Created:
		if c.Undecided { // after a power cut this takes as long as the checks of others
			return nil, time.Time{}
		}
		detail := "it cannot be started"
		if c.Waiting != "" {
			detail = "it waits for " + c.Waiting
		}
		return &trouble{codeServiceNotStarted, service, detail}, time.Time{}
	case runtime.Stopped:
		code := codeServiceExited
		if c.Restarting {
			code = codeServiceRestarting
		}
		return &trouble{code, service, fmt.Sprintf("it ended with code %d", c.ExitCode)}, time.Time{}
	case runtime.Running:
		if c.Health.State == health.Unhealthy {
			return &trouble{codeServiceUnhealthy, service, lastProbe(c.Health)}, time.Time{}
		}
		if well := c.Started.Add(settle); c.Restarts > 0 && now.Before(well) {
			return &trouble{codeServiceRestarting, service, fmt.Sprintf("it was restarted %d times", c.Restarts)}, well
		}
	}
	return nil, time.Time{}
}

func lastProbe(s health.Status) string {
	return withReason(fmt.Sprintf("its last health check ended with code %d", s.Code), s.Output)
}

// rank orders troubles: the first says most about what is wrong.
func (t *trouble) rank() int {
	return slices.Index([]string{
		codeServiceNotResponding, codeServiceExited, codeServiceRestarting, codeServiceUnhealthy, codeServiceNotStarted,
	}, t.code)
}

// watched is how a component that was installed has been doing. It is the worker's
// alone, and begins anew with each process: the record has what was told.
type watched struct {
	verdict *trouble  // to be told; nil: that it is installed
	ill     time.Time // since when it has not been well; zero: it is well
	well    time.Time // since when there has been no trouble, while ill
	turns   int       // how often it fell ill since it was told of
	falls   int       // how often it fell ill, each time soon after the last
	fell    time.Time // the last time
	told    *trouble  // the WFM; nil: that it is installed
}

// look notes what is wrong at now, and judges. It returns when the verdict is due that
// can only change with time; zero: at no time.
func (w *watched) look(now time.Time, t *trouble, rules runningRules) (due time.Time) {
	w.verdict = w.told // as long as it has been neither ill nor well for long enough
	switch {
	case t != nil:
		if w.ill.IsZero() {
			w.ill = now
			w.fall(now, rules)
		} else if !w.well.IsZero() {
			w.well = time.Time{}
			w.fall(now, rules)
		}
		if due = w.ill.Add(rules.grace); now.Before(due) {
			return due
		}
	case !w.ill.IsZero():
		if w.well.IsZero() {
			w.well = now
		}
		if due = w.well.Add(w.recovery(rules)); now.Before(due) {
			return due
		}
		w.ill, w.well = time.Time{}, time.Time{}
	}
	w.verdict = t
	return time.Time{}
}

func (w *watched) fall(now time.Time, rules runningRules) {
	if now.Sub(w.fell) > relapse*rules.grace {
		w.falls = 0
	}
	w.turns, w.falls, w.fell = w.turns+1, w.falls+1, now
}

// recovery is for how long it has to be well: longer where it falls ill again and
// again, so that a service which ends every half minute is not well in between.
func (w *watched) recovery(rules runningRules) time.Duration {
	if w.falls >= relapses {
		return max(rules.settle, rules.grace)
	}
	return rules.settle
}

func (w *watched) text(t *trouble, since time.Time) string {
	text := fmt.Sprintf("service %s: %s; failing since %s", t.service, t.detail, since.UTC().Format(time.RFC3339))
	if w.turns > 1 {
		text += fmt.Sprintf(", and failed %d times since the last report", w.turns)
	}
	return text
}

// tellsAsMuchAs says whether the WFM, which was told of told, hears nothing new with t.
// Which service a former process told of is not known.
func (t *trouble) tellsAsMuchAs(told *trouble) bool {
	if t == nil || told == nil {
		return t == told
	}
	return t.code == told.code && (told.service == "" || t.service == told.service)
}

type runningRules struct {
	tell   bool          // anything
	grace  time.Duration // for how long one has to be in trouble
	settle time.Duration // for how long one has to be well
}

func (s *Settings) running() runningRules {
	return runningRules{s.Reports.Running, s.Reports.Grace, s.Settle}
}

// allowance bounds how often something is told: a token bucket. The zero value is full.
type allowance struct {
	spent int       // tokens that are not back yet
	since time.Time // when the first of them was spent, or the last one came back
}

// ready is when there is a token; not after now: there is one.
func (a *allowance) ready(now time.Time) time.Time {
	for a.spent > 0 && !now.Before(a.since.Add(tellEvery)) {
		a.spent, a.since = a.spent-1, a.since.Add(tellEvery)
	}
	if a.spent < tellAtOnce {
		return now
	}
	return a.since.Add(tellEvery)
}

func (a *allowance) spend(now time.Time) {
	if a.spent == 0 {
		a.since = now
	}
	a.spent++
}

// tellRunning tells the WFM where what runs of a deployment has been doing otherwise than
// it was told, and changes nothing else. Afterwards w.judgement says when to look
// again.
func (r *reconciler) tellRunning(ctx context.Context, w *worker, d *store.Deployment) error {
	rules, now := r.settings.Load().running(), time.Now()
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
				seen.told, seen.ill = &trouble{code: c.Fault.Code}, now.Add(-rules.grace)
			}
			if w.running == nil {
				w.running = map[string]*watched{}
			}
			w.running[c.Name] = seen
		}
		t, due, err := r.troubleIn(ctx, d, c.Name, now, rules)
		if err != nil {
			return err
		}
		again(due)
		again(seen.look(now, t, rules))
		news = news || !seen.verdict.tellsAsMuchAs(seen.told)
	}
	if !news {
		return nil
	}
	if ready := w.allowance.ready(now); now.Before(ready) {
		again(ready)
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
		return err
	}
	w.allowance.spend(now)
	for _, seen := range w.running {
		seen.told, seen.turns = seen.verdict, 0
	}
	return nil
}

func (r *reconciler) troubleIn(ctx context.Context, d *store.Deployment, component string, now time.Time, rules runningRules) (*trouble, time.Time, error) {
	staged := stagedOf(d.Desired.Staged, component)
	if !rules.tell || staged == nil {
		return nil, time.Time{}, nil
	}
	project, err := r.runtime.ObserveProject(ctx, staged.Project)
	if err != nil {
		return nil, time.Time{}, fmt.Errorf("cannot observe component %s: %w", component, err)
	}
	var worst *trouble
	var due time.Time
	for i := range project.Containers {
		t, again := troubleOf(&project.Containers[i], r.now(), rules.settle)
		if t != nil && (worst == nil || t.rank() < worst.rank()) {
			worst = t
		}
		if left := now.Add(again.Sub(r.now())); !again.IsZero() && (due.IsZero() || left.Before(due)) {
			due = left
		}
	}
	return worst, due, nil
}
