package pace

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/margolite/margolite/agent/wfm"
	"github.com/margolite/margolite/policy"
)

const (
	longest = 24 * time.Hour
	// leastKept is the shortest silence that is kept across a restart, which may itself take no
	// longer. Retry-After cannot say less.
	leastKept = time.Second
	// unsaid is how long to leave alone a WFM that is unavailable and gives no time.
	unsaid = 5 * time.Second
	// mostStagger bounds the spread of callers that waited together.
	mostStagger = time.Minute
)

// Record keeps the silence across a restart.
type Record interface {
	// Load returns the last kept value; empty if there is none.
	Load() ([]byte, error)
	// Keep replaces the value, which matters for lasts; nil keeps nothing.
	Keep(value []byte, lasts time.Duration) error
}

// Hold is for how long nothing may be sent, and why.
type Hold struct {
	Silence  time.Duration // until the WFM may be called (ERR-04); 0: now
	Downtime time.Duration // until downtime ends (POL-01); 0: there is none
}

// Left returns for how long nothing may be sent; 0: sending is allowed.
func (h Hold) Left() time.Duration { return max(h.Silence, h.Downtime) }

// Reason returns Downtime or Silent, whichever lasts longer.
func (h Hold) Reason() Reason {
	if h.Downtime >= h.Silence {
		return Downtime
	}
	return Silent
}

// SilenceOptions configure a Silence. All are required but Record and Downtime.
type SilenceOptions struct {
	// WFM is who asks for silence, e.g. its URL. Requests of another one are dropped.
	WFM      string
	Downtime policy.Windows
	Now      func() Moment
	Random   Random
	Record   Record
	Logger   *slog.Logger
}

// Silence holds back all requests to the WFM, for the WFM's own requests and the operator's
// downtime. All callers of the WFM share one. It is safe for concurrent use.
//
// A request lasts by a clock that cannot be set. Across a restart only the wall clock can tell what
// is left: everything if it shows less than when the request arrived, nothing if it is past the
// end.
type Silence struct {
	now    func() Moment
	random Random
	record Record
	logger *slog.Logger

	mu       sync.Mutex
	wfm      string
	downtime policy.Windows
	until    time.Duration // by Moment.Up
	ends     time.Time     // of a silence from before the restart; zero: none
	kept     bool          // there is something in the record
	changed  chan struct{} // closed when the wait may have changed
}

// NewSilence returns a Silence with what is left of the one before the restart.
func NewSilence(o SilenceOptions) *Silence {
	s := &Silence{
		now: o.Now, random: o.Random, record: o.Record, logger: o.Logger,
		wfm: o.WFM, downtime: o.Downtime, changed: make(chan struct{}),
	}
	if s.record == nil {
		return s
	}
	value, err := s.record.Load()
	if err != nil {
		s.logger.Warn("cannot read how long the WFM asked for silence", "error", err)
		return s
	}
	s.kept = len(value) > 0
	k, ok := parseKept(value)
	if !ok || k.wfm != s.wfm {
		return s
	}
	m := s.now()
	from := k.from
	if m.Wall.After(from) {
		from = m.Wall
	}
	if left := k.until.Sub(from); left > 0 {
		s.until, s.ends = m.Up+left, k.until
	}
	return s
}

// Configure replaces the downtime and the WFM: requests of another WFM no longer matter.
func (s *Silence) Configure(wfm string, downtime policy.Windows) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if wfm != s.wfm {
		s.wfm, s.until, s.ends = wfm, 0, time.Time{}
	}
	s.downtime = downtime
	s.notify()
}

func (s *Silence) notify() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// Note records how a call of the WFM ended. A time before which the WFM must not be called, or an
// answer that it is unavailable, applies to all callers.
func (s *Silence) Note(err error) {
	after := wfm.Silence(err)
	if answered, ok := errors.AsType[*wfm.Error](err); ok && after <= 0 &&
		(answered.Status == http.StatusTooManyRequests || answered.Status == http.StatusServiceUnavailable) {
		after = unsaid
	}
	after = min(after, longest)

	s.mu.Lock()
	defer s.mu.Unlock()
	m := s.now()
	switch {
	case after > 0 && m.Up+after > s.until:
		s.until, s.ends = m.Up+after, time.Time{}
		s.notify()
		if after >= leastKept {
			s.keep(kept{m.Wall, m.Wall.Add(after), s.wfm}.bytes(), after)
		}
	case err == nil && s.kept && s.silence(m) == 0:
		s.keep(nil, 0) // otherwise setting the clock back would revive it
	}
}

// keep replaces the record. The caller holds mu.
func (s *Silence) keep(value []byte, lasts time.Duration) {
	if s.record == nil {
		return
	}
	if err := s.record.Keep(value, lasts); err != nil {
		s.logger.Warn("cannot save how long the WFM asked for silence", "error", err)
		return
	}
	s.kept = len(value) > 0
}

// Hold returns for how long nothing may be sent from now.
func (s *Silence) Hold() Hold {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.hold(s.now())
}

func (s *Silence) hold(m Moment) Hold {
	h := Hold{Silence: s.silence(m)}
	if len(s.downtime) > 0 && s.downtime.Contains(m.Wall) {
		h.Downtime = longest // it may never end
		if end, ends := s.downtime.End(m.Wall); ends {
			h.Downtime = end.Sub(m.Wall)
		}
	}
	return h
}

// silence returns how much of the WFM's request is left. The caller holds mu.
func (s *Silence) silence(m Moment) time.Duration {
	if !s.ends.IsZero() && !m.Wall.Before(s.ends) {
		s.until, s.ends = 0, time.Time{}
	}
	return max(s.until-m.Up, 0)
}

// Wait returns when sending is allowed: at once if nothing is in the way, otherwise out of step
// with other waiters. The error is ctx's.
func (s *Silence) Wait(ctx context.Context) error {
	began := s.now().Up
	waited, err := s.pass(ctx)
	if err != nil || !waited {
		return err
	}
	stagger := s.random.upTo(min((s.now().Up-began)/2, mostStagger))
	if err := Sleep(ctx, stagger, nil); err != nil {
		return err
	}
	_, err = s.pass(ctx) // another caller may have got an answer meanwhile
	return err
}

// pass waits until nothing is in the way, and reports whether anything was.
func (s *Silence) pass(ctx context.Context) (waited bool, err error) {
	for {
		s.mu.Lock()
		left, changed := s.hold(s.now()).Left(), s.changed
		s.mu.Unlock()
		if left == 0 {
			return waited, ctx.Err()
		}
		if err := Sleep(ctx, min(left, step), changed); err != nil {
			return true, err
		}
		waited = true
	}
}

// Sleep returns after d, or when changed is closed or ready. The error is ctx's.
func Sleep(ctx context.Context, d time.Duration, changed <-chan struct{}) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
	case <-changed:
	}
	return nil
}

// kept is the record of a silence: who asked for it, and its start and end by the wall clock.
type kept struct {
	from, until time.Time
	wfm         string
}

func (k kept) bytes() []byte {
	until := k.until.Add(time.Second - 1) // rounded up to whole seconds
	return fmt.Appendf(nil, "%d %d %s", k.from.Unix(), until.Unix(), k.wfm)
}

// parseKept reads a record and limits it to what a WFM can ask for.
func parseKept(value []byte) (k kept, ok bool) {
	from, rest, _ := strings.Cut(string(value), " ")
	until, name, ok := strings.Cut(rest, " ")
	first, firstErr := strconv.ParseInt(from, 10, 64)
	last, lastErr := strconv.ParseInt(until, 10, 64)
	const horizon = 1 << 40 // seconds; no sane clock writes more
	if !ok || firstErr != nil || lastErr != nil || first < -horizon || first > horizon || last < first || last > horizon {
		return kept{}, false
	}
	k = kept{time.Unix(first, 0), time.Unix(last, 0), name}
	if end := k.from.Add(longest + 2*time.Second); k.until.After(end) {
		k.until = end
	}
	return k, true
}
