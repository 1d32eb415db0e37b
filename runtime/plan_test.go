package runtime_test

import (
	"cmp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/margolite/margolite/runtime"
	"github.com/margolite/margolite/runtime/compose"
	"github.com/margolite/margolite/runtime/container"
	"github.com/margolite/margolite/runtime/health"
	"github.com/margolite/margolite/runtime/network"
	"github.com/margolite/margolite/test/expect"
)

// web depends on db.
var (
	web = runtime.Replica{Service: "web", Number: 1}
	db  = runtime.Replica{Service: "db", Number: 1}

	onDB = []compose.Dependency{{Service: "db", Condition: compose.ConditionStarted, Required: true}}
)

func wanted(containers ...string) runtime.Wanted {
	var w runtime.Wanted
	for _, id := range containers {
		var s runtime.WantedService
		s.Container, s.Replica = id, db
		if id[0] == 'w' {
			s.Replica, s.DependsOn = web, onDB
		}
		s.Sandbox = network.Sandbox{Service: s.Service, Number: 1, Attached: []network.Attachment{{Network: network.Network{Name: "p_default"}}}}
		w.Services = append(w.Services, s)
	}
	return w
}

func observed(state runtime.State, ids ...string) []runtime.ObservedContainer {
	var list []runtime.ObservedContainer
	for _, id := range ids {
		c := runtime.ObservedContainer{Container: container.Container{ID: id, State: state, Labels: container.Labels{Service: "db", Number: 1}}}
		if id[0] == 'w' {
			c.Service, c.DependsOn = "web", onDB
		}
		list = append(list, c)
	}
	return list
}

// complete has everything but the containers given.
func complete(containers ...[]runtime.ObservedContainer) runtime.Observed {
	return runtime.Observed{
		Containers: slices.Concat(containers...),
		Network:    true,
		Swept:      true,
		Sandboxes:  map[runtime.Replica]bool{db: true, web: true},
		Ports:      true,
	}
}

func with(o runtime.Observed, change func(*runtime.Observed)) runtime.Observed {
	change(&o)
	return o
}

// flat is a plan as text: the steps of a sequence are joined by " > ", groups
// are parted by "|".
func flat(p runtime.Plan) []string {
	var all []string
	for i, g := range p.Groups {
		if i > 0 {
			all = append(all, "|")
		}
		for _, s := range g {
			var steps []string
			for _, step := range s {
				steps = append(steps, step.String())
			}
			all = append(all, strings.Join(steps, " > "))
		}
	}
	for _, w := range p.Waits {
		all = append(all, w.String())
	}
	return all
}

func TestPlan(t *testing.T) {
	tests := []struct {
		name     string
		observed runtime.Observed
		wanted   runtime.Wanted
		plan     []string
	}{
		{
			name:   "a first installation makes everything a container needs, then the containers, then starts them in order",
			wanted: wanted("d1", "w1"),
			plan: []string{
				"ensure network p_default", "|",
				"create container db-1", "create container web-1", "|", "sync ports", "|",
				"start container db-1", "web-1 waits for db-1 to start",
			},
		},
		{
			name:     "what runs as wanted is left alone",
			observed: complete(observed(runtime.Running, "d1", "w1")),
			wanted:   wanted("d1", "w1"),
		},
		{
			name:     "an update of one service creates the new container before the old one stops, and touches no other",
			observed: complete(observed(runtime.Running, "d1", "w1")),
			wanted:   wanted("d1", "w2"),
			plan:     []string{"create container web-1", "|", "stop container web-1 > start container web-1 > delete container web-1"},
		},
		{
			name:     "an update goes on where it was cut off: created",
			observed: complete(observed(runtime.Running, "d1", "w1"), observed(runtime.Created, "w2")),
			wanted:   wanted("d1", "w2"),
			plan:     []string{"stop container web-1 > start container web-1 > delete container web-1"},
		},
		{
			name:     "an update goes on where it was cut off: old one stopped",
			observed: complete(observed(runtime.Running, "d1"), observed(runtime.Created, "w1", "w2")),
			wanted:   wanted("d1", "w2"),
			plan:     []string{"start container web-1 > delete container web-1"},
		},
		{
			name:     "an update goes on where it was cut off: new one runs",
			observed: complete(observed(runtime.Running, "d1", "w2"), observed(runtime.Created, "w1")),
			wanted:   wanted("d1", "w2"),
			plan:     []string{"delete container web-1"},
		},
		{
			name:     "going back from an update that failed starts the former container and deletes the new one",
			observed: complete(observed(runtime.Running, "d1"), observed(runtime.Created, "w1"), observed(runtime.Stopped, "w2")),
			wanted:   wanted("d1", "w1"),
			plan:     []string{"start container web-1 > delete container web-1"},
		},
		{
			name: "a new service gets its sandbox and container, the others stay",
			observed: with(complete(observed(runtime.Running, "d1")), func(o *runtime.Observed) {
				o.Network, o.Ports = false, false
			}),
			wanted: wanted("d1", "w1"),
			plan:   []string{"ensure network p_default", "|", "create container web-1", "|", "sync ports", "|", "start container web-1"},
		},
		{
			name:     "a service that is gone from the project stops, and is deleted at the very end",
			observed: with(complete(observed(runtime.Running, "d1", "w1")), func(o *runtime.Observed) { o.Ports, o.Swept = false, false }),
			wanted:   wanted("d2"),
			plan: []string{
				"create container db-1", "|", "stop container web-1", "|", "sync ports > remove network", "|",
				"stop container db-1 > start container db-1 > delete container db-1", "|", "delete container web-1",
			},
		},
		{
			name:     "a crashed container is started",
			observed: complete(observed(runtime.Running, "d1"), observed(runtime.Stopped, "w1")),
			wanted:   wanted("d1", "w1"),
			plan:     []string{"start container web-1"},
		},
		{
			name:     "a container that waits for its next attempt is left alone",
			observed: complete(observed(runtime.Running, "d1"), observed(runtime.Stopped, "w1")),
			wanted: func() runtime.Wanted {
				w := wanted("d1", "w1")
				w.Services[1].Resting = true
				return w
			}(),
		},
		{
			name:     "a one-shot service that is done is recorded, and not started",
			observed: complete(observed(runtime.Running, "d1"), observed(runtime.Done, "w1")),
			wanted:   wanted("d1", "w1"),
			plan:     []string{"record done web-1"},
		},
		{
			name: "a one-shot service that is done stays done",
			observed: with(complete(observed(runtime.Running, "d1"), observed(runtime.Done, "w1")), func(o *runtime.Observed) {
				o.Containers[1].Exited = true
			}),
			wanted: wanted("d1", "w1"),
		},
		{
			name: "another order of dependencies does not recreate a container",
			observed: with(complete(observed(runtime.Running, "d1", "w1")), func(o *runtime.Observed) {
				o.Containers[1].DependsOn = nil
			}),
			wanted: wanted("d1", "w1"),
			plan:   []string{"record order web-1"},
		},
		{
			name: "after a reboot the network comes back and everything starts in order, nothing is created",
			observed: runtime.Observed{
				Containers: observed(runtime.Created, "d1", "w1"),
			},
			wanted: wanted("d1", "w1"),
			plan: []string{
				"ensure network p_default", "|", "sync ports", "|",
				"start container db-1", "web-1 waits for db-1 to start",
			},
		},
		{
			name: "a container that runs outside its sandbox is restarted",
			observed: with(complete(observed(runtime.Running, "d1", "w1")), func(o *runtime.Observed) {
				o.Containers[1].Astray = true
			}),
			wanted: wanted("d1", "w1"),
			plan:   []string{"stop container web-1 > start container web-1"},
		},
		{
			name:     "of several old containers none survives",
			observed: complete(observed(runtime.Stopped, "w0"), observed(runtime.Running, "w1", "w2"), observed(runtime.Running, "d1")),
			wanted:   wanted("d1", "w2"),
			plan:     []string{"delete container web-1 > delete container web-1"},
		},
		{
			name: "what is restored from labels alone deletes nothing",
			observed: with(complete(observed(runtime.Running, "d1", "w1"), observed(runtime.Created, "w2")), func(o *runtime.Observed) {
				o.Network = false
			}),
			wanted: func() runtime.Wanted {
				w := wanted("d1", "w1")
				w.AsRecorded = true
				return w
			}(),
			plan: []string{"ensure network p_default", "|", "sync ports"},
		},
		{
			name: "a removal stops in reverse order, and deletes when nothing else is left",
			observed: with(complete(observed(runtime.Running, "d1", "w1")), func(o *runtime.Observed) {
				o.Ports, o.Swept, o.Stale = false, false, []string{"p_default"}
			}),
			plan: []string{
				"stop container web-1", "|", "stop container db-1", "|",
				"sync ports > remove network p_default", "|", "delete container web-1", "delete container db-1",
			},
		},
		{
			name: "a removal goes on where it was cut off",
			observed: runtime.Observed{
				Containers: observed(runtime.Created, "d1", "w1"),
				Stale:      []string{"p_default"},
				Ports:      true,
			},
			plan: []string{"remove network p_default", "|", "delete container web-1", "delete container db-1"},
		},
		{
			name:     "there is nothing to remove of what is not there",
			observed: runtime.Observed{Ports: true},
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got := flat(runtime.PlanFor(test.observed, test.wanted))
			expect.Equal(t, got, test.plan, "plan")
		})
	}
}

// one makes a case of web, which is there and waits for db, which is in a state.
func one(d compose.Dependency, change func(db *runtime.ObservedContainer, s *runtime.WantedService)) (runtime.Observed, runtime.Wanted) {
	o := complete(observed(runtime.Running, "d1"), observed(runtime.Created, "w1"))
	w := wanted("d1", "w1")
	d.Service = "db"
	w.Services[1].DependsOn = []compose.Dependency{d}
	o.Containers[1].DependsOn = w.Services[1].DependsOn
	change(&o.Containers[0], &w.Services[0])
	return o, w
}

func TestPlanHonoursConditions(t *testing.T) {
	const start = "start container web-1"
	started := compose.Dependency{Condition: compose.ConditionStarted, Required: true}
	healthy := compose.Dependency{Condition: compose.ConditionHealthy, Required: true}
	completed := compose.Dependency{Condition: compose.ConditionCompleted, Required: true}
	type change = func(db *runtime.ObservedContainer, s *runtime.WantedService)
	in := func(state runtime.State, code int) change {
		return func(db *runtime.ObservedContainer, s *runtime.WantedService) {
			db.State, db.ExitCode, db.Exited, s.Resting = state, code, true, true
		}
	}
	fares := func(state health.State) change {
		return func(db *runtime.ObservedContainer, _ *runtime.WantedService) { db.Health.State = state }
	}
	hooked := func(had bool) change {
		return func(db *runtime.ObservedContainer, s *runtime.WantedService) { db.Hooked, s.Hooks = had, true }
	}
	tests := []struct {
		name     string
		on       compose.Dependency
		is       change
		plan     string
		optional string // the plan when web can do without db; empty: the same
		never    bool
	}{
		{"started: it runs", started, fares(""), start, "", false},
		{"started: it is done", started, in(runtime.Done, 0), start, "", false},
		{"started: it failed and rests", started, in(runtime.Stopped, 1), start, "", false},
		{"started: its hooks are to run", started, hooked(false), "run hooks db-1 | web-1 waits for db-1 to run its hooks", "", false},
		{"started: its hooks ran", started, hooked(true), start, "", false},
		{"healthy: it is", healthy, fares(health.Healthy), start, "", false},
		{"healthy: not yet", healthy, fares(health.Starting), "web-1 waits for db-1 to be healthy", "", false},
		{"healthy: it is not", healthy, fares(health.Unhealthy), "web-1 waits for db-1 to be healthy, which it is not", start, false},
		{"healthy: nothing checks", healthy, fares(""), "web-1 waits for db-1 to be healthy, which nothing checks", start, true},
		{"healthy: it ended well", healthy, in(runtime.Done, 0), "web-1 waits for db-1 to be healthy, which has ended", start, true},
		{"healthy: it ended badly", healthy, in(runtime.Stopped, 2), "web-1 waits for db-1 to be healthy, which has ended", start, true},
		{"completed: it is done", completed, in(runtime.Done, 0), start, "", false},
		{"completed: it ended well, and would run again", completed, in(runtime.Stopped, 0), start, "", false},
		{"completed: it runs", completed, fares(""), "web-1 waits for db-1 to complete", "", false},
		{"completed: it ended badly", completed, in(runtime.Stopped, 2), "web-1 waits for db-1 to complete, which ended with code 2", start, true},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			check := func(on compose.Dependency, want string) runtime.Plan {
				t.Helper()
				o, w := one(on, test.is)
				plan := runtime.PlanFor(o, w)
				expect.Equal(t, strings.Join(flat(plan), " | "), want, "plan")
				return plan
			}
			if plan := check(test.on, test.plan); len(plan.Waits) > 0 && plan.Waits[0].Never != test.never {
				t.Errorf("that it never comes to that is said to be %t", plan.Waits[0].Never)
			} else if failed := strings.Contains(test.plan, ", which"); len(plan.Waits) > 0 && plan.Waits[0].Undecided == failed {
				t.Errorf("that it is undecided is said to be %t", plan.Waits[0].Undecided)
			}
			optional := test.on
			optional.Required = false
			check(optional, cmp.Or(test.optional, test.plan))
		})
	}
	t.Run("what is scaled to nothing is passed over", func(t *testing.T) {
		w := wanted("w1")
		w.Services[0].DependsOn = []compose.Dependency{{Service: "db", Condition: compose.ConditionHealthy, Required: true}}
		o := complete(observed(runtime.Created, "w1"))
		o.Containers[0].DependsOn = w.Services[0].DependsOn
		expect.Equal(t, flat(runtime.PlanFor(o, w)), []string{start}, "plan")
	})
}

func TestPlanRestartsDependentsOfWhatWasReplaced(t *testing.T) {
	now := time.Now()
	const again = "stop container web-1 > start container web-1"
	tests := []struct {
		name               string
		restart            bool
		replaced, webSince time.Time
		want               string
	}{
		{"it was replaced since", true, now.Add(-time.Minute), now.Add(-time.Hour), again},
		{"it was replaced before", true, now.Add(-time.Hour), now.Add(-time.Minute), ""},
		{"it was replaced since, and nobody asked for it", false, now.Add(-time.Minute), now.Add(-time.Hour), ""},
		{"by the clock, it was made after it started", true, now.Add(time.Hour), now.Add(-time.Hour), ""},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			o := complete(observed(runtime.Running, "d1", "w1"))
			w := wanted("d1", "w1")
			on := []compose.Dependency{{Service: "db", Condition: compose.ConditionStarted, Required: true, Restart: test.restart}}
			o.Containers[1].DependsOn, w.Services[1].DependsOn = on, on
			o.Containers[0].Created, o.Containers[0].Started = test.replaced, now
			o.Containers[1].Started = test.webSince
			expect.Equal(t, strings.Join(flat(runtime.PlanFor(o, w)), " | "), test.want, "plan")
		})
	}
}

func TestPlanStartsOnlyWhereTheSharedNetworkIs(t *testing.T) {
	o := complete(observed(runtime.Running, "d1"), observed(runtime.Created, "w1"))
	w := wanted("d1", "w1")
	w.Services[1].Sandbox = w.Services[0].Sandbox
	expect.Equal(t, flat(runtime.PlanFor(o, w)), []string{"start container web-1"}, "plan")
	o.Sandboxes = map[runtime.Replica]bool{db: true}
	expect.Equal(t, flat(runtime.PlanFor(o, w)), []string{"web-1 waits for db-1, whose network it shares"}, "plan")
}
