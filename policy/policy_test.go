package policy_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/margolite/margolite/policy"
	"github.com/margolite/margolite/test/expect"
)

const (
	idA = "6f1f9d3e-9f4d-4c1c-b9a0-3c1f9f1d2e10"
	idB = "0b5a6b0e-58f5-4f62-8a26-7c0e1a3b9d11"
)

func at(t *testing.T, text string) time.Time {
	t.Helper()
	return expect.Value(time.Parse(time.RFC3339, text))(t).In(zone(t, "Europe/Berlin"))
}

// Whatever changes what runs is an update, and an unknown kind is treated as if
// it did.
func TestApproval(t *testing.T) {
	const rejected, waits, goes = "rejected", "waits", "goes"
	for _, c := range []struct {
		rule                    policy.Approval
		kind                    policy.ChangeKind
		unanswered, ok, refused string
	}{
		{"", policy.Install, goes, goes, rejected},
		{"", policy.Update, goes, goes, rejected},
		{"", policy.Remove, goes, goes, rejected},
		{policy.ApproveNone, policy.Install, goes, goes, rejected},
		{policy.ApproveNone, policy.Update, goes, goes, rejected},
		{policy.ApproveNone, policy.Remove, goes, goes, rejected},
		{policy.ApproveUpdates, policy.Install, goes, goes, rejected},
		{policy.ApproveUpdates, policy.Update, waits, goes, rejected},
		{policy.ApproveUpdates, policy.Remove, waits, goes, rejected},
		{policy.ApproveUpdates, "something new", waits, goes, rejected},
		{policy.ApproveAll, policy.Install, waits, goes, rejected},
		{policy.ApproveAll, policy.Update, waits, goes, rejected},
		{policy.ApproveAll, policy.Remove, waits, goes, rejected},
	} {
		gate := policy.New(policy.Options{Rules: policy.Rules{Approval: c.rule}})
		for answer, want := range map[policy.Answer]string{policy.Unanswered: c.unanswered, policy.Approved: c.ok, policy.Rejected: c.refused} {
			v := gate.Decide(policy.Change{Deployment: idA, Kind: c.kind, Answer: answer}, policy.Situation{})
			got := waits
			switch {
			case v.Go && !v.Rejected && v.Reasons == nil:
				got = goes
			case v.Rejected && !v.Go && v.Reasons == nil:
				got = rejected
			case len(v.Reasons) != 1 || v.Reasons[0].Code != policy.WaitsForApproval || v.Go || v.Rejected || !v.Until.IsZero():
				got = fmt.Sprintf("%+v", v)
			}
			expect.Equal(t, got, want, "rule %q, %s, answer %q", c.rule, c.kind, answer)
		}
	}
}

func TestTheOrderOfTheManifest(t *testing.T) {
	for name, c := range map[string]struct {
		order  policy.Order
		change policy.ChangeKind
		before string
		waits  bool
	}{
		"no order":             {policy.OrderNone, policy.Install, "a", false},
		"no order by default":  {"", policy.Install, "a", false},
		"it is next":           {policy.OrderManifest, policy.Update, "", false},
		"another one is next":  {policy.OrderManifest, policy.Update, "a", true},
		"removals do not wait": {policy.OrderManifest, policy.Remove, "a", false},
	} {
		v := policy.New(policy.Options{Order: c.order}).Decide(policy.Change{Deployment: "b", Kind: c.change}, policy.Situation{Before: c.before})
		if v.Go == c.waits || c.waits && (v.Reasons[0].Code != policy.WaitsForTurn || !strings.Contains(v.Reasons[0].Text, "deployment a")) {
			t.Errorf("%s: %+v", name, v)
		}
	}
}

func TestWhatAChangeWaitsFor(t *testing.T) {
	berlin := zone(t, "Europe/Berlin")
	night := windows(t, berlin, "Mon-Fri 22:00-04:00")
	operator := policy.Lock{Holder: "user operator (1000)", Reason: "line is running", Until: at(t, "2026-06-02T12:05:00Z")}
	const now = "2026-06-02T08:00:00Z" // Tuesday, 10:00
	for name, c := range map[string]struct {
		rules policy.Rules
		now   string
		wrong bool
		locks []policy.Lock
		want  []string // code: text
		until string
	}{
		"nothing":       {rules: policy.Rules{Windows: night}, now: "2026-06-02T20:00:00Z"},
		"an approval":   {rules: policy.Rules{Approval: policy.ApproveAll}, want: []string{"approval: margolite approve " + idA}},
		"a window":      {rules: policy.Rules{Windows: night}, want: []string{"window: opens Tue 22:00 CEST"}, until: "2026-06-02T20:00:00Z"},
		"the next week": {rules: policy.Rules{Windows: night}, now: "2026-06-06T10:00:00Z", want: []string{"window: opens Mon 22:00 CEST"}, until: "2026-06-08T20:00:00Z"},
		"the first of several, by its own clock": {
			rules: policy.Rules{Windows: windows(t, berlin, "Sat 01:00-02:00", "Wed 01:00-02:00 UTC", "Wed 23:00-23:30")},
			want:  []string{"window: opens Wed 01:00 UTC"}, until: "2026-06-03T01:00:00Z",
		},
		"a window that never opens":  {rules: policy.Rules{Windows: policy.Windows{{}}}, want: []string{"window: no window ever opens"}},
		"a clock that is wrong":      {rules: policy.Rules{Windows: night}, now: "2026-06-02T20:00:00Z", wrong: true, want: []string{"clock: the clock may be wrong, so windows cannot be checked"}},
		"no clock, and no need":      {wrong: true},
		"a lock":                     {locks: []policy.Lock{operator}, want: []string{"lock: held by user operator (1000) until 14:05: line is running"}, until: "2026-06-02T12:05:00Z"},
		"a lock without end":         {locks: []policy.Lock{{Holder: "panel"}}, want: []string{"lock: held by panel"}},
		"a lock for days":            {locks: []policy.Lock{{Holder: "panel", Until: at(t, "2026-06-05T06:00:00Z")}}, want: []string{"lock: held by panel until Fri 5 Jun 08:00"}, until: "2026-06-05T06:00:00Z"},
		"a lock on this one":         {locks: []policy.Lock{{Holder: "panel", Deployment: strings.ToUpper(idA)}}, want: []string{"lock: held by panel"}},
		"a lock on another":          {locks: []policy.Lock{{Holder: "panel", Deployment: idB}}},
		"a lock that has ended":      {locks: []policy.Lock{{Holder: "panel", Until: at(t, now)}}},
		"its last instant, a lock's": {now: "2026-06-02T12:04:59Z", locks: []policy.Lock{operator}, want: []string{"lock: held by user operator (1000) until 14:05: line is running"}, until: "2026-06-02T12:05:00Z"},
		"a lock beside a wrong clock": {
			now: "2031-01-01T00:00:00Z", wrong: true, locks: []policy.Lock{operator},
			want: []string{"lock: held by user operator (1000) until Tue 2 Jun 14:05: line is running"},
		},
		"what others wrote": {
			locks: []policy.Lock{{Holder: strings.Repeat("ä", 100), Reason: " a\x1b[31m\nb\xff " + strings.Repeat("c", 1000)}},
			want:  []string{"lock: held by " + strings.Repeat("ä", 64) + "...: a [31m b? " + strings.Repeat("c", 160-10) + "..."},
		},
		"all of them": {
			rules: policy.Rules{Approval: policy.ApproveUpdates, Windows: night},
			locks: []policy.Lock{{Holder: "plc"}, {Holder: "panel", Until: at(t, "2026-06-03T10:00:00Z")}, operator},
			want: []string{
				"approval: margolite approve " + idA,
				"lock: held by plc",
				"lock: held by panel until Wed 3 Jun 12:00",
				"lock: held by user operator (1000) until 14:05: line is running",
				"window: opens Tue 22:00 CEST",
			},
			until: "2026-06-02T12:05:00Z",
		},
	} {
		t.Run(name, func(t *testing.T) {
			if c.now == "" {
				c.now = now
			}
			s := policy.Situation{Now: at(t, c.now), ClockWrong: c.wrong, Locks: c.locks}
			v := policy.New(policy.Options{Rules: c.rules}).Decide(policy.Change{Deployment: idA, Kind: policy.Update}, s)
			var got []string
			for _, r := range v.Reasons {
				got = append(got, string(r.Code)+": "+r.Text)
			}
			expect.Equal(t, got, c.want, "it waits for")
			expect.True(t, v.Go == (len(c.want) == 0) && !v.Rejected, "go %v, rejected %v", v.Go, v.Rejected)
			if c.until == "" && !v.Until.IsZero() || c.until != "" && !v.Until.Equal(at(t, c.until)) {
				t.Errorf("to ask again at %v, want %s", v.Until, c.until)
			}
		})
	}
}

func TestTooManyLocksAreCounted(t *testing.T) {
	now := at(t, "2026-06-02T08:00:00Z")
	var locks []policy.Lock
	for i := range 1000 {
		locks = append(locks, policy.Lock{Holder: "x", Until: now.Add(time.Duration(1000-i) * time.Hour)})
	}
	rules := policy.Rules{Approval: policy.ApproveAll}
	v := policy.New(policy.Options{Rules: rules}).Decide(policy.Change{Deployment: idA, Kind: policy.Update}, policy.Situation{Now: now, Locks: locks})
	last := v.Reasons[len(v.Reasons)-1].Text
	if len(v.Reasons) != 10 || last != "held by 992 more locks" || !v.Until.Equal(now.Add(time.Hour)) {
		t.Errorf("got %d reasons, until %v, the last one %q", len(v.Reasons), v.Until, last)
	}
}

func TestOfOverridesTheFirstThatSetsARuleWins(t *testing.T) {
	night, day := windows(t, time.UTC, "22:00-04:00"), windows(t, time.UTC, "08:00-16:00")
	ask := policy.Hook{Command: []string{"/bin/ask"}, Timeout: 5 * time.Second}
	gate := policy.New(policy.Options{
		Rules: policy.Rules{Approval: policy.ApproveUpdates, Windows: night, Hook: policy.Hook{Command: []string{"/bin/all"}}},
		Overrides: []policy.Override{
			{Deployments: []string{idB, strings.ToUpper(idA)}, Rollback: policy.RollbackOff},
			{Labels: map[string]string{"critical": "yes", "line": "7"}, Approval: policy.ApproveAll, Rollback: policy.RollbackManual, Hook: &ask},
			{Labels: map[string]string{"critical": "yes"}, Approval: policy.ApproveNone, Windows: day, Hook: &policy.Hook{}},
			{Deployments: []string{idB}, Labels: map[string]string{"critical": "yes"}, Windows: policy.Windows{}},
			{Deployments: []string{idB}, Windows: policy.Windows{}},
		},
	})
	all := policy.Hook{Command: []string{"/bin/all"}, Timeout: policy.HookTimeout}
	for name, c := range map[string]struct {
		deployment string
		labels     map[string]string
		want       policy.Rules
	}{
		"none fits":                {"other", nil, policy.Rules{Approval: policy.ApproveUpdates, Windows: night, Rollback: policy.RollbackAuto, Hook: all}},
		"labels of other values":   {"other", map[string]string{"critical": "no", "line": "7"}, policy.Rules{Approval: policy.ApproveUpdates, Windows: night, Rollback: policy.RollbackAuto, Hook: all}},
		"by its id":                {idA, nil, policy.Rules{Approval: policy.ApproveUpdates, Windows: night, Rollback: policy.RollbackOff, Hook: all}},
		"no windows any more":      {idB, nil, policy.Rules{Approval: policy.ApproveUpdates, Windows: policy.Windows{}, Rollback: policy.RollbackOff, Hook: all}},
		"by a label, no hook":      {"other", map[string]string{"critical": "yes"}, policy.Rules{Approval: policy.ApproveNone, Windows: day, Rollback: policy.RollbackAuto}},
		"by both labels":           {"other", map[string]string{"critical": "yes", "line": "7", "x": "y"}, policy.Rules{Approval: policy.ApproveAll, Windows: day, Rollback: policy.RollbackManual, Hook: ask}},
		"by both labels and by id": {idA, map[string]string{"critical": "yes", "line": "7"}, policy.Rules{Approval: policy.ApproveAll, Windows: day, Rollback: policy.RollbackOff, Hook: ask}},
	} {
		t.Run(name, func(t *testing.T) {
			expect.Equal(t, gate.RulesFor(c.deployment, c.labels), c.want, "rules")
		})
	}
	v := gate.Decide(policy.Change{Deployment: idB, Kind: policy.Install}, policy.Situation{Now: at(t, "2026-06-02T12:00:00Z")})
	expect.Equal(t, v.Go, true, "a decision by the rules of its deployment: %+v: go", v)
}

func TestEntriesThatMakeNoSenseAreNamed(t *testing.T) {
	for want, err := range map[string]error{
		`command "ask" is not the absolute path of a program`:       policy.CheckCommand([]string{"ask"}),
		`expected one of never, read-only, below, always, got "rw"`: policy.CheckAccess("rw"),
		`expected an absolute path, without //, .. or a trailing /`: policy.CheckMount("/a/"),
		`write it as /run/a`: policy.CheckMount("/var/run/a"),
		`expected a path without //, .. or a trailing /, got "/dev/../x"`:     policy.CheckDevice("/dev/../x"),
		`write device rule "c 01:1" as "c 1:1"`:                               policy.CheckDevice("c 01:1"),
		`expected a capability such as NET_ADMIN, or ALL or *, got "CAP_BPF"`: policy.CheckCapability("CAP_BPF"),
		`expected one of network, pid, ipc, uts, cgroup, got "user"`:          policy.CheckNamespace("user"),
		`expected one of seccomp, apparmor, systempaths, got "all"`:           policy.CheckUnconfined("all"),
	} {
		expect.True(t, err != nil && err.Error() == want, "got %v, want %s", err, want)
	}
}
