package pace_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/margolite/margolite/agent/pace"
	"github.com/margolite/margolite/policy"
	"github.com/margolite/margolite/test/expect"
)

// memory is a record in memory.
type memory struct {
	mu     sync.Mutex
	value  []byte
	writes int
	err    error
}

func (r *memory) Load() ([]byte, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.value, r.err
}

func (r *memory) Keep(value []byte, _ time.Duration) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err == nil {
		r.value = bytes.Clone(value)
		r.writes++
	}
	return r.err
}

// process is what a Silence lives in.
type process struct {
	*pace.Silence
	now pace.Moment
	log bytes.Buffer
}

func start(wall time.Time, wfm string, record pace.Record, downtime policy.Windows) *process {
	p := &process{now: pace.Moment{Wall: wall}}
	p.Silence = pace.NewSilence(pace.SilenceOptions{
		WFM: wfm, Downtime: downtime, Now: func() pace.Moment { return p.now }, Random: most, Record: record,
		Logger: slog.New(slog.NewTextHandler(&p.log, nil)),
	})
	return p
}

func (p *process) pass(d time.Duration) { p.now.Wall, p.now.Up = p.now.Wall.Add(d), p.now.Up+d }

const plant = "https://wfm.example"

// Which answers silence every request, and for how long.
func TestERR04AnswersSilenceEveryRequest(t *testing.T) {
	for name, c := range map[string]struct {
		err  error
		want time.Duration
	}{
		"a success":                   {nil, 0},
		"no connection":               {errors.New("connection refused"), 0},
		"429":                         {answer(429, 90*time.Second, ""), 90 * time.Second},
		"503":                         {answer(503, time.Hour, ""), time.Hour},
		"any other that names a time": {answer(500, 7*time.Second, ""), 7 * time.Second},
		"503 that names none":         {answer(503, 0, ""), 5 * time.Second},
		"500 that names none":         {answer(500, 0, ""), 0},
		"no longer than a day":        {answer(503, 1000*time.Hour, ""), 24 * time.Hour},
		"one of several errors":       {fmt.Errorf("neither way: %w", errors.Join(errors.New("x"), answer(503, time.Minute, ""))), time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			p := start(monday, plant, nil, nil)
			p.Note(c.err)
			if got := p.Hold(); got.Left() != c.want || got.Downtime != 0 || c.want > 0 && got.Reason() != pace.Silent {
				t.Errorf("silent for %+v, want %v", got, c.want)
			}
			p.Note(answer(429, time.Second, "")) // less does not shorten it
			p.Note(nil)                          // nor does what was under way
			expect.Equal(t, p.Hold().Left(), max(c.want, time.Second), "silent for")
			p.now.Wall = p.now.Wall.Add(-1000 * time.Hour) // nor a clock that is corrected
			p.now.Up += c.want - 1
			if got := p.Hold().Left(); c.want > time.Second && got != 1 {
				t.Errorf("silent for another %v", got)
			}
			p.now.Wall = p.now.Wall.Add(9000 * time.Hour)
			if got := p.Hold().Left(); c.want > time.Second && got != 1 {
				t.Errorf("silent for another %v after the clock jumped ahead", got)
			}
		})
	}
}

// A silence holds over a restart, as far as the clock can tell what is left.
func TestERR04SilenceSurvivesARestart(t *testing.T) {
	for name, c := range map[string]struct {
		asked    time.Duration
		wall     time.Duration // what the clock shows after the restart, since the WFM asked
		wfm      string
		want     time.Duration
		recorded bool
	}{
		"soon":                        {time.Hour, time.Minute, plant, 59 * time.Minute, true},
		"just before the end":         {time.Hour, time.Hour - time.Second, plant, time.Second, true},
		"after the end":               {time.Hour, time.Hour, plant, 0, true},
		"years later":                 {time.Hour, 9999 * time.Hour, plant, 0, true},
		"with a clock that went back": {time.Hour, -9999 * time.Hour, plant, time.Hour, true},
		"of another WFM":              {time.Hour, time.Minute, "https://other.example", 0, true},
		"the shortest, at once":       {time.Second, 0, plant, time.Second, true},
		"too short to matter":         {time.Second - 1, 0, plant, 0, false},
		"as long as it can be":        {48 * time.Hour, time.Second, plant, 24*time.Hour - time.Second, true},
	} {
		t.Run(name, func(t *testing.T) {
			record := &memory{}
			p := start(monday, plant, record, nil)
			p.Note(answer(503, c.asked, ""))
			expect.True(t, (record.writes == 1) == c.recorded, "%d writes", record.writes)
			p = start(monday.Add(c.wall), c.wfm, record, nil)
			expect.Equal(t, p.Hold().Left(), c.want, "silent for")
			if p.log.Len() > 0 {
				t.Errorf("the log says %s", &p.log)
			}
		})
	}
	t.Run("ERR-04 a clock that is set right ends what is over", func(t *testing.T) {
		record := &memory{}
		start(monday, plant, record, nil).Note(answer(503, time.Hour, ""))
		p := start(time.Unix(0, 0), plant, record, nil)
		p.pass(time.Minute)
		if got := p.Hold().Left(); got != 59*time.Minute {
			t.Errorf("silent for %v by a clock that was never set", got)
		}
		p.now.Wall = monday.Add(24 * time.Hour)
		if got := p.Hold().Left(); got != 0 {
			t.Errorf("silent for %v by the right clock", got)
		}
	})
	t.Run("ERR-04 the record goes with the next answer", func(t *testing.T) {
		record := &memory{}
		p := start(monday, plant, record, nil)
		p.Note(answer(503, time.Hour, ""))
		p.Note(nil)
		expect.Require(t, record.value != nil, "the record went before its time")
		p.pass(time.Hour)
		for range 3 {
			p.Note(nil)
		}
		if record.value != nil || record.writes != 2 {
			t.Errorf("the record is %q after %d writes", record.value, record.writes)
		}
	})
}

// A store that does not work costs the memory of a silence, not the silence.
func TestSilenceWithoutARecord(t *testing.T) {
	p := start(monday, plant, &memory{err: errors.New("disk on fire")}, nil)
	p.Note(answer(503, time.Hour, ""))
	expect.Equal(t, p.Hold().Left(), time.Hour, "silent for")
	expect.Equal(t, strings.Count(p.log.String(), "disk on fire"), 2, "the log says %s", &p.log)
}

func TestPOL01DowntimeHoldsEveryRequestBack(t *testing.T) {
	p := start(monday, plant, nil, windows(t, "Mon 13:00-14:00", "Mon 14:00-15:00"))
	expect.Equal(t, p.Hold().Left(), 0, "before it begins")
	p.pass(time.Hour)
	if got := p.Hold(); got.Downtime != 2*time.Hour || got.Reason() != pace.Downtime {
		t.Errorf("when it begins: %+v", got)
	}
	p.Note(answer(503, 4*time.Hour, ""))
	if got := p.Hold(); got.Left() != 4*time.Hour || got.Reason() != pace.Silent {
		t.Errorf("with a silence that is longer: %+v", got)
	}
	p.Configure("https://other.example", nil)
	expect.Equal(t, p.Hold().Left(), 0, "without it, with another WFM")
	p.Configure(plant, windows(t, "00:00-24:00"))
	if got := p.Hold(); got.Left() <= 0 {
		t.Errorf("with downtime that never ends: %+v", got)
	}
}

// Whoever waits goes on when nothing is in the way any more: when it has passed,
// when the configuration says so, when the clock was wrong. Not before, and not
// in step with others.
func TestERR04WhoeverCallsTheWFMWaits(t *testing.T) {
	type waiter struct {
		*pace.Silence
		skew atomic.Int64 // of the system's clock
		took func() time.Duration
	}
	begin := func(ctx context.Context, prepare func(*waiter), downtime policy.Windows) *waiter {
		w := &waiter{}
		began := time.Now()
		w.Silence = pace.NewSilence(pace.SilenceOptions{
			WFM: plant, Downtime: downtime, Random: most, Logger: slog.New(slog.DiscardHandler),
			Now: func() pace.Moment {
				return pace.Moment{Wall: time.Now().UTC().Add(time.Duration(w.skew.Load())), Up: time.Since(began)}
			},
		})
		prepare(w)
		done := make(chan error, 1)
		go func() { done <- w.Wait(ctx) }()
		w.took = func() time.Duration {
			if err := <-done; err != nil {
				return -1
			}
			return time.Since(began)
		}
		synctest.Wait()
		return w
	}
	nothing := func(*waiter) {}
	// In a bubble it is Saturday, midnight UTC.
	for name, c := range map[string]struct {
		prepare     func(*waiter)
		downtime    string
		then        func(*waiter)
		least, most time.Duration
	}{
		"nothing in the way": {nothing, "", nothing, 0, 0},
		"ERR-04 a silence":   {func(w *waiter) { w.Note(answer(503, time.Hour, "")) }, "", nothing, time.Hour, time.Hour + time.Minute},
		"ERR-04 a short one": {func(w *waiter) { w.Note(answer(503, 2*time.Second, "")) }, "", nothing, 2 * time.Second, 3 * time.Second},
		"ERR-04 one that is extended": {
			func(w *waiter) { w.Note(answer(503, time.Hour, "")) }, "",
			func(w *waiter) { w.Note(answer(503, 2*time.Hour, "")) }, 2 * time.Hour, 2*time.Hour + time.Minute,
		},
		"a WFM that is replaced": {
			func(w *waiter) { w.Note(answer(503, time.Hour, "")) }, "",
			func(w *waiter) { time.Sleep(time.Second); w.Configure("https://other.example", nil) }, time.Second, 2 * time.Second,
		},
		"POL-01 downtime":                  {nothing, "00:00-04:00 UTC", nothing, 4 * time.Hour, 4*time.Hour + time.Minute},
		"POL-01 downtime that is given up": {nothing, "00:00-04:00 UTC", func(w *waiter) { w.Configure(plant, nil) }, 0, 0},
		"POL-01 downtime by a wrong clock": {nothing, "00:00-04:00 UTC", func(w *waiter) { w.skew.Store(int64(5 * time.Hour)) }, 0, 2 * time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var downtime policy.Windows
				if c.downtime != "" {
					downtime = windows(t, c.downtime)
				}
				w := begin(t.Context(), c.prepare, downtime)
				c.then(w)
				if took := w.took(); took < c.least || took > c.most {
					t.Errorf("it took %v, want %v to %v", took, c.least, c.most)
				}
			})
		})
	}
	t.Run("ends with its context", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			w := begin(ctx, func(w *waiter) { w.Note(answer(503, time.Hour, "")) }, nil)
			cancel()
			expect.Equal(t, w.took(), -1, "it ended without an error")
		})
	})
}

// What is in the record is what this program wrote, or the worst that a broken
// disk can make of it.
func FuzzSilenceRecord(f *testing.F) {
	for _, value := range []string{
		"1780315200 1780318800 https://wfm.example", "1780315200 9999999999999999 https://wfm.example", "", "x y z",
		"9223372036854775807 9223372036854775807 https://wfm.example", "-9223372036854775808 0 https://wfm.example",
	} {
		f.Add([]byte(value), int64(1780315200))
	}
	f.Fuzz(func(t *testing.T, value []byte, unix int64) {
		p := start(time.Unix(unix%(1<<40), 0), plant, &memory{value: value}, nil)
		if left := p.Hold().Left(); left < 0 || left > 24*time.Hour+2*time.Second {
			t.Fatalf("%q makes a silence of %v", value, left)
		}
	})
}
