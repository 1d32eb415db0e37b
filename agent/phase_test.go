package agent

import (
	"errors"
	"strings"
	"testing"

	"github.com/margolite/margolite/agent/margo"
	"github.com/margolite/margolite/runtime"
	"github.com/margolite/margolite/store"
	"github.com/margolite/margolite/test/expect"
)

// The table lists every legal transition; every other pair must be refused.
func TestPhaseTakesOnlyLegalEvents(t *testing.T) {
	phases := []Phase{Forgotten, Fetched, Staged, Applying, Active, Failed, Leaving, Removing}
	events := []event{
		eventDesired, eventStaged, eventGo, eventWorks, eventFails, eventReturned, eventReopened,
		eventAbsent, eventGone, eventFound,
	}
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
		{Leaving, eventDesired}:   Fetched,
		{Removing, eventDesired}:  Fetched,

		{Fetched, eventStaged}: Staged,
		{Failed, eventStaged}:  Staged,
		{Staged, eventGo}:      Applying,
		{Failed, eventGo}:      Applying,
		{Staged, eventFound}:   Active,
		{Applying, eventWorks}: Active,
		{Failed, eventWorks}:   Active,

		{Fetched, eventFails}:  Failed,
		{Staged, eventFails}:   Failed,
		{Applying, eventFails}: Failed,
		{Active, eventFails}:   Failed,
		{Failed, eventFails}:   Failed,
		{Leaving, eventFails}:  Leaving,
		{Removing, eventFails}: Removing,

		{Fetched, eventReturned}:  Fetched,
		{Staged, eventReturned}:   Staged,
		{Applying, eventReturned}: Failed,
		{Active, eventReturned}:   Failed,
		{Failed, eventReturned}:   Failed,
		{Failed, eventReopened}:   Fetched,
		{Leaving, eventReopened}:  Leaving,

		{Forgotten, eventAbsent}: Leaving,
		{Fetched, eventAbsent}:   Leaving,
		{Staged, eventAbsent}:    Leaving,
		{Applying, eventAbsent}:  Leaving,
		{Active, eventAbsent}:    Leaving,
		{Failed, eventAbsent}:    Leaving,
		{Leaving, eventAbsent}:   Leaving,
		{Leaving, eventGo}:       Removing,
		{Removing, eventGone}:    Forgotten,
	}
	for _, p := range phases {
		for _, e := range events {
			d, err := next(store.Deployment{Phase: string(p)}, e, facts{})
			got := Phase(d.Phase)
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

func TestST03EachPhaseIsReportedAsOneOfTheSixStates(t *testing.T) {
	for phase, want := range map[Phase]margo.State{
		Fetched: "pending", Staged: "pending", Applying: "installing", Active: "installed",
		Failed: "failed", Leaving: "pending", Removing: "removing", Forgotten: "removed",
	} {
		expect.Equal(t, phase.State(), want, "state of phase %q", phase)
	}
}

// A failed update is tried again for faults of the device, and not for what it shows
// about itself.
func TestFaultsThatMayPass(t *testing.T) {
	for code, passes := range map[runtime.Code]bool{
		runtime.NoSpace: true, runtime.Internal: true, runtime.Unreachable: true, runtime.Conflict: true, runtime.Garbled: true,
		runtime.Exited: false, runtime.Unhealthy: false, runtime.StartFailed: false, runtime.Timeout: false,
		runtime.Unsupported: false, runtime.InvalidPackage: false,
	} {
		f := runtimeFault("main", &runtime.Error{Code: code, Object: "web", Err: errors.New("it fails")})
		expect.Equal(t, passing(f.code), passes, "%s, recorded as %s, passes", code, f.code)
	}
}

// Whatever an error quotes, the record of the deployment can be written.
func TestFaultsAreBounded(t *testing.T) {
	s := expect.Value(store.Open(t.TempDir()+"/margolite.db", store.Options{}))(t)
	defer s.Close()
	d := store.Deployment{ID: "d", Phase: string(Failed)}
	for range margo.MaxComponents {
		d.Components = append(d.Components, store.Component{Name: strings.Repeat("x", 200)})
	}
	f := &fault{code: codeExited, err: errors.New(strings.Repeat("\x01ä", 1<<20))}
	f.record(&d, "app")
	expect.OK(t, s.Commit("test", store.Change{Deployments: []store.Deployment{d}}))
	expect.Equal(t, len(d.Fault.Message) <= maxFaultText && strings.HasSuffix(d.Fault.Message, "..."), true, "the message is cut off: %q", d.Fault.Message)
}
