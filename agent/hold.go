package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/margolite/margolite/agent/control"
	"github.com/margolite/margolite/agent/margo"
	"github.com/margolite/margolite/agent/pace"
	"github.com/margolite/margolite/policy"
	"github.com/margolite/margolite/store"
)

const locksSetting = "locks"

// Bounds of people's locks. Holders leave some to others, unprivileged users some to root.
const (
	maxHolds       = 64 // in all
	maxOwnHolds    = 16 // of one user
	maxOthersHolds = 48 // of all users without privileges
	maxMoreHolds   = 32 // the same, for a user who already holds some
)

// unreadable stands for the holder of locks whose record cannot be read.
const unreadable = "unknown"

// hold is an update lock taken over the socket. Each process computes its end again.
type hold struct {
	Holder     string    `json:"holder"`
	Reason     string    `json:"reason,omitempty"`
	Deployment string    `json:"deployment,omitempty"` // empty: it is about all
	Since      time.Time `json:"since"`
	For        int64     `json:"for,omitempty"` // seconds; 0: until it is released
	// Unsure: the clock was known to be wrong at Since.
	Unsure bool   `json:"unsure,omitempty"`
	UID    uint32 `json:"uid"` // whose it is
	By     string `json:"by"`  // the same for people

	end time.Duration // by pace.Moment.Up; means nothing where For is 0
}

type lockRecord struct {
	Holds []hold `json:"holds"`
}

func (h *hold) same(other hold) bool {
	return h.Holder == other.Holder && margo.SameID(h.Deployment, other.Deployment)
}

func (h *hold) length() time.Duration { return time.Duration(h.For) * time.Second }

// resume computes the end of a lock taken before this process. Only the system's clock tells what
// passed meanwhile; if it is or was wrong, the whole time counts again.
func (h *hold) resume(m pace.Moment, wrong bool) {
	left := h.length()
	if passed := m.Wall.Sub(h.Since); !wrong && !h.Unsure && passed > 0 {
		left = max(left-passed, 0)
	}
	h.end = m.Up + left
}

func (h *hold) over(m pace.Moment) bool { return h.For > 0 && m.Up >= h.end }

// until is the end by the clock as it shows now; zero: there is none.
func (h *hold) until(m pace.Moment) time.Time {
	if h.For == 0 {
		return time.Time{}
	}
	end := m.Wall.Add(h.end - m.Up).Round(0).UTC()
	// Return the same end each time unless the clock was set.
	if meant := h.Since.Add(h.length()); end.Sub(meant).Abs() < time.Second {
		return meant.UTC()
	}
	return end
}

func (h *hold) text(m pace.Moment) string {
	text := h.Holder
	if until := h.until(m); !until.IsZero() {
		text += ", until " + until.Format(time.RFC3339)
	}
	return withReason(text, h.Reason)
}

func (h *hold) lock(m pace.Moment) control.Lock {
	return control.Lock{
		Holder: h.Holder, Reason: h.Reason, Deployment: h.Deployment, By: h.By, Since: h.Since.UTC(), Until: h.until(m).UTC(),
	}
}

// locks are the update locks of this device: those of people, in the store, and the lock files of
// workloads. Ends are timed by a clock that cannot be set. An unreadable record counts as a lock
// of all deployments.
type locks struct {
	*base
	files *lockFiles
	wrong func() bool // the clock is not to be trusted
	look  func()      // makes waiting changes look again; called with mu held

	mu     sync.Mutex
	holds  []hold
	broken error         // the record cannot be read
	unsaid []store.Entry // of ended locks, not written yet; the error was logged
}

func newLocks(b *base, o Options, look func()) *locks {
	l := &locks{base: b, files: newLockFiles(filepath.Join(o.RunDir, "locks"), b.logger), wrong: o.ClockWrong, look: look}
	record, set, err := b.store.Setting(locksSetting)
	if err == nil && set {
		var held lockRecord
		in := json.NewDecoder(bytes.NewReader(record))
		in.DisallowUnknownFields() // written by another version
		err = in.Decode(&held)
		l.holds = held.Holds
	}
	if err != nil {
		l.broken = fmt.Errorf("cannot read the update locks: %w", err)
		l.logger.Error("cannot read the update locks; all changes wait until margolite release --all drops them", "error", err)
	}
	m := l.moment()
	for i := range l.holds {
		l.holds[i].resume(m, l.wrong())
	}
	return l
}

func (l *locks) prepare() {
	deployments, _ := l.store.Deployments() // its worker reports an unreadable record
	l.files.prepare(idsOf(deployments))
}

// removeOrphans removes the lock directories of deployments known to be gone.
func (l *locks) removeOrphans(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, observeTimeout)
	defer cancel()
	projects, err := l.runtime.Observe(ctx)
	if err == nil {
		running := make([]string, len(projects))
		for i := range projects {
			running[i] = projects[i].Labels[labelDeployment]
		}
		err = l.files.removeOrphans(ctx, running, func() ([]string, error) {
			deployments, err := l.store.Deployments()
			return idsOf(deployments), err
		})
	}
	if err != nil && ctx.Err() == nil {
		l.logger.Warn("cannot remove the lock file directories of removed deployments", "error", err)
	}
}

func (l *locks) held(id string) []policy.Lock {
	l.files.prepare([]string{id}) // before its containers are first started
	concerns := func(h *hold) bool { return h.Deployment == "" || margo.SameID(h.Deployment, id) }
	var held []policy.Lock
	for _, lock := range l.matching(concerns, id) {
		held = append(held, policy.Lock{Holder: lock.Holder, Reason: lock.Reason, Deployment: lock.Deployment, Until: lock.Until})
	}
	return held
}

func (l *locks) list(ids []string) []control.Lock {
	return l.matching(func(*hold) bool { return true }, ids...)
}

// matching are the locks of people that fit, and the held files of these deployments.
func (l *locks) matching(fits func(*hold) bool, ids ...string) []control.Lock {
	l.mu.Lock()
	m := l.moment()
	l.expire(m)
	list := l.describe(m, fits)
	l.mu.Unlock()
	return append(list, l.files.held(ids)...)
}

// describe lists the held locks that fit. The caller holds mu.
func (l *locks) describe(m pace.Moment, fits func(*hold) bool) []control.Lock {
	var list []control.Lock
	if l.broken != nil {
		list = append(list, control.Lock{Holder: unreadable, Reason: l.broken.Error()})
	}
	for i := range l.holds {
		if h := &l.holds[i]; fits(h) {
			list = append(list, h.lock(m))
		}
	}
	return list
}

// expire drops locks that have ended. If that cannot be written, it is tried again and comes with
// the next change. The caller holds mu.
func (l *locks) expire(m pace.Moment) {
	known := len(l.unsaid)
	l.holds = slices.DeleteFunc(l.holds, func(h hold) bool {
		if !h.over(m) {
			return false
		}
		l.unsaid = append(l.unsaid, l.note(m, noteExpired, &h, ""))
		return true
	})
	if len(l.unsaid) == 0 {
		return
	}
	if err := l.commit(l.holds, nil); err != nil && len(l.unsaid) > known {
		l.logger.Warn("cannot drop expired update locks", "error", err)
	}
}

// commit replaces the held locks. The caller holds mu.
func (l *locks) commit(now []hold, journal []store.Entry) error {
	var record []byte // nil: there is none
	var err error
	if len(now) > 0 {
		record, err = json.Marshal(lockRecord{now})
	}
	if err == nil {
		journal = slices.Concat(l.unsaid, journal)
		err = l.store.Commit("locks", store.Change{Settings: map[string][]byte{locksSetting: record}, Journal: journal})
	}
	if err != nil {
		return fmt.Errorf("cannot save the update locks: %w", err)
	}
	l.holds, l.unsaid = now, nil
	return nil
}

func (l *locks) note(m pace.Moment, kind string, h *hold, by string) store.Entry {
	return store.Entry{Time: m.Wall, Kind: kind, Deployment: h.Deployment, By: by, Text: h.text(m)}
}

// hold takes a lock, replacing the holder's of the same scope. Package control checked r.
func (l *locks) hold(r control.HoldRequest) (control.Lock, error) {
	by := r.Caller
	h := hold{
		Holder: holderOf(r.Holder, by), Reason: r.Reason, Deployment: r.Deployment,
		For: r.Seconds, UID: by.UID, By: margo.Shown(by.String(), control.MaxReason),
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	m := l.moment()
	l.expire(m)
	if l.broken != nil {
		return control.Lock{}, fmt.Errorf("%w: %v; margolite release --all drops them", control.ErrConflict, l.broken)
	}
	h.Since, h.Unsure = m.Wall.Round(0).UTC(), l.wrong()
	h.end = m.Up + h.length()
	now := slices.Clone(l.holds)
	journal := []store.Entry{l.note(m, noteHeld, &h, h.By)}
	switch i := slices.IndexFunc(now, h.same); {
	case i < 0:
		if err := roomFor(now, by); err != nil {
			return control.Lock{}, err
		}
		now = append(now, h)
	case !now[i].yields(by):
		return control.Lock{}, foreign(&now[i])
	default:
		same := now[i].Reason == h.Reason && now[i].UID == h.UID
		if same && now[i].For == 0 && h.For == 0 {
			return now[i].lock(m), nil
		}
		if same && h.For > 0 && h.For <= now[i].For { // merely renewed: not worth an entry
			journal = nil
		}
		now[i] = h
	}
	if err := l.commit(now, journal); err != nil {
		return control.Lock{}, err
	}
	l.look()
	return h.lock(m), nil
}

func roomFor(held []hold, by control.Caller) error {
	own, others := 0, 0
	for i := range held {
		if held[i].UID == by.UID {
			own++
		}
		if !(control.Caller{UID: held[i].UID}).Privileged() {
			others++
		}
	}
	most := maxOthersHolds
	if own > 0 {
		most = maxMoreHolds
	}
	switch {
	case own >= maxOwnHolds:
		return fmt.Errorf("%w: %s holds %d update locks, the most that one user may hold; release some first", control.ErrConflict, by, own)
	case len(held) >= maxHolds, !by.Privileged() && others >= most:
		return fmt.Errorf("%w: %d update locks are held, too many for another one of %s; margolite status shows the holders, and root can release them", control.ErrConflict, len(held), by)
	}
	return nil
}

// release gives back all that the request names or, with an error, nothing.
func (l *locks) release(r control.ReleaseRequest) ([]control.Lock, error) {
	holder := holderOf(r.Holder, r.Caller)
	fits := func(h *hold) bool { return r.All || h.Holder == holder }
	l.mu.Lock()
	defer l.mu.Unlock()
	m := l.moment()
	l.expire(m)
	if l.broken != nil && !(r.All && r.Caller.Privileged()) {
		return nil, fmt.Errorf("%w: %v; root can drop them with margolite release --all", control.ErrConflict, l.broken)
	}
	released := l.describe(m, fits)
	var kept []hold
	var journal []store.Entry
	if l.broken != nil {
		journal = append(journal, l.note(m, noteReleased, &hold{Holder: unreadable, Reason: l.broken.Error()}, r.Caller.String()))
	}
	for _, h := range l.holds {
		switch {
		case !fits(&h):
			kept = append(kept, h)
		case !h.yields(r.Caller):
			return nil, foreign(&h)
		default:
			journal = append(journal, l.note(m, noteReleased, &h, r.Caller.String()))
		}
	}
	if len(journal) == 0 {
		return nil, nil
	}
	if err := l.commit(kept, journal); err != nil {
		return nil, err
	}
	l.broken = nil
	l.look()
	return released, nil
}

func (h *hold) yields(by control.Caller) bool { return h.UID == by.UID || by.Privileged() }

func foreign(h *hold) error {
	return fmt.Errorf("%w: %q is a lock of %s; only that user and root can change it", control.ErrConflict, h.Holder, h.By)
}

func holderOf(name string, c control.Caller) string {
	switch {
	case name != "":
		return name
	case c.User != "": // package control has checked it
		return c.User
	}
	return fmt.Sprintf("user %d", c.UID)
}

// Hold takes an update lock, or prolongs the one that the holder has.
func (a *Agent) Hold(_ context.Context, r control.HoldRequest) (control.Lock, error) {
	if r.Deployment != "" {
		id, err := a.deploymentID(r.Deployment)
		if err != nil {
			return control.Lock{}, err
		}
		r.Deployment = id
	}
	return a.locks.hold(r)
}

// Release gives locks back and returns them.
func (a *Agent) Release(_ context.Context, r control.ReleaseRequest) ([]control.Lock, error) {
	return a.locks.release(r)
}
