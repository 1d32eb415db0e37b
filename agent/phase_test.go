package agent

import "testing"

// The table lists every legal transition; every other pair must be refused.
func TestPhaseTakesOnlyLegalEvents(t *testing.T) {
	phases := []Phase{Forgotten, Fetched, Staged, Applying, Active, Failed, Removing}
	events := []event{eventDesired, eventStaged, eventGo, eventWorks, eventFails, eventAbsent, eventGone}
	type pair struct {
		phase Phase
		event event
	}
	legal := map[pair]Phase{
		{Forgotten, eventDesired}: Fetched,
		{Fetched, eventDesired}:   Fetched,
		{Staged, eventDesired}:    Fetched,
		{Applying, eventDesired}:  Fetched,
		{Active, eventDesired}:    Fetched,
		{Failed, eventDesired}:    Fetched,
		{Removing, eventDesired}:  Fetched,

		{Fetched, eventStaged}: Staged,
		{Failed, eventStaged}:  Staged,
		{Staged, eventGo}:      Applying,
		{Applying, eventWorks}: Active,
		{Failed, eventWorks}:   Active,

		{Fetched, eventFails}:  Failed,
		{Staged, eventFails}:   Failed,
		{Applying, eventFails}: Failed,
		{Active, eventFails}:   Failed,
		{Failed, eventFails}:   Failed,

		{Forgotten, eventAbsent}: Removing,
		{Fetched, eventAbsent}:   Removing,
		{Staged, eventAbsent}:    Removing,
		{Applying, eventAbsent}:  Removing,
		{Active, eventAbsent}:    Removing,
		{Failed, eventAbsent}:    Removing,
		{Removing, eventAbsent}:  Removing,
		{Removing, eventGone}:    Forgotten,
	}
	for _, p := range phases {
		for _, e := range events {
			got, err := next(p, e)
			want, ok := legal[pair{p, e}]
			switch {
			case ok && (err != nil || got != want):
				t.Errorf("next(%q, %q) = %q, %v; want %q", p, e, got, err, want)
			case !ok && err == nil:
				t.Errorf("next(%q, %q) = %q; want an error", p, e, got)
			}
		}
	}
}
