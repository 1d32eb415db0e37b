package agent

import (
	"bytes"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/margolite/margolite/agent/control"
	"github.com/margolite/margolite/agent/pace"
	"github.com/margolite/margolite/store"
	"github.com/margolite/margolite/test/expect"
)

// plant is a device whose clocks a test sets.
type plant struct {
	*testing.T
	path   string
	store  *store.Store
	locks  *locks
	events <-chan control.Event
	log    bytes.Buffer
	wall   time.Time
	up     time.Duration
	wrong  bool // the clock is known to be
	looks  int
}

func newPlant(t *testing.T) *plant {
	p := &plant{T: t, path: filepath.Join(t.TempDir(), "margolite.db"), wall: time.Date(2026, 6, 1, 12, 0, 0, 0, time.UTC)}
	p.start()
	t.Cleanup(func() { p.store.Close() })
	return p
}

func (p *plant) start() {
	p.Helper()
	p.store = expect.Value(store.Open(p.path, store.Options{}))(p)
	now := func() time.Time { return p.wall }
	h := newHub(now)
	p.events, _ = h.subscribe()
	b := &base{
		store: p.store, hub: h, logger: slog.New(slog.NewTextHandler(&p.log, nil)),
		moment: func() pace.Moment { return pace.Moment{Wall: p.wall, Up: p.up} },
	}
	p.store.OnAppend(b.tell)
	p.locks = newLocks(b, Options{RunDir: filepath.Dir(p.path), ClockWrong: func() bool { return p.wrong }}, func() { p.looks++ })
}

// restart opens the store again as another process does: the uptime begins at zero,
// and the wall clock goes on.
func (p *plant) restart() {
	p.Helper()
	check(p, p.store.Close())
	p.up = 0
	p.start()
}

// pass lets time pass by both clocks.
func (p *plant) pass(d time.Duration) { p.wall, p.up = p.wall.Add(d), p.up+d }

var (
	root     = control.Caller{UID: 0, User: "root"}
	operator = control.Caller{UID: 1000, User: "operator"}
	fitter   = control.Caller{UID: 1001, User: "fitter"}
)

func (p *plant) hold(r control.HoldRequest) control.Lock {
	p.Helper()
	return expect.Value(p.locks.hold(r))(p)
}

// held are the holders whose locks concern a deployment, with the time left.
func (p *plant) held(id string) string {
	var held []string
	for _, l := range p.locks.held(id) {
		name := l.Holder
		if !l.Until.IsZero() {
			name += " " + l.Until.Sub(p.wall).String()
		}
		held = append(held, name)
	}
	return strings.Join(held, ", ")
}

// want fails the test unless exactly this is held.
func (p *plant) want(want string) {
	p.Helper()
	expect.Equal(p.T, p.held(lockedID), want, "held")
}

// told are the events since it was last asked.
func (p *plant) told() (told []string) {
	for {
		select {
		case e := <-p.events:
			told = append(told, fmt.Sprintf("%s %s", e.Kind, e.Text))
		default:
			return told
		}
	}
}

func TestALockOfAPersonSurvivesARestart(t *testing.T) {
	p := newPlant(t)
	lock := p.hold(control.HoldRequest{Reason: "changing the bearings", Caller: operator})
	expect.Equal(t, lock, control.Lock{Holder: "operator", Reason: "changing the bearings", Since: lock.Since, By: lock.By}, "lock")
	expect.Equal(t, lock.Since, p.wall, "time of the lock")
	p.hold(control.HoldRequest{Holder: "shift", Deployment: strings.ToUpper(lockedID), Seconds: 3600, Caller: control.Caller{UID: 7}})
	for range 3 {
		p.want("operator, shift 1h0m0s")
		expect.Equal(t, p.held("another"), "operator", "held of another deployment")
		p.restart()
	}
	list := p.locks.list(nil)
	expect.Equal(t, len(list), 2, "locks")
	expect.Equal(t, list[1].Until.Equal(p.wall.Add(time.Hour)), true, "end of the lock, %s", list[1].Until)
}

func TestALockEndsWhenItsTimeHasPassed(t *testing.T) {
	p := newPlant(t)
	p.hold(control.HoldRequest{Seconds: 3600, Caller: operator})
	p.hold(control.HoldRequest{Seconds: 7200, Caller: fitter})
	p.pass(time.Hour - time.Second)
	p.want("operator 1s, fitter 1h0m1s")
	p.told()
	writes := p.store.Writes()
	p.pass(time.Second)
	p.want("fitter 1h0m0s")
	expect.Equal(t, p.told(), []string{"lock.released ended: operator, until 2026-06-01T13:00:00Z"}, "events")
	for range 5 {
		p.want("fitter 1h0m0s")
	}
	expect.Equal(t, p.store.Writes()-writes, 1, "transactions")
	p.restart()
	p.want("fitter 1h0m0s")
	p.pass(time.Hour)
	p.restart()
	p.want("")
	_, set, err := p.store.Setting(locksSetting)
	expect.OK(t, err)
	expect.Equal(t, set, false, "there is a record of nothing")
}

// The end is measured by a clock that cannot be set. Over a restart there is
// only the other one, which can make a lock no longer than was asked for.
func TestAClockThatIsSetEndsNoLockAndProlongsNone(t *testing.T) {
	const hour, year = time.Hour, 365 * 24 * time.Hour
	for name, c := range map[string]struct {
		takenWrong bool // the clock was known to be wrong when the lock was taken
		before     time.Duration
		jump       time.Duration
		restart    bool
		wrong      bool // it is known to be wrong after that
		want       string
	}{
		"forward":                                 {before: 10 * time.Minute, jump: year, want: "operator 50m0s"},
		"backward":                                {before: 10 * time.Minute, jump: -year, want: "operator 50m0s"},
		"by a second, also to be seen":            {jump: 2 * time.Second, want: "operator 1h0m0s"},
		"not, over a restart":                     {before: 10 * time.Minute, restart: true, want: "operator 50m0s"},
		"backward over a restart":                 {before: 10 * time.Minute, jump: -year, restart: true, want: "operator 1h0m0s"},
		"backward a little over a restart":        {before: 10 * time.Minute, jump: -5 * time.Minute, restart: true, want: "operator 55m0s"},
		"forward over a restart":                  {jump: 10 * time.Minute, restart: true, want: "operator 50m0s"},
		"far forward over a restart":              {jump: year, restart: true, want: ""},
		"forward, and known to be wrong":          {jump: year, restart: true, wrong: true, want: "operator 1h0m0s"},
		"right at last":                           {takenWrong: true, jump: year, restart: true, want: "operator 1h0m0s"},
		"a device that was off for longer":        {before: 2 * hour, restart: true, want: ""},
		"the same, and its clock does not run on": {before: 10 * time.Minute, jump: -10 * time.Minute, restart: true, wrong: true, want: "operator 1h0m0s"},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPlant(t)
			p.wrong = c.takenWrong
			p.hold(control.HoldRequest{Seconds: 3600, Caller: operator})
			p.pass(c.before)
			p.wall = p.wall.Add(c.jump)
			p.wrong = c.wrong
			if c.restart {
				p.restart()
			}
			p.want(c.want)
			if c.want == "" {
				return
			}
			p.wall = p.wall.Add(-year)
			p.up += time.Hour
			p.want("")
		})
	}
}

func TestALockIsReplacedByTheSameHolder(t *testing.T) {
	p := newPlant(t)
	p.hold(control.HoldRequest{Seconds: 60, Reason: "a", Caller: operator})
	p.pass(30 * time.Second)
	p.hold(control.HoldRequest{Seconds: 60, Reason: "b", Caller: operator})
	p.want("operator 1m0s")
	p.hold(control.HoldRequest{Deployment: lockedID, Caller: operator})
	p.want("operator 1m0s, operator")
	p.hold(control.HoldRequest{Reason: "c", Caller: operator})
	p.want("operator, operator")
	p.hold(control.HoldRequest{Caller: control.Caller{UID: 4711}}) // who has no name holds by number
	p.want("operator, operator, user 4711")
	writes, looks := p.store.Writes(), p.looks
	for range 3 { // as a script may
		p.hold(control.HoldRequest{Reason: "c", Caller: operator})
	}
	expect.Equal(t, p.store.Writes()-writes, 0, "transactions")
	expect.Equal(t, []int{looks, p.looks}, []int{5, 5}, "looks before and after")
}

func TestWhoMayReleaseALock(t *testing.T) {
	for name, c := range map[string]struct {
		request control.ReleaseRequest
		left    string
		refused error
	}{
		"one's own":                {control.ReleaseRequest{Caller: operator}, "shift, fitter", nil},
		"one's own, by name":       {control.ReleaseRequest{Holder: "shift", Caller: operator}, "operator, fitter", nil},
		"none of that name":        {control.ReleaseRequest{Holder: "nobody", Caller: operator}, "operator, shift, fitter", nil},
		"another user's":           {control.ReleaseRequest{Holder: "fitter", Caller: operator}, "operator, shift, fitter", control.ErrConflict},
		"all, of which some are":   {control.ReleaseRequest{All: true, Caller: operator}, "operator, shift, fitter", control.ErrConflict},
		"another user's, by root":  {control.ReleaseRequest{Holder: "fitter", Caller: root}, "operator, shift", nil},
		"all, by root":             {control.ReleaseRequest{All: true, Caller: root}, "", nil},
		"root's own, who has none": {control.ReleaseRequest{Caller: root}, "operator, shift, fitter", nil},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPlant(t)
			p.hold(control.HoldRequest{Caller: operator})
			p.hold(control.HoldRequest{Holder: "shift", Caller: operator})
			p.hold(control.HoldRequest{Caller: fitter})
			p.told()
			looks := p.looks
			released, err := p.locks.release(c.request)
			expect.Error(t, err, c.refused, "release")
			if c.refused != nil {
				expect.ErrorWith(t, err, "fitter (1001)", "release")
			}
			p.want(c.left)
			p.restart()
			p.want(c.left)
			want := 3
			if c.left != "" {
				want -= strings.Count(c.left, ",") + 1
			}
			expect.Equal(t, len(released), want, "released")
			expect.Equal(t, p.looks > looks, want > 0, "looks")
		})
	}
	t.Run("nobody else's is replaced", func(t *testing.T) {
		p := newPlant(t)
		p.hold(control.HoldRequest{Caller: operator})
		_, err := p.locks.hold(control.HoldRequest{Holder: "operator", Seconds: 1, Caller: fitter})
		expect.Error(t, err, control.ErrConflict, "another user's lock is replaced")
		p.want("operator")
	})
}

// journal is what the journal tells of locks.
func (p *plant) journal() string {
	p.Helper()
	entries := expect.Value(p.store.Journal(store.JournalFilter{}))(p)
	var b strings.Builder
	for _, e := range entries {
		fmt.Fprintf(&b, "%s %s by %q of %q: %s\n", e.Time.UTC().Format(time.TimeOnly), e.Kind, e.By, e.Deployment, e.Text)
	}
	return b.String()
}

func TestLocksAreToldWithWhoDidIt(t *testing.T) {
	p := newPlant(t)
	p.hold(control.HoldRequest{Reason: "bearings", Seconds: 60, Caller: operator})
	for range 5 { // a script that holds on for as long as it lives
		p.pass(30 * time.Second)
		p.hold(control.HoldRequest{Reason: "bearings", Seconds: 60, Caller: operator})
	}
	p.want("operator 1m0s")
	p.hold(control.HoldRequest{Deployment: lockedID, Seconds: 1, Caller: fitter})
	p.pass(time.Second)
	p.want("operator 59s")
	check(t, expect.ErrorOf(p.locks.release(control.ReleaseRequest{All: true, Caller: root})))
	told := strings.Join(p.told(), "\n")
	want := `lock.taken by user operator (1000): operator, until 2026-06-01T12:01:00Z: bearings
lock.taken by user fitter (1001): fitter, until 2026-06-01T12:02:31Z
lock.released ended: fitter, until 2026-06-01T12:02:31Z
lock.released by user root (0): operator, until 2026-06-01T12:03:30Z: bearings`
	expect.Equal(t, told, want, "events")
	want = `12:00:00 lock.taken by "user operator (1000)" of "": operator, until 2026-06-01T12:01:00Z: bearings
12:02:30 lock.taken by "user fitter (1001)" of "` + lockedID + `": fitter, until 2026-06-01T12:02:31Z
12:02:31 lock.expired by "" of "` + lockedID + `": fitter, until 2026-06-01T12:02:31Z
12:02:31 lock.released by "user root (0)" of "": operator, until 2026-06-01T12:03:30Z: bearings
`
	expect.Equal(t, p.journal(), want, "journal")
}

// A user who takes every lock that it can get leaves some to others and to root.
func TestNoUserTakesTheLocksOfOthers(t *testing.T) {
	p := newPlant(t)
	takeAll := func(by control.Caller) (n int, err error) {
		for ; err == nil; n++ {
			_, err = p.locks.hold(control.HoldRequest{Holder: fmt.Sprintf("%s %d", by, n), Caller: by})
		}
		return n - 1, err
	}
	n, err := takeAll(operator)
	expect.Equal(t, n, maxOwnHolds, "locks of one user")
	conflict(t, err, operator.String())
	users := 0
	for uid := uint32(2000); uid < 2100; uid++ { // one who has many names
		if n, err = takeAll(control.Caller{UID: uid}); n > 0 {
			users++
		}
	}
	expect.Equal(t, users, 1+maxOthersHolds-maxMoreHolds, "more users with a lock") // the first one has what its share allows
	conflict(t, err, "margolite status shows the holders")
	n, _ = takeAll(root)
	expect.Equal(t, n, maxHolds-maxOthersHolds, "locks of root")
	by := map[string]int{}
	for _, lock := range p.locks.list(nil) {
		by[lock.By]++
	}
	expect.Equal(t, by[operator.String()], maxOwnHolds, "locks of one user in the list")
	expect.Equal(t, by[root.String()], maxHolds-maxOthersHolds, "locks of root in the list")
	expect.OK(t, expect.ErrorOf(p.locks.release(control.ReleaseRequest{All: true, Caller: root})))
	p.hold(control.HoldRequest{Holder: "again", Caller: fitter})
}

func TestARecordThatCannotBeReadHoldsEverything(t *testing.T) {
	p := newPlant(t)
	p.hold(control.HoldRequest{Caller: operator})
	check(t, p.store.Commit("test", store.Change{Settings: map[string][]byte{locksSetting: []byte(`{"holds":[{`)}}))
	p.restart()
	p.want(unreadable)
	expect.Contains(t, p.log.String(), "release --all", "log")
	list := p.locks.list(nil)
	expect.Equal(t, len(list), 1, "locks")
	expect.Contains(t, list[0].Reason, "cannot read the update locks", "reason")
	conflict(t, expect.ErrorOf(p.locks.hold(control.HoldRequest{Caller: root})), "release --all")
	conflict(t, expect.ErrorOf(p.locks.release(control.ReleaseRequest{Caller: root})), "release --all")
	conflict(t, expect.ErrorOf(p.locks.release(control.ReleaseRequest{All: true, Caller: operator})), "release --all")
	p.want(unreadable)
	released := expect.Value(p.locks.release(control.ReleaseRequest{All: true, Caller: root}))(t)
	expect.Equal(t, len(released), 1, "released")
	p.want("")
	p.hold(control.HoldRequest{Caller: operator})
	p.restart()
	p.want("operator")
}

// conflict expects an error that is a conflict with the present state and whose text has a part in it.
func conflict(t testing.TB, err error, text string) {
	t.Helper()
	expect.Error(t, err, control.ErrConflict, "refusal")
	expect.ErrorWith(t, err, text, "refusal")
}
