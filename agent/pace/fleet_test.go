package pace_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/margolite/margolite/agent/pace"
	"github.com/margolite/margolite/agent/wfm"
	"github.com/margolite/margolite/test/expect"
)

// devices is how many there are in the fleet.
const devices = 5000

// arrivals lets every device of a fleet follow its plan up to a time, and
// counts in which second its polls arrive at the WFM. answer says what becomes
// of one; nothing that fails without an answer arrives.
func arrivals(t testing.TB, rules pace.Rules, begin pace.Moment, end time.Duration, answer func(up time.Duration) (arrives bool, err error)) []int {
	counts := make([]int, end/time.Second+1)
	for i := range uint64(devices) {
		p := pace.NewPolls(begin, rules, seeded(i), true)
		silent := time.Duration(0)
		for m := begin; ; {
			m, _ = until(t, p, m, func(m pace.Moment) pace.Hold { return pace.Hold{Silence: max(silent-m.Up, 0)} })
			if m.Up >= end {
				break
			}
			if len(rules.Windows) > 0 && !rules.Windows.Contains(m.Wall) {
				p.Skip(m)
				continue
			}
			arrives, err := answer(m.Up)
			if arrives {
				counts[m.Up/time.Second]++
			}
			if _, after := wfm.Retry(err); after > 0 {
				silent = m.Up + after
			}
			p.Done(m, err)
		}
	}
	return counts
}

// A fleet that was cut off together, booted together, was asked for silence
// until the same moment or waited for the same window does not arrive at once.
func TestAFleetSpreads(t *testing.T) {
	always := func(time.Duration) (bool, error) { return true, nil }
	// outage is an hour, after ten minutes, in which polls fail; left is what remains of it.
	outage := func(arrives bool, fails func(left time.Duration) error) func(time.Duration) (bool, error) {
		return func(up time.Duration) (bool, error) {
			if up > 10*time.Minute && up < 70*time.Minute {
				return arrives, fails(70*time.Minute - up)
			}
			return true, nil
		}
	}
	minutely := pace.Rules{Interval: time.Minute}
	for name, c := range map[string]struct {
		rules  pace.Rules
		answer func(up time.Duration) (bool, error)
		from   time.Duration // when they could all come
		first  int           // bound of a second within the first 15 seconds
		later  int           // and of one after
	}{
		"after an outage of an hour": {
			minutely, outage(false, func(time.Duration) error { return errors.New("no route to host") }),
			70 * time.Minute, 120, 200,
		},
		"after an outage of an hour that the WFM answered": {
			minutely, outage(true, func(time.Duration) error { return answer(503, 0, "") }),
			70 * time.Minute, 120, 200,
		},
		"after they booted together": {minutely, always, 0, 650, 200},
		"after silence that ends for all at once": {
			minutely, outage(true, func(left time.Duration) error { return answer(503, left, "") }),
			70 * time.Minute, 200, 200,
		},
		"when a window opens": {
			pace.Rules{Interval: time.Minute, Windows: windows(t, "12:02-16:00")},
			always,
			2 * time.Minute, 200, 200,
		},
		"when a window opens for two minutes only": {
			pace.Rules{Interval: time.Hour, Windows: windows(t, "12:02-12:04")},
			always,
			2 * time.Minute, 200, 200,
		},
	} {
		t.Run(name, func(t *testing.T) {
			counts := arrivals(t, c.rules, at(0), c.from+10*time.Minute, c.answer)[c.from/time.Second:]
			early, late, sum := slices.Max(counts[:15]), slices.Max(counts[15:]), 0
			for _, n := range counts {
				sum += n
			}
			t.Logf("arrivals a second: at most %d in the first 15 s, %d later, %d a minute", early, late, sum/10)
			expect.True(t, early <= c.first && late <= c.later, "want at most %d in the first 15 s, %d later", c.first, c.later)
			expect.True(t, sum >= devices, "only %d polls arrived of %d devices", sum, devices)
		})
	}
}
