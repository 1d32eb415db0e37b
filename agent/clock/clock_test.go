package clock_test

import (
	"testing"
	"time"

	"github.com/margolite/margolite/agent/clock"
)

var built = time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)

// set is a system clock that a test sets; without a monotonic reading.
type set struct{ at time.Time }

func (s *set) now() time.Time { return s.at }

func TestNowIsNeverBeforeTheFloor(t *testing.T) {
	later := built.Add(48 * time.Hour)
	tests := map[string]struct {
		system time.Time
		floors []time.Time
		want   time.Time
		wrong  bool
	}{
		"a right clock is left alone":           {later, []time.Time{built}, later, false},
		"a clock that starts in 1970":           {time.Unix(0, 0), []time.Time{built}, built, true},
		"the latest floor counts":               {time.Unix(0, 0), []time.Time{built, later, {}}, later, true},
		"the latest floor counts in any order":  {time.Unix(0, 0), []time.Time{{}, later, built}, later, true},
		"a second behind is not wrong":          {built.Add(-time.Second), []time.Time{built}, built, false},
		"two minutes behind is wrong":           {built.Add(-2 * time.Minute), []time.Time{built}, built, true},
		"without a floor nothing can be wrong":  {time.Unix(0, 0), nil, time.Unix(0, 0), false},
		"a floor that was never known is none":  {time.Unix(0, 0), []time.Time{{}}, time.Unix(0, 0), false},
		"a clock ahead of the floor by a while": {built.Add(10 * 365 * 24 * time.Hour), []time.Time{built}, built.Add(10 * 365 * 24 * time.Hour), false},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			c := clock.New((&set{test.system}).now, test.floors...)
			if got := c.Now(); !got.Equal(test.want) {
				t.Errorf("Now() = %s, want %s", got, test.want)
			}
			if _, wrong := c.Wrong(); wrong != test.wrong {
				t.Errorf("Wrong() = %t, want %t", wrong, test.wrong)
			}
		})
	}
}

func TestLearnedTimeIsAFloorThatOnlyRises(t *testing.T) {
	system := &set{time.Unix(0, 0)}
	c := clock.New(system.now, built)

	told := built.Add(100 * 24 * time.Hour)
	c.Learn(told)
	c.Learn(built) // a server whose own clock is wrong
	c.Learn(time.Time{})
	if got := c.Now(); !got.Equal(told) {
		t.Errorf("Now() = %s, want %s", got, told)
	}
	if floor, wrong := c.Wrong(); !floor.Equal(told) || !wrong {
		t.Errorf("Wrong() = %s, %t, want %s, true", floor, wrong, told)
	}

	system.at = told.Add(time.Hour) // set by NTP
	if got := c.Now(); !got.Equal(system.at) {
		t.Errorf("Now() = %s after the clock was set, want %s", got, system.at)
	}
	if floor, wrong := c.Wrong(); !floor.Equal(told) || wrong {
		t.Errorf("Wrong() = %s, %t, want %s, false", floor, wrong, told)
	}
	system.at = time.Unix(0, 0) // and back again
	if got := c.Now(); !got.Equal(told) {
		t.Errorf("Now() = %s after the clock was set back, want %s", got, told)
	}
}

func TestAWrongClockGoesOn(t *testing.T) {
	system := &set{time.Now().Add(-20 * 365 * 24 * time.Hour)} // with a monotonic reading
	pass := func(d time.Duration) { system.at = system.at.Add(d) }
	floor := time.Now().Round(0)
	c := clock.New(system.now, floor)
	pass(3 * time.Hour)
	if got, want := c.Now(), floor.Add(3*time.Hour); !got.Equal(want) {
		t.Errorf("Now() = %s, want %s", got, want)
	}
	told := floor.Add(24 * time.Hour)
	c.Learn(told)
	pass(time.Minute)
	if got, want := c.Now(), told.Add(time.Minute); !got.Equal(want) {
		t.Errorf("Now() = %s, want %s", got, want)
	}
	c.Learn(told) // has passed
	if floor, wrong := c.Wrong(); !floor.Equal(told.Add(time.Minute)) || !wrong {
		t.Errorf("Wrong() = %s, %t", floor, wrong)
	}
}
