package policy

import (
	"errors"
	"fmt"
	"slices"
	"sort"
	"strings"
	"time"
)

const (
	// maxWindowText bounds a window's text in bytes.
	maxWindowText = 128
	// farthest is how many days ahead windows are looked for: every window opens once a week, even
	// in a week in which a zone omits a day.
	farthest = 9
)

// dayNames are the days as windows name them, in the order of ranges.
var dayNames = [7]string{"Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"}

const (
	everyDay  = 1<<7 - 1
	wholeDay  = 24 * 60 // minutes
	zoneReach = 26 * time.Hour
)

// Window is a time of day on some days of the week, in local time of one zone. It belongs to the
// days on which it opens: "Fri 22:00-04:00" closes on Saturday. The zero Window is never open.
//
// Local time also decides around clock changes. A window in a repeated hour opens twice. A window
// in a skipped hour opens right after the change, for as long as it would have been open.
type Window struct {
	days       uint8 // a bit for each of dayNames
	start, end int   // minutes since midnight; an end that is not later is on the next day
	zone       *time.Location
}

// Windows is open while any window is. Callers decide what an empty list means; it is never open.
type Windows []Window

// ParseWindow reads a window: days, hours and the zone of the hours. Only the hours are required:
//
//	22:00-04:00                     every day
//	Mon-Fri 22:00-04:00             from Monday evening to Saturday morning
//	Sat,Sun 00:00-24:00             the weekend
//	Sun 02:00-05:00 Europe/Berlin   a zone of the system's database, or UTC
//
// Hours without a zone are in local; nil is UTC. The error names the wrong part.
func ParseWindow(text string, local *time.Location) (Window, error) {
	if len(text) > maxWindowText {
		return Window{}, fmt.Errorf("cannot use window %.20q...: it is longer than %d bytes", text, maxWindowText)
	}
	w, err := readWindow(text, local)
	if err != nil {
		return Window{}, fmt.Errorf("cannot use window %q: %w", text, err)
	}
	return w, nil
}

func readWindow(text string, local *time.Location) (w Window, err error) {
	// Lists and ranges may be written with spaces.
	text = strings.Join(strings.Fields(text), " ")
	text = strings.NewReplacer(" - ", "-", " -", "-", "- ", "-", " , ", ",", " ,", ",", ", ", ",").Replace(text)
	parts := strings.Fields(text)
	hours := slices.IndexFunc(parts, func(p string) bool { return strings.Contains(p, ":") })
	switch {
	case hours < 0:
		return w, errors.New("hours such as 22:00-04:00 are missing")
	case hours > 1:
		return w, fmt.Errorf("%q before the hours is not a list of days such as Mon-Wed,Fri", strings.Join(parts[:hours], " "))
	case len(parts) > hours+2:
		return w, fmt.Errorf("%q after the hours is not a time zone", strings.Join(parts[hours+1:], " "))
	}
	w.days = everyDay
	if hours == 1 {
		if w.days, err = parseDays(parts[0]); err != nil {
			return w, err
		}
	}
	if w.start, w.end, err = parseHours(parts[hours]); err != nil {
		return w, err
	}
	w.zone = local
	if local == nil {
		w.zone = time.UTC
	}
	if len(parts) > hours+1 {
		w.zone, err = findZone(parts[hours+1])
	}
	return w, err
}

func parseDays(text string) (days uint8, err error) {
	for part := range strings.SplitSeq(text, ",") {
		from, to, isRange := strings.Cut(part, "-")
		first, err := parseDay(from)
		if err != nil {
			return 0, err
		}
		last := first
		if isRange {
			if last, err = parseDay(to); err != nil {
				return 0, err
			}
		}
		for d := first; ; d = (d + 1) % 7 { // Sat-Mon wraps around the week
			days |= 1 << d
			if d == last {
				break
			}
		}
	}
	return days, nil
}

func parseDay(text string) (int, error) {
	for i, name := range dayNames {
		if strings.EqualFold(text, name) {
			return i, nil
		}
	}
	return 0, fmt.Errorf("day %q is not one of %s", text, strings.Join(dayNames[:], ", "))
}

func parseHours(text string) (start, end int, err error) {
	from, to, ok := strings.Cut(text, "-")
	if !ok {
		return 0, 0, fmt.Errorf("hours %q have no end; write them as 22:00-04:00", text)
	}
	if start, err = parseTime(from); err != nil {
		return 0, 0, err
	}
	if end, err = parseTime(to); err != nil {
		return 0, 0, err
	}
	switch {
	case start == wholeDay:
		return 0, 0, fmt.Errorf("time %q can only be an end; the day begins at 00:00", from)
	case start == end:
		return 0, 0, fmt.Errorf("hours %q end when they begin; write the whole day as 00:00-24:00", text)
	}
	return start, end, nil
}

// parseTime returns a time of day in minutes since midnight.
func parseTime(text string) (int, error) {
	if text == "24:00" {
		return wholeDay, nil
	}
	t, err := time.Parse("15:04", text)
	if err != nil {
		return 0, fmt.Errorf("time %q is out of range (00:00-24:00)", text)
	}
	return t.Hour()*60 + t.Minute(), nil
}

// findZone uses the system's database, which a small device may lack; UTC is always known.
func findZone(name string) (*time.Location, error) {
	if name == "Local" {
		return nil, errors.New(`time zone "Local" is not allowed: hours without a zone are local`)
	}
	zone, err := time.LoadLocation(name)
	if err != nil {
		return nil, fmt.Errorf("time zone %q is not in this system's time zone database (often the package tzdata); use UTC, or hours without a zone", name)
	}
	return zone, nil
}

// Contains reports whether a window is open at t.
func (ws Windows) Contains(t time.Time) bool {
	_, open := ws.at(t)
	return open
}

// Next returns when a window opens next; t itself while one is open. It is false if none ever will.
func (ws Windows) Next(t time.Time) (time.Time, bool) {
	for _, s := range ws.spans(t) {
		if t.Before(s.start) {
			return s.start, true
		}
		if t.Before(s.end) {
			return t, true
		}
	}
	return time.Time{}, false
}

// End returns when the window open at t closes, including windows that follow without a gap. It is
// false if none is open or it never closes.
func (ws Windows) End(t time.Time) (time.Time, bool) {
	s, open := ws.at(t)
	if !open || s.end.Sub(t) > (farthest-1)*24*time.Hour {
		return time.Time{}, false
	}
	return s.end, true
}

// at returns the time around t for which a window is open.
func (ws Windows) at(t time.Time) (span, bool) {
	for _, s := range ws.spans(t) {
		if !t.Before(s.start) && t.Before(s.end) {
			return s, true
		}
	}
	return span{}, false
}

// span is a time from start until just before end.
type span struct{ start, end time.Time }

// spans are the open times around t and up to farthest ahead: in order, without touching.
func (ws Windows) spans(t time.Time) []span {
	var all []span
	for _, w := range ws {
		if w.days == 0 {
			continue
		}
		year, month, day := t.In(w.zone).Date()
		for d := -2; d <= farthest; d++ { // a window may pass midnight, and longer with a clock change
			date := time.Date(year, month, day+d, 0, 0, 0, 0, time.UTC)
			if w.days&(1<<((int(date.Weekday())+6)%7)) != 0 {
				all = w.openings(all, date)
			}
		}
	}
	sort.SliceStable(all, func(i, j int) bool { return all[i].start.Before(all[j].start) })
	merged := all[:0]
	for _, s := range all {
		if n := len(merged); n > 0 && !s.start.After(merged[n-1].end) {
			if s.end.After(merged[n-1].end) {
				merged[n-1].end = s.end
			}
			continue
		}
		merged = append(merged, s)
	}
	return merged
}

// openings appends the times for which the window of one date is open. The date, start and end are
// local times held as if they were UTC.
func (w Window) openings(all []span, date time.Time) []span {
	start, end := date.Add(time.Duration(w.start)*time.Minute), date.Add(time.Duration(w.end)*time.Minute)
	if w.end <= w.start {
		end = end.Add(24 * time.Hour)
	}
	found := false
	// Each stretch of time without a clock change in turn.
	for at := start.Add(-zoneReach).In(w.zone); at.Before(end.Add(zoneReach)); {
		begins, ends := at.ZoneBounds()
		offset := offsetOf(at)
		s := span{start.Add(-offset).In(w.zone), end.Add(-offset)}
		if !begins.IsZero() && s.start.Before(begins) {
			s.start = begins
		}
		if !ends.IsZero() && s.end.After(ends) {
			s.end = ends
		}
		if s.start.Before(s.end) {
			all, found = append(all, s), true
		}
		if ends.IsZero() || !ends.After(at) {
			break
		}
		at = ends
		if leftOut := !start.Add(-offset).Before(ends) && !end.Add(-offsetOf(ends)).After(ends); leftOut && !found {
			return append(all, span{ends, ends.Add(end.Sub(start))})
		}
	}
	return all
}

// offsetOf returns how far local time is ahead of UTC.
func offsetOf(t time.Time) time.Duration {
	_, seconds := t.Zone()
	return time.Duration(seconds) * time.Second
}
