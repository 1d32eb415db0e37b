package policy_test

import (
	"strings"
	"testing"
	"time"
	_ "time/tzdata" // the same zones on every machine

	"github.com/margolite/margolite/policy"
	"github.com/margolite/margolite/test/expect"
)

func zone(t *testing.T, name string) *time.Location {
	t.Helper()
	return expect.Value(time.LoadLocation(name))(t)
}

func windows(t *testing.T, local *time.Location, texts ...string) policy.Windows {
	t.Helper()
	var all policy.Windows
	for _, text := range texts {
		w := expect.Value(policy.ParseWindow(text, local))(t)
		all = append(all, w)
	}
	return all
}

func TestWindowsMayBeWrittenInSeveralWays(t *testing.T) {
	for text, same := range map[string]string{
		"8:30-24:00":                        "08:30-24:00",
		"Mon-Sun 00:00-24:00":               "00:00-24:00",
		"mon,SAT,Sun 22:00-00:00":           "Mon,Sat,Sun 22:00-00:00",
		"Sat-Mon 01:00-02:00":               "Mon,Sat,Sun 01:00-02:00",
		"Wed 01:00-02:00 UTC":               "Wed-Wed 01:00-02:00",
		" Mon - Wed , Fri 22:00 - 04:00 ":   "Mon-Wed,Fri 22:00-04:00",
		"Mon,Tue,Wed 01:00-02:00 Etc/GMT+1": "Mon-Wed 01:00-02:00  Etc/GMT+1",
	} {
		expect.Equal(t, windows(t, time.UTC, text), windows(t, time.UTC, same), "%q is read as", text)
	}
}

func TestErrorsNameThePartOfAWindowThatIsWrong(t *testing.T) {
	for text, want := range map[string]string{
		"":                                       "hours such as 22:00-04:00 are missing",
		"Mon-Fri":                                "hours such as 22:00-04:00 are missing",
		"Mon-Fry 22:00-04:00":                    `day "Fry"`,
		"Monday 22:00-04:00":                     `day "Monday"`,
		"Mon, 22:00-04:00":                       `time "Mon,22:00"`,
		"Mon,,Tue 22:00-04:00":                   `day ""`,
		"Mon Tue 22:00-04:00":                    `"Mon Tue" before the hours`,
		"22:00":                                  `hours "22:00" have no end`,
		"22:00-25:00":                            `time "25:00"`,
		"22:60-23:00":                            `time "22:60"`,
		"22:5-23:00":                             `time "22:5"`,
		"24:01-02:00":                            `time "24:01"`,
		"+1:00-02:00":                            `time "+1:00"`,
		"24:00-02:00":                            `time "24:00" can only be an end`,
		"22:00-22:00":                            `the whole day as 00:00-24:00`,
		"22:00-04:00-05:00":                      `time "04:00-05:00"`,
		"22:00-04:00 UTC please":                 `"UTC please" after the hours`,
		"22:00-04:00 23:00-01:00":                `time zone "23:00-01:00"`,
		"22:00-04:00 Europe/Atlantis":            `time zone "Europe/Atlantis" is not in this system's`,
		"22:00-04:00 ../../etc/passwd":           `time zone "../../etc/passwd"`,
		"22:00-04:00 Local":                      `hours without a zone are local`,
		"22:00-04:00" + strings.Repeat(" ", 200): "longer than 128 bytes",
	} {
		expect.ErrorWith(t, expect.ErrorOf(policy.ParseWindow(text, nil)), want, "%q", text)
	}
}

// What the clock on the wall shows decides, of the zone of the window, in
// whichever zone the question is asked.
func TestWindows(t *testing.T) {
	berlin := zone(t, "Europe/Berlin")
	for name, c := range map[string]struct {
		zone    string
		windows []string
		at      string // RFC 3339
		next    string // "": at itself, being open
		end     string // of the window that is open at next
	}{
		"an evening":                               {"UTC", []string{"Mon-Fri 22:00-04:00"}, "2026-06-01T22:00:00Z", "", "2026-06-02T04:00:00Z"},
		"belongs to the day it begins":             {"UTC", []string{"Mon-Fri 22:00-04:00"}, "2026-06-06T03:59:59Z", "", "2026-06-06T04:00:00Z"},
		"and to no other":                          {"UTC", []string{"Mon-Fri 22:00-04:00"}, "2026-06-01T03:00:00Z", "2026-06-01T22:00:00Z", "2026-06-02T04:00:00Z"},
		"the end is outside":                       {"UTC", []string{"Fri 22:00-04:00"}, "2026-06-06T04:00:00Z", "2026-06-12T22:00:00Z", "2026-06-13T04:00:00Z"},
		"a week ahead":                             {"UTC", []string{"Mon 10:00-10:01"}, "2026-06-01T10:01:00Z", "2026-06-08T10:00:00Z", "2026-06-08T10:01:00Z"},
		"two in a row are one":                     {"UTC", []string{"Sat 00:00-24:00", "Sun 00:00-24:00"}, "2026-06-06T12:00:00Z", "", "2026-06-08T00:00:00Z"},
		"the earliest of several":                  {"UTC", []string{"Sun 10:00-11:00", "Sat 10:00-11:00"}, "2026-06-06T09:00:00Z", "2026-06-06T10:00:00Z", "2026-06-06T11:00:00Z"},
		"local time":                               {"Europe/Berlin", []string{"08:00-09:00"}, "2026-06-01T05:59:00Z", "2026-06-01T06:00:00Z", "2026-06-01T07:00:00Z"},
		"a zone of its own":                        {"Europe/Berlin", []string{"08:00-09:00 UTC"}, "2026-06-01T05:59:00Z", "2026-06-01T08:00:00Z", "2026-06-01T09:00:00Z"},
		"the day of its own zone":                  {"UTC", []string{"Mon 00:00-01:00 Pacific/Kiritimati"}, "2026-05-31T09:00:00Z", "2026-05-31T10:00:00Z", "2026-05-31T11:00:00Z"},
		"spring: over the hour that is left out":   {"Europe/Berlin", []string{"01:30-03:30"}, "2026-03-29T00:00:00Z", "2026-03-29T00:30:00Z", "2026-03-29T01:30:00Z"},
		"spring: ends in that hour":                {"Europe/Berlin", []string{"01:30-02:30"}, "2026-03-29T00:00:00Z", "2026-03-29T00:30:00Z", "2026-03-29T01:00:00Z"},
		"spring: begins in it":                     {"Europe/Berlin", []string{"02:30-03:30"}, "2026-03-29T00:00:00Z", "2026-03-29T01:00:00Z", "2026-03-29T01:30:00Z"},
		"spring: all of it":                        {"Europe/Berlin", []string{"02:00-03:00"}, "2026-03-29T00:00:00Z", "2026-03-29T01:00:00Z", "2026-03-29T02:00:00Z"},
		"spring: within it":                        {"Europe/Berlin", []string{"02:15-02:45"}, "2026-03-29T00:00:00Z", "2026-03-29T01:00:00Z", "2026-03-29T01:30:00Z"},
		"spring: at midnight":                      {"America/Sao_Paulo", []string{"Sun 00:00-00:30"}, "2018-11-04T00:00:00Z", "2018-11-04T03:00:00Z", "2018-11-04T03:30:00Z"},
		"spring: the day is an hour shorter":       {"Europe/Berlin", []string{"Sun 00:00-24:00"}, "2026-03-28T12:00:00Z", "2026-03-28T23:00:00Z", "2026-03-29T22:00:00Z"},
		"autumn: over the hour that comes twice":   {"Europe/Berlin", []string{"01:30-03:30"}, "2026-10-24T22:00:00Z", "2026-10-24T23:30:00Z", "2026-10-25T02:30:00Z"},
		"autumn: all of it":                        {"Europe/Berlin", []string{"02:00-03:00"}, "2026-10-24T23:00:00Z", "2026-10-25T00:00:00Z", "2026-10-25T02:00:00Z"},
		"autumn: within it, the first time":        {"Europe/Berlin", []string{"02:15-02:45"}, "2026-10-25T00:00:00Z", "2026-10-25T00:15:00Z", "2026-10-25T00:45:00Z"},
		"autumn: within it, the second time":       {"Europe/Berlin", []string{"02:15-02:45"}, "2026-10-25T00:45:00Z", "2026-10-25T01:15:00Z", "2026-10-25T01:45:00Z"},
		"autumn: ends in it, the first time":       {"Europe/Berlin", []string{"01:30-02:30"}, "2026-10-24T23:00:00Z", "2026-10-24T23:30:00Z", "2026-10-25T00:30:00Z"},
		"autumn: ends in it, the second time":      {"Europe/Berlin", []string{"01:30-02:30"}, "2026-10-25T00:30:00Z", "2026-10-25T01:00:00Z", "2026-10-25T01:30:00Z"},
		"autumn: half an hour comes twice":         {"Australia/Lord_Howe", []string{"01:45-02:15"}, "2026-04-04T14:00:00Z", "2026-04-04T14:45:00Z", "2026-04-04T15:00:00Z"},
		"a day that a zone left out: the next one": {"Pacific/Apia", []string{"Fri 00:00-24:00"}, "2011-12-30T09:00:00Z", "2011-12-30T10:00:00Z", "2011-12-31T10:00:00Z"},
	} {
		t.Run(name, func(t *testing.T) {
			ws := windows(t, zone(t, c.zone), c.windows...)
			parse := func(text string) time.Time {
				at := expect.Value(time.Parse(time.RFC3339, text))(t)
				return at.In(berlin)
			}
			at := parse(c.at)
			want := at
			if c.next != "" {
				want = parse(c.next)
			}
			next, ok := ws.Next(at)
			if !ok || !next.Equal(want) {
				t.Errorf("opens at %v, want %v", next.UTC(), want.UTC())
			}
			expect.Equal(t, ws.Contains(at), c.next == "", "open")
			if end, ok := ws.End(want); !ok || !end.Equal(parse(c.end)) {
				t.Errorf("closes at %v, want %s", end.UTC(), c.end)
			}
		})
	}
}

func TestWindowsThatNeverOpenOrNeverClose(t *testing.T) {
	now := time.Date(2026, 6, 1, 12, 0, 0, 0, time.UTC)
	for name, never := range map[string]policy.Windows{"no window": nil, "the zero window": {policy.Window{}}} {
		if _, ok := never.Next(now); ok || never.Contains(now) {
			t.Errorf("%s opens", name)
		}
		if _, ok := never.End(now); ok {
			t.Errorf("%s closes", name)
		}
	}
	always := windows(t, zone(t, "Europe/Berlin"), "00:00-24:00")
	if end, ok := always.End(now); ok || !always.Contains(now) {
		t.Errorf("a window of every hour closes at %v", end)
	}
	if next, ok := always.Next(now); !ok || !next.Equal(now) {
		t.Errorf("a window of every hour opens at %v", next)
	}
}

// Of a year in zones that change their clocks in all ways, every window opens
// on each of its days, and never for longer than its hours and the hour that
// comes twice.
func TestWindowsAreNeverSkippedAndNeverEndless(t *testing.T) {
	for _, name := range []string{"UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Africa/Cairo", "Africa/Casablanca", "Asia/Beirut"} {
		z := zone(t, name)
		for _, text := range []string{"02:00-03:00", "00:00-00:30", "01:59-02:01", "23:30-00:10", "02:30-02:31"} {
			ws := windows(t, z, text)
			opened, at, until := 0, time.Date(2024, 1, 1, 3, 0, 0, 0, z), time.Date(2025, 1, 1, 3, 0, 0, 0, z)
			for at.Before(until) {
				next, ok := ws.Next(at)
				end, closes := ws.End(next)
				if !ok || !closes || next.Sub(at) > 25*time.Hour || !end.After(next) || end.Sub(next) > 2*time.Hour {
					t.Fatalf("%s in %s: after %v it is open from %v to %v", text, name, at, next, end)
				}
				at, opened = end, opened+1
			}
			expect.True(t, opened >= 366 && opened <= 370, "%s in %s opened %d times in 366 days", text, name, opened)
		}
	}
}

func FuzzParseWindow(f *testing.F) {
	for _, text := range []string{
		"22:00-04:00", "Mon-Fri 22:00-04:00", "Sat,Sun 00:00-24:00 UTC", "Sun 02:00-05:00 Europe/Berlin",
		"Sat - Mon , Wed 8:00 - 9:00", "02:00-03:00 Australia/Lord_Howe", "Mon", "", "24:00-24:00 x/../y",
	} {
		f.Add(text, int64(1774746000))
	}
	f.Fuzz(func(t *testing.T, text string, unix int64) {
		w, err := policy.ParseWindow(text, time.UTC)
		if err != nil {
			return
		}
		ws, at := policy.Windows{w}, time.Unix(unix%(1<<33), 0)
		next, ok := ws.Next(at)
		if !ok || next.Before(at) || next.Sub(at) > 8*24*time.Hour || !ws.Contains(next) || ws.Contains(at) != next.Equal(at) {
			t.Fatalf("%s opens after %v at %v", text, at, next)
		}
		if end, closes := ws.End(next); closes && (!end.After(next) || !ws.Contains(end.Add(-1)) || ws.Contains(end)) {
			t.Fatalf("%s is open from %v to %v", text, next, end)
		}
	})
}
