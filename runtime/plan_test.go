package runtime_test

import (
	"slices"
	"testing"

	"github.com/margolite/margolite/runtime"
)

// web depends on db; each mounts a volume of its own.
var (
	web = runtime.Replica{Service: "web", Number: 1}
	db  = runtime.Replica{Service: "db", Number: 1}
)

func wanted(containers ...string) runtime.Wanted {
	var w runtime.Wanted
	for _, id := range containers {
		s := runtime.WantedService{Replica: db, Container: id, Volumes: []string{"data"}}
		if id[0] == 'w' {
			s = runtime.WantedService{Replica: web, Container: id, DependsOn: []string{"db"}}
		}
		w.Services = append(w.Services, s)
	}
	return w
}

func observed(state runtime.State, ids ...string) []runtime.ObservedContainer {
	var list []runtime.ObservedContainer
	for _, id := range ids {
		c := runtime.ObservedContainer{ID: id, Service: "db", Number: 1, State: state}
		if id[0] == 'w' {
			c.Service, c.DependsOn = "web", []string{"db"}
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
		Sandboxes:  map[runtime.Replica]bool{db: true, web: true},
		Volumes:    map[string]bool{"data": true},
		Ports:      true,
	}
}

func with(o runtime.Observed, change func(*runtime.Observed)) runtime.Observed {
	change(&o)
	return o
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
				"ensure network", "ensure sandbox db-1", "ensure sandbox web-1", "ensure volume data",
				"create container db-1", "create container web-1", "sync ports",
				"start container db-1", "start container web-1",
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
			plan:     []string{"create container web-1", "stop container web-1", "start container web-1", "delete container web-1"},
		},
		{
			name:     "an update goes on where it was cut off: created",
			observed: complete(observed(runtime.Running, "d1", "w1"), observed(runtime.Created, "w2")),
			wanted:   wanted("d1", "w2"),
			plan:     []string{"stop container web-1", "start container web-1", "delete container web-1"},
		},
		{
			name:     "an update goes on where it was cut off: old one stopped",
			observed: complete(observed(runtime.Running, "d1"), observed(runtime.Created, "w1", "w2")),
			wanted:   wanted("d1", "w2"),
			plan:     []string{"start container web-1", "delete container web-1"},
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
			plan:     []string{"start container web-1", "delete container web-1"},
		},
		{
			name: "a new service gets its sandbox and container, the others stay",
			observed: with(complete(observed(runtime.Running, "d1")), func(o *runtime.Observed) {
				o.Sandboxes = map[runtime.Replica]bool{db: true}
				o.Ports = false
			}),
			wanted: wanted("d1", "w1"),
			plan:   []string{"ensure sandbox web-1", "create container web-1", "sync ports", "start container web-1"},
		},
		{
			name:     "a service that is gone from the project stops, and is deleted at the very end",
			observed: with(complete(observed(runtime.Running, "d1", "w1")), func(o *runtime.Observed) { o.Ports = false }),
			wanted:   wanted("d2"),
			plan: []string{
				"create container db-1", "stop container web-1", "remove sandbox web-1", "sync ports",
				"stop container db-1", "start container db-1", "delete container db-1", "delete container web-1",
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
				o.Containers[1].Recorded = true
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
				Volumes:    map[string]bool{"data": true},
			},
			wanted: wanted("d1", "w1"),
			plan: []string{
				"ensure network", "ensure sandbox db-1", "ensure sandbox web-1", "sync ports",
				"start container db-1", "start container web-1",
			},
		},
		{
			name: "a container that runs outside its sandbox is restarted",
			observed: with(complete(observed(runtime.Running, "d1", "w1")), func(o *runtime.Observed) {
				o.Containers[1].Astray = true
			}),
			wanted: wanted("d1", "w1"),
			plan:   []string{"stop container web-1", "start container web-1"},
		},
		{
			name:     "a volume that somebody deleted is made again",
			observed: with(complete(observed(runtime.Running, "d1", "w1")), func(o *runtime.Observed) { o.Volumes = nil }),
			wanted:   wanted("d1", "w1"),
			plan:     []string{"ensure volume data"},
		},
		{
			name:     "of several old containers none survives",
			observed: complete(observed(runtime.Stopped, "w0"), observed(runtime.Running, "w1", "w2"), observed(runtime.Running, "d1")),
			wanted:   wanted("d1", "w2"),
			plan:     []string{"delete container web-1", "delete container web-1"},
		},
		{
			name: "what is restored from labels alone deletes nothing",
			observed: with(complete(observed(runtime.Running, "d1", "w1"), observed(runtime.Created, "w2")), func(o *runtime.Observed) {
				o.Sandboxes = map[runtime.Replica]bool{db: true}
			}),
			wanted: func() runtime.Wanted {
				w := wanted("d1", "w1")
				w.AsRecorded = true
				return w
			}(),
			plan: []string{"ensure sandbox web-1"},
		},
		{
			name:     "a removal stops in reverse order, and deletes when nothing else is left",
			observed: with(complete(observed(runtime.Running, "d1", "w1")), func(o *runtime.Observed) { o.Ports = false }),
			plan: []string{
				"stop container web-1", "stop container db-1", "remove sandbox web-1", "remove sandbox db-1",
				"sync ports", "remove network", "delete container web-1", "delete container db-1",
			},
		},
		{
			name: "a removal goes on where it was cut off",
			observed: runtime.Observed{
				Containers: observed(runtime.Created, "d1", "w1"),
				Network:    true,
				Ports:      true,
			},
			plan: []string{"remove network", "delete container web-1", "delete container db-1"},
		},
		{
			name:     "there is nothing to remove of what is not there",
			observed: runtime.Observed{Ports: true},
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			var got []string
			for _, step := range runtime.PlanFor(test.observed, test.wanted) {
				got = append(got, step.String())
			}
			if !slices.Equal(got, test.plan) {
				t.Errorf("got\n%q\nwant\n%q", got, test.plan)
			}
		})
	}
}
