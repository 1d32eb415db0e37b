package agent

import (
	"testing"
	"time"

	"github.com/margolite/margolite/test/expect"
)

// However a service flaps, the number of reports is bounded, and the last one is true.
func TestReportsOfAServiceThatFlapsAreBounded(t *testing.T) {
	rules := &Settings{Reports: Reports{Running: true, Grace: time.Minute}, Settle: 10 * time.Second}
	began := time.Date(2026, 11, 23, 0, 0, 0, 0, time.UTC)
	for name, period := range map[string]time.Duration{
		"each second": time.Second, "each half minute": 30 * time.Second, "each five minutes": 5 * time.Minute,
		"each half hour": 30 * time.Minute,
	} {
		t.Run(name, func(t *testing.T) {
			var w watched
			a := newAllowance()
			told := 0
			bad := &trouble{code: codeServiceExited, service: "web-1"}
			for now := began; now.Before(began.Add(24 * time.Hour)); now = now.Add(time.Second) {
				var seen *trouble
				if now.Sub(began)/period%2 == 0 {
					seen = bad
				}
				w.look(now, seen, rules)
				if v := w.verdict; !v.tellsAsMuchAs(w.told) && a.AllowN(now, 1) {
					w.told = v
					told++
				}
			}
			expect.Equal(t, told > 0 && told <= tellAtOnce+int(24*time.Hour/tellEvery), true, "%d reports are within the bound", told)
			end := began.Add(24 * time.Hour)
			for now := end; now.Before(end.Add(time.Hour)); now = now.Add(time.Second) {
				w.look(now, nil, rules)
				if v := w.verdict; !v.tellsAsMuchAs(w.told) && a.AllowN(now, 1) {
					w.told = v
				}
			}
			expect.Equal(t, w.told, nil, "told last")
		})
	}
}

// Nothing is told of what lasts for less than the grace time.
func TestWhatPassesInTimeIsNotTold(t *testing.T) {
	rules := &Settings{Reports: Reports{Running: true, Grace: time.Minute}, Settle: 10 * time.Second}
	now := time.Date(2026, 11, 23, 0, 0, 0, 0, time.UTC)
	var w watched
	bad := &trouble{code: codeServiceUnhealthy, service: "web-1"}
	due := w.look(now, bad, rules)
	expect.Equal(t, due, now.Add(time.Minute), "next look")
	now = now.Add(59 * time.Second)
	w.look(now, nil, rules)
	expect.Equal(t, w.verdict, nil, "verdict after 59 s")
	now = now.Add(10 * time.Second)
	w.look(now, nil, rules)
	expect.Equal(t, w.verdict, nil, "verdict once it is well again")
	expect.Equal(t, w.ill.IsZero(), true, "counts as well")
}
