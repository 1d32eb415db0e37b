package agent_test

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/margolite/margolite/agent/control"
	"github.com/margolite/margolite/policy"
	"github.com/margolite/margolite/runtime"
	"github.com/margolite/margolite/runtime/compose"
	"github.com/margolite/margolite/store"
	"github.com/margolite/margolite/test/expect"
)

// What a device does not allow fails by its name, before anything of it is
// fetched but its packages, and what runs goes on.
func TestWhatIsNotAllowedIsNotFetched(t *testing.T) {
	s := newSite(t)
	s.runtime.services = map[string]map[string]*compose.Service{
		"1.0.0": {"web": {Name: "web", Image: "plant.example/web:1"}},
		"2.0.0": {"web": {Name: "web", Image: "plant.example/web:2", Privileged: true}},
	}
	var registries []string
	s.gate.admit(func(_ string, ask policy.Ask) (refused []policy.Refusal) {
		for _, a := range ask.Services {
			registries = append(registries, a.Registry)
			if a.Privileged {
				refused = append(refused, policy.Refusal{Rule: "policy.allow.privileged", Component: a.Component, Service: a.Service, Text: "privileged"})
			}
		}
		return refused
	})
	s.installed()
	s.updates(2, "2.0.0", "pending@1", "installing@1", "installed@1", "pending@1", "failed@2")
	s.heardError(first, "NOT_ALLOWED", "policy.allow.privileged: main/web: privileged")
	s.made("stage 2.0.0", 0)
	s.runtime.await(t, first+"-main 1.0.0")
	s.stop() // the gate is asked no more
	expect.Equal(t, registries[:2], []string{"registry.example", "plant.example"}, "registries of the package and of its image")
}

// That another deployment has a network of the same name is known when it is made.
func TestANetworkOfAnotherDeploymentNeedsARule(t *testing.T) {
	s := newSite(t)
	s.gate.admit(func(_ string, ask policy.Ask) (refused []policy.Refusal) {
		for _, a := range ask.Services {
			for _, name := range a.Shared {
				refused = append(refused, policy.Refusal{Rule: "policy.allow.shared", Component: a.Component, Text: "shares " + name})
			}
		}
		return refused
	})
	s.runtime.rival = second + "-main"
	s.updates(1, "1.0.0", "pending@1", "installing@1", "failed@1")
	s.heardError(first, "NOT_ALLOWED", "policy.allow.shared: main: shares plant")
	s.runtime.set(func() { s.runtime.rival = first + "-more" })
	s.updates(2, "2.0.0", "pending@1", "installing@1", "failed@1", "pending@1", "installing@2", "installed@2")
}

// reserves are services of a project that reserve memory.
func reserves(bytes int64) map[string]*compose.Service {
	return map[string]*compose.Service{"web": {Name: "web", Replicas: 1, Resources: compose.Resources{MemoryReservation: bytes}}}
}

// What deployments reserve counts for those that come later, also after a restart.
func TestWhatOthersReserveIsHeld(t *testing.T) {
	s := newSite(t)
	s.runtime.services = map[string]map[string]*compose.Service{"1.0.0": reserves(20), "2.0.0": reserves(40), "3.0.0": {"web": {Name: "web"}}, "4.0.0": reserves(60)}
	asked := make(chan policy.Ask, 16)
	s.gate.admit(func(id string, ask policy.Ask) []policy.Refusal {
		if id == second {
			asked <- ask
		}
		return nil
	})
	shares := func(held, wanted int64) {
		t.Helper()
		ask := <-asked
		got := policy.Resources{}
		for _, a := range ask.Services {
			got.Memory += a.Reserved.Memory
		}
		expect.Equal(t, ask.Held, policy.Resources{Memory: held}, "held")
		expect.Equal(t, got.Memory, wanted, "wanted")
		if wanted > 0 {
			expect.Equal(t, ask.Device, policy.Resources{CPUs: 1, Memory: 64 << 20, Storage: 1 << 30}, "resources of the device")
		}
	}
	s.installed()
	s.publish(2, map[string]string{first: document(first, "1.0.0"), second: document(second, "2.0.0")})
	s.heard(second, "pending@2", "installing@2", "installed@2")
	shares(20, 40) // and nothing of its own
	forget := func() {
		for len(asked) > 0 {
			<-asked
		}
	}
	s.restart(forget)
	s.publish(3, map[string]string{first: document(first, "1.0.0"), second: document(second, "4.0.0")})
	s.heard(second, "pending@2", "installing@2", "installed@2", "pending@2", "installing@3", "installed@3")
	shares(20, 60)
	forget()
	s.publish(4, map[string]string{first: document(first, "1.0.0"), second: document(second, "3.0.0")})
	s.heard(second, "pending@2", "installing@2", "installed@2", "pending@2", "installing@3", "installed@3", "pending@3", "installing@4", "installed@4")
	shares(0, 0) // who reserves nothing need not know of the others
}

// What a deployment reserves is what it reserved when it was let in: files beside its
// packages may have changed since it was staged.
func TestWhatAChangeReservesWhenItBeginsIsHeld(t *testing.T) {
	s := newSite(t)
	s.runtime.services = map[string]map[string]*compose.Service{"1.0.0": reserves(10)}
	s.gate.close(true)
	s.publish(1, map[string]string{first: document(first, "1.0.0")})
	s.reason(first, "the gate is closed")
	s.runtime.set(func() { s.runtime.services["1.0.0"] = reserves(30) })
	s.gate.close(false)
	s.runtime.poke()
	s.heard(first, installed...)
	expect.Equal(t, s.record().Desired.Summary.Reserved.Memory, 30, "memory that the record reserves")
	expect.Equal(t, s.record().Active.Summary.Reserved.Memory, 30, "memory that the running revision reserves")
}

// unsummarized makes of the records those of a version before summaries.
func unsummarized(st *store.Store) {
	deployments, _ := st.Deployments()
	for i := range deployments {
		d := &deployments[i]
		d.Desired.Summary = nil
		if d.Active != nil {
			d.Active.Summary = nil
		}
	}
	if err := st.Commit("an earlier version", store.Change{Deployments: deployments}); err != nil {
		panic(err)
	}
}

// What an earlier version of this program staged is summarized when it is needed. While
// nobody can tell what it reserves, its share is given to nobody else.
func TestWhatAnEarlierVersionStagedHoldsItsShare(t *testing.T) {
	s := newSite(t)
	half := reserves(40 << 20)
	s.runtime.services = map[string]map[string]*compose.Service{"1.0.0": half, "2.0.0": half}
	s.gate.admit(func(_ string, ask policy.Ask) (refused []policy.Refusal) {
		wanted := ask.Held
		for _, a := range ask.Services {
			wanted = wanted.Plus(a.Reserved)
		}
		if wanted.Memory > 64<<20 {
			refused = []policy.Refusal{{Rule: "policy.allow.reserve", Text: "more than there is"}}
		}
		return refused
	})
	s.gate.close(true)
	one := document(first, "1.0.0")
	s.publish(1, map[string]string{first: one})
	s.eventually("it is staged", func() bool { return s.record().Phase == "staged" })
	s.runtime.fail("load 1.0.0", runtime.InvalidPackage)
	s.change(unsummarized)
	s.publish(2, map[string]string{first: one, second: document(second, "2.0.0")})
	s.reason(second, "cannot tell what deployment "+first+" reserves")
	s.heard(second, "pending@2")

	s.runtime.fail("", "")
	s.configure()
	s.heard(second, "pending@2", "failed@2")
	s.heardError(second, "NOT_ALLOWED", "more than there is")
	s.made("stage 2.0.0", 0)
	s.eventually("its change is told of", func() bool {
		st := s.fullStatus()
		i := slices.IndexFunc(st.Deployments, func(d control.Deployment) bool { return d.ID == first })
		c := st.Deployments[i].Change
		return c != nil && !c.Cut && len(c.Services) == 1
	})
	expect.Equal(t, s.record().Desired.Summary.Reserved.Memory, 40<<20, "memory that the record reserves")
}

// A change that waits is told of as a difference, which is looked up once: a request
// for the status loads, fetches and writes nothing.
func TestStatusTellsWhatAChangeDoes(t *testing.T) {
	s := newSite(t)
	s.runtime.services = map[string]map[string]*compose.Service{
		"1.0.0": {"web": {Name: "web", Image: "plant.example/web:1"}, "old": {Name: "old", Image: "plant.example/old:1"}},
		"2.0.0": {"web": {Name: "web", Image: "plant.example/web:2", CapAdd: []string{"CAP_NET_ADMIN"}}},
	}
	parameters := func(greeting, password string) []string {
		return []string{"  parameters:", "    greeting: {value: " + greeting + ", targets: [{pointer: GREETING, components: [main]}]}", "    code: {value: " + password + ", targets: [{pointer: PASSWORD, components: [main]}]}"}
	}
	s.publish(1, map[string]string{first: document(first, "1.0.0", parameters("Hello", "old-secret")...)})
	s.heard(first, "pending@1", "installing@1", "installed@1")
	change := func() *control.Pending {
		t.Helper()
		st := s.fullStatus()
		expect.Equal(t, len(st.Deployments), 1, "deployments")
		return st.Deployments[0].Change
	}
	expect.Equal(t, change(), nil, "change where nothing waits")
	s.gate.close(true)
	events, cancel := s.agent.Subscribe()
	defer cancel()
	s.publish(2, map[string]string{first: document(first, "2.0.0", parameters("Servus", "new-secret")...)})
	for e := range events { // not by the status, which is under test
		if e.Kind == control.ChangeWaits {
			break
		}
	}
	s.heard(first, append(installed, "pending@1")...)
	s.quiet()
	before, writes := s.runtime.sum("load", "fetch"), s.store.Writes()
	c := change()
	if c == nil || c.Cut || c.Kind != "update" || !strings.HasPrefix(c.Revision, "sha256:") || len(c.Services) != 2 {
		t.Fatalf("told is of %+v", c)
	}
	removed, web := c.Services[0], c.Services[1]
	expect.Equal(t, []string{removed.Service, removed.Change, web.Image.From, web.Image.To}, []string{"old", "removed", "plant.example/web:1", "plant.example/web:2"}, "services")
	expect.Equal(t, web.Privileges.Added, []string{"cap_add NET_ADMIN"}, "privileges")
	var values []string
	for _, p := range c.Parameters {
		values = append(values, *p.From, *p.To)
	}
	expect.Equal(t, values, []string{"(changed)", "(changed)", "Hello", "Servus"}, "parameters")
	change()
	expect.Equal(t, s.runtime.sum("load", "fetch"), before, "packages loaded or fetched for the status")
	s.wroteNothing(writes)

	s.change(s.lose(s.record().Desired.Summary.Effects))
	s.eventually("it is told again when the store has lost it", func() bool { return reflect.DeepEqual(change(), c) })
}
