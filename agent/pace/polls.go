package pace

import (
	"errors"
	"net/http"
	"time"

	"github.com/margolite/margolite/agent/margo"
	"github.com/margolite/margolite/agent/wfm"
	"github.com/margolite/margolite/policy"
)

const (
	shortest = time.Second
	// soon bounds the wait for an unhindered poll: the first of a process, and one after an
	// improvement. A person beside the device need not wait longer.
	soon = 10 * time.Second
	// step is how long a decision that depends on the hour of the day holds.
	step = time.Minute
	// firstFailure bounds the wait after the first failure; it doubles with each further one up to
	// mostFailure, or the interval if that is longer.
	firstFailure = time.Minute
	mostFailure  = 5 * time.Minute
	// spreading bounds the spread of calls that were held back together.
	spreading = 5 * time.Minute
	// rarely is how long a WFM is left alone that has ended the relationship.
	rarely = time.Hour
)

// Moment is the present by both clocks.
type Moment struct {
	Wall time.Time     // the system's clock, which may be wrong or jump
	Up   time.Duration // monotonic, since an arbitrary start
}

// Random returns a duration in [0, n); n is positive.
type Random func(n time.Duration) time.Duration

func (r Random) upTo(n time.Duration) time.Duration {
	if n <= 0 {
		return 0
	}
	return r(n)
}

// Rules are the operator's rules for calling the WFM.
type Rules struct {
	Interval time.Duration  `yaml:"interval" least:"1s" most:"744h"` // between two polls; at least a second (POL-04)
	Windows  policy.Windows `yaml:"windows" most:"64"`               // when polls are allowed; none: at any time (POL-03)
	Downtime policy.Windows `yaml:"downtime" most:"64"`              // when nothing is sent at all; none: never (POL-01)
}

// Reason is what the next poll waits for.
type Reason string

// What a poll waits for.
const (
	Interval Reason = "interval" // nothing but its time
	Backoff  Reason = "backoff"  // the last one failed
	Refused  Reason = "refused"  // the WFM rejects this device or its requests
	Retired  Reason = "retired"  // the WFM ended the relationship with this device
	Closed   Reason = "window"   // no window is open
	Silent   Reason = "silence"  // the WFM asked not to be called
	Downtime Reason = "downtime"
)

// Plan is what to do next.
type Plan struct {
	// Wait is how long to wait before asking for a plan again; 0: poll now.
	Wait time.Duration
	// Closed: no window is open. Only the device's reports may be sent; polls may not.
	Closed bool
	// Opens is when the next window opens; zero unless Closed.
	Opens time.Time
	// Next is the likely time of the next poll, and Reason what it waits for.
	Next   time.Time
	Reason Reason
}

// Polls plans the polls of one WFM. It belongs to one goroutine.
type Polls struct {
	rules  Rules
	random Random

	due      time.Duration // by Moment.Up
	reason   Reason        // why not earlier
	failures int           // in a row
	fresh    bool          // no successful poll yet: the device may be in step with others
	held     bool          // nothing could be sent when last looked
	closed   bool          // no window was open when last looked
}

// NewPolls returns a plan for a process that starts now. Without an accepted manifest the first
// poll is due at once: the device may be being commissioned.
func NewPolls(m Moment, r Rules, random Random, accepted bool) *Polls {
	p := &Polls{rules: r.checked(), random: random, due: m.Up, reason: Interval, fresh: true}
	if accepted {
		p.due += random.upTo(p.soon())
	}
	return p
}

func (r Rules) checked() Rules {
	r.Interval = max(r.Interval, shortest)
	return r
}

// Configure replaces the rules. The next poll comes soon, to show the operator their effect.
func (p *Polls) Configure(m Moment, r Rules) {
	p.rules, p.reason = r.checked(), Interval
	p.Wake(m)
}

// Wake reports a possible improvement, such as a network or certificate: the next poll comes soon,
// unless the WFM ended the relationship.
func (p *Polls) Wake(m Moment) {
	if p.reason == Retired {
		return
	}
	p.failures, p.reason = 0, Interval
	p.due = min(p.due, m.Up+p.random.upTo(p.soon()))
}

// Tell makes the next poll soon, to send a report, unless the last one failed or was refused.
func (p *Polls) Tell(m Moment) {
	if p.failures == 0 && p.reason == Interval {
		p.due = min(p.due, m.Up+p.random.upTo(p.soon()))
	}
}

func (p *Polls) soon() time.Duration { return min(p.rules.Interval, soon) }

// Done records the outcome of a poll; nil also if only the served content is unacceptable.
func (p *Polls) Done(m Moment, err error) {
	interval, delay := p.rules.Interval, p.interval()
	reason, after, fixed := judge(err)
	if p.reason = reason; reason == Interval {
		p.failures, p.fresh = 0, false
	} else {
		p.failures++
	}
	switch {
	case reason == Interval, fixed: // at the interval, or what the WFM named if that is longer
	case reason == Retired:
		delay = max(interval, rarely) + p.random.upTo(rarely)
	case reason == Refused:
		most := p.bound(interval)
		delay = max(delay, most/2+p.random.upTo(most/2))
	case after > 0:
		after += p.random.upTo(p.bound(max(after, p.first())))
	default:
		delay = max(p.random.upTo(p.bound(p.first())), shortest)
	}
	if after > 0 {
		// The later of the two, out of step with others that were given the same moment.
		delay = max(delay, after+p.random.upTo(min(after/10, spreading)))
	}
	p.due = m.Up + delay
}

// Skip records that a poll was due while no window was open, and there was nothing to send.
func (p *Polls) Skip(m Moment) {
	delay := p.interval()
	p.fresh = false
	if p.reason == Retired {
		delay = max(delay, rarely)
	}
	p.due = m.Up + delay
}

func (p *Polls) interval() time.Duration {
	interval := p.rules.Interval
	if p.fresh {
		return max(p.random.upTo(interval), shortest)
	}
	return interval - p.random.upTo(interval/10)
}

// first bounds the wait after the first failure: never above the interval, which a WFM must bear.
func (p *Polls) first() time.Duration { return min(p.rules.Interval, firstFailure) }

// bound doubles first with each failure after the first, up to the maximum.
func (p *Polls) bound(first time.Duration) time.Duration {
	most := max(p.rules.Interval, mostFailure)
	for range p.failures - 1 {
		if first >= most {
			break
		}
		first *= 2
	}
	return min(first, most)
}

// judge returns what an error means for the next poll: what it waits for, how long the WFM asked to
// wait, and whether that replaces the back-off. A problem's type takes precedence over its status
// (ERR-01, ERR-02).
func judge(err error) (reason Reason, after time.Duration, fixed bool) {
	if err == nil {
		return Interval, 0, false
	}
	retryable, after := wfm.Retry(err)
	var answered *wfm.Error
	if !errors.As(err, &answered) {
		return Backoff, after, false // no connection, or a problem of this device
	}
	problem := answered.Problem
	if problem.Retired() {
		return Retired, after, false
	}
	switch problem.Kind() {
	case margo.ProblemNotAuthorized, margo.ProblemCertificateNotTrusted, margo.ProblemSignatureVerificationFailed,
		margo.ProblemInvalidClient, margo.ProblemCannotGenerateResponse:
		return Refused, after, false
	}
	switch {
	case retryable && problem.Backoff != margo.BackoffNone:
		return Backoff, after, problem.Backoff == margo.BackoffFixed // ERR-06
	case retryable:
		return Interval, after, false
	}
	switch answered.Status {
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusNotAcceptable:
		return Refused, after, false
	}
	return Interval, after, false // this request is not repeated, polling goes on (ERR-05)
}

// Plan returns what to do at m, given what holds every request back.
func (p *Polls) Plan(m Moment, hold Hold) Plan {
	if left := hold.Left(); left > 0 {
		p.held = true
		return Plan{Wait: min(left, step), Next: m.Wall.Add(max(left, p.due-m.Up)), Reason: hold.Reason()}
	}
	if p.held {
		p.held = false
		if p.due <= m.Up {
			p.due = m.Up + p.random.upTo(min(p.rules.Interval, spreading))
		}
	}
	open := len(p.rules.Windows) == 0 || p.rules.Windows.Contains(m.Wall)
	if open && p.closed {
		p.opened(m)
	}
	p.closed = !open
	left := max(p.due-m.Up, 0)
	plan := Plan{Wait: left, Next: m.Wall.Add(left), Reason: p.reason}
	if len(p.rules.Windows)+len(p.rules.Downtime) > 0 {
		plan.Wait = min(left, step)
	}
	if open {
		return plan
	}
	plan.Closed, plan.Reason, plan.Next = true, Closed, time.Time{}
	if opens, ok := p.rules.Windows.Next(m.Wall); ok {
		plan.Opens, plan.Next = opens, opens
		plan.Wait = min(plan.Wait, max(opens.Sub(m.Wall), 0))
	}
	return plan
}

// opened plans the first poll in a window: early, since the next regular one may come after it, but
// out of step with other devices.
func (p *Polls) opened(m Moment) {
	spread := min(p.rules.Interval, spreading)
	if end, closes := p.rules.Windows.End(m.Wall); closes {
		spread = min(spread, end.Sub(m.Wall)/2)
	}
	if p.due > m.Up+spread && (p.reason == Interval || p.reason == Backoff) {
		p.due = m.Up + p.random.upTo(spread)
	}
}
