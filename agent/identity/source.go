package identity

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"
)

// Keeper keeps one opaque record across restarts.
type Keeper interface {
	// Keep replaces the record, durably.
	Keep(record []byte) error
	// Kept is the record, nil if there is none.
	Kept() ([]byte, error)
}

// BundleOptions configure a BundleSource.
type BundleOptions struct {
	// Fetch gets the bundle of a trust domain: Service.Bundle.
	Fetch  func(ctx context.Context, trustDomain string, known Fetched) (Fetched, error)
	Keeper Keeper
	// Interval is how often the bundle is fetched if it gives no interval; 0: daily (ID-23).
	Interval time.Duration
	// Silence is how long from now no request may be made (POL-01); nil: requests always may.
	Silence func() time.Duration
	// Accepted is called without a lock after another bundle came into force; may be nil.
	Accepted func()

	Now    func() time.Time
	Logger *slog.Logger

	Random func() float64 // for tests; nil: numbers in [0, 1)
}

// BundleSource gives an Identity the trust bundle that the identity service publishes, and keeps
// the last good one for times without a network (ID-24). It owns the Keeper's record and the
// schedule, and never withdraws a bundle, however old (ID-22). It is safe for concurrent use.
type BundleSource struct {
	options BundleOptions
	logger  *slog.Logger
	poked   chan struct{} // something may be due earlier

	mu       sync.Mutex
	identity *Identity
	loaded   bool // whether the Keeper was asked
	kept     keptRecord
	bundle   *TrustBundle  // of kept; nil: none
	unkept   bool          // the Keeper has an older one
	urgent   bool          // the schedule does not count
	failures int           // in a row
	logged   string        // the last problem that was logged, to log it once
	status   BundleStatus  // except for what follows from kept and bundle
	since    time.Time     // the last attempt, or the start, by a clock that cannot be set
	wait     time.Duration // time from then to the next attempt
	atLeast  time.Duration // the part of it that the service asked for
	spacing  time.Duration // the least part of it, whatever the reason for an attempt
}

type keptRecord struct {
	TrustDomain string    `json:"trustDomain"`
	Accepted    time.Time `json:"accepted"`
	Fetched
}

// BundleStatus describes a trust bundle for people.
type BundleStatus struct {
	TrustDomain string    // "": there is no bundle
	Anchors     int       // of the bundle
	Sequence    uint64    // of the bundle; 0: none given
	Accepted    time.Time // when it was first fetched
	Checked     time.Time // when the service last confirmed it since the start
	Next        time.Time // the approximate time of the next attempt
	Err         error     // why the last attempt failed
}

// NewBundleSource makes a source; Run does its work.
func NewBundleSource(o BundleOptions) *BundleSource {
	if o.Random == nil {
		o.Random = rand.Float64
	}
	return &BundleSource{options: o, logger: o.Logger, poked: make(chan struct{}, 1)}
}

// Follow makes an identity use this source's bundles, at once the last good one of its trust
// domain. Call it after each Load: replaced files may be of another trust domain.
func (s *BundleSource) Follow(i *Identity) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.identity = i
	s.load()
	if s.since.IsZero() { // all devices of a plant may have been switched on together
		s.since, s.wait = time.Now(), time.Duration(s.options.Random()*float64(firstRefresh))
	}
	if i.SetBundle(s.kept.TrustDomain, s.bundle) != nil { // there is none, or it is of another trust domain
		s.urgent, s.spacing = true, s.atLeast
	}
	s.poke()
}

// Refresh requests the bundle before it is due, because the WFM's certificate leads to none of
// its anchors. It does not wait, and does nothing within minutes of the last attempt or while the
// service has asked for silence.
func (s *BundleSource) Refresh() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.urgent = true
	s.poke()
}

// Status describes the present bundle and the last attempt.
func (s *BundleSource) Status() BundleStatus {
	s.mu.Lock()
	defer s.mu.Unlock()
	status := s.status
	if s.bundle != nil {
		status.TrustDomain, status.Accepted = s.kept.TrustDomain, s.kept.Accepted
		status.Anchors, status.Sequence = len(s.bundle.Anchors), s.bundle.Sequence
	}
	return status
}

// Run fetches the bundle whenever it is due, once Follow has named a trust domain, until ctx is
// done.
func (s *BundleSource) Run(ctx context.Context) error {
	for ctx.Err() == nil {
		var due <-chan time.Time
		if left, known := s.left(); known {
			due = time.After(left)
		}
		select {
		case <-ctx.Done():
		case <-s.poked:
		case <-due:
			s.refresh(ctx)
		}
	}
	return nil
}

func (s *BundleSource) left() (time.Duration, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.identity == nil {
		return 0, false
	}
	delay := s.wait
	if s.urgent {
		delay = min(delay, s.spacing)
	}
	left := max(delay-time.Since(s.since), 0)
	s.status.Next = s.options.Now().Add(left)
	return left, true
}

// Fetch makes one attempt now, outside the schedule. There has to be an identity.
func (s *BundleSource) Fetch(ctx context.Context) error {
	s.refresh(ctx)
	if err := ctx.Err(); err != nil {
		return err
	}
	return s.Status().Err
}

func (s *BundleSource) refresh(ctx context.Context) {
	if s.options.Silence != nil {
		if silence := s.options.Silence(); silence > 0 {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.since, s.wait, s.spacing = time.Now(), silence, silence
			return
		}
	}
	s.mu.Lock()
	known, domain := Fetched{}, s.identity.TrustDomain()
	if s.kept.TrustDomain == domain {
		known = s.kept.Fetched
	}
	s.urgent = false
	s.mu.Unlock()

	fetched, err := s.options.Fetch(ctx, domain, known)
	// What is unchanged is neither read nor written again.
	if err == nil && (len(fetched.Data) == 0 || !bytes.Equal(fetched.Data, known.Data)) {
		if err = s.accept(domain, fetched); err == nil && s.options.Accepted != nil {
			s.options.Accepted()
		}
	}

	s.mu.Lock()
	defer s.mu.Unlock()
	s.since = time.Now()
	if s.status.Err = err; err != nil {
		if ctx.Err() != nil {
			return
		}
		s.failures++
		wait, atLeast := NextRetry(s.failures, err)
		s.atLeast, s.spacing = atLeast, max(atLeast, min(wait, leastRefresh))
		s.wait = max(wait-time.Duration(s.options.Random()*float64(wait/2)), atLeast)
		s.logFailure(err)
		return
	}
	s.status.Checked = s.options.Now()
	if s.failures = 0; s.logged != "" {
		s.logger.Info("the trust bundle can be fetched again")
		s.logged = ""
	}
	// A fleet spreads over time, to the earlier side: nothing defers a refresh.
	wait := NextRefresh(s.bundle.RefreshHint, s.options.Interval)
	s.wait, s.atLeast, s.spacing = wait-time.Duration(s.options.Random()*float64(wait/10)), 0, leastRefresh
	s.kept.ETag, s.kept.URL = fetched.ETag, fetched.URL
	if s.unkept {
		s.keep()
	}
}

// accept puts a bundle to use, or keeps the one before (ID-19, ID-22).
func (s *BundleSource) accept(domain string, fetched Fetched) error {
	bundle, err := ParseTrustBundle(fetched.Data)
	if err != nil {
		return fmt.Errorf("cannot accept trust bundle: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.identity.SetBundle(domain, bundle); err != nil {
		return err
	}
	if s.bundle != nil && s.kept.TrustDomain == domain && bundle.Sequence < s.bundle.Sequence {
		s.logger.Warn("trust bundle accepted although its sequence number has decreased", "from", s.bundle.Sequence, "to", bundle.Sequence)
	}
	s.kept = keptRecord{domain, s.options.Now().UTC().Truncate(time.Second), fetched}
	s.bundle, s.unkept = bundle, true
	s.logger.Info("trust bundle accepted", "trustDomain", domain, "anchors", len(bundle.Anchors), "sequence", bundle.Sequence)
	return nil
}

// keep writes the record. If that fails, a later refresh writes it.
func (s *BundleSource) keep() {
	record, err := json.Marshal(s.kept)
	if err == nil {
		err = s.options.Keeper.Keep(record)
	}
	if err != nil {
		s.logger.Warn("cannot save the trust bundle for the next start", "error", err)
		return
	}
	s.unkept = false
}

func (s *BundleSource) load() {
	if s.loaded {
		return
	}
	record, err := s.options.Keeper.Kept()
	if err != nil {
		s.logger.Warn("cannot read the saved trust bundle", "error", err)
		return // and try again
	}
	s.loaded = true
	if record == nil || s.bundle != nil {
		return
	}
	var kept keptRecord
	var bundle *TrustBundle
	if err = json.Unmarshal(record, &kept); err == nil {
		bundle, err = ParseTrustBundle(kept.Data)
	}
	if err != nil {
		s.logger.Warn("cannot use the saved trust bundle", "error", err)
		return
	}
	s.kept, s.bundle = kept, bundle
}

// logFailure logs a problem once, until another one or success.
func (s *BundleSource) logFailure(err error) {
	if err.Error() == s.logged {
		return
	}
	s.logged = err.Error()
	about := []any{"error", err}
	var known *Error
	if errors.As(err, &known) {
		about = append(about, "mend", known.Mend())
	}
	s.logger.Warn("cannot refresh trust bundle", about...)
}

func (s *BundleSource) poke() {
	select {
	case s.poked <- struct{}{}:
	default: // there is one already
	}
}
