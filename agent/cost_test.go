package agent_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/margolite/margolite/agent/control"
	"github.com/margolite/margolite/policy"
	"github.com/margolite/margolite/runtime/compose"
)

// A container that ends has only its own deployment looked at, and nothing loaded
// as long as the containers are those that were made.
func TestAnEventLoadsNothing(t *testing.T) {
	const deployments = 16
	s := newSite(t)
	id := func(n int) string { return fmt.Sprintf("ad9b614e-8912-45f4-a523-%012d", n) }
	project := func(n int) string { return id(n) + "-main" }
	documents := map[string]string{}
	for n := range deployments {
		documents[id(n)] = document(id(n), fmt.Sprintf("1.0.%d", n))
	}
	s.publish(1, documents)
	for n := range deployments {
		s.heard(id(n), "pending@1", "installing@1", "installed@1")
	}
	steps := func(kind string) (sum int) {
		s.runtime.mu.Lock()
		defer s.runtime.mu.Unlock()
		for step, n := range s.runtime.counts {
			if strings.HasPrefix(step, kind) {
				sum += n
			}
		}
		return sum
	}
	looked := func(n int) {
		t.Helper()
		before := s.runtime.count("intact " + project(n))
		s.runtime.end(project(n))
		s.runtime.poke()
		for end := time.Now().Add(patience); s.runtime.count("intact "+project(n)) == before; time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatal("the deployment whose container ended was not checked")
			}
		}
	}
	for n := range deployments { // each worker has come to rest, and knows that its revision is whole
		looked(n)
	}
	loads, observed, whole := steps("load"), steps("observe"), steps("intact")
	for range 3 {
		looked(7)
	}
	if n := steps("load") - loads; n > 0 {
		t.Errorf("three events led to %d loads of packages, want none", n)
	}
	if n := steps("observe") - observed; n > 0 {
		t.Errorf("three events led to %d looks at everything that runs, want none", n)
	}
	if n := steps("intact") - whole; n != 3 {
		t.Errorf("three events of one deployment had deployments looked at %d times", n)
	}

	// A deployment that is no longer intact is loaded and applied again.
	s.runtime.mu.Lock()
	delete(s.runtime.projects, project(3))
	s.runtime.ended = append(s.runtime.ended, project(3))
	s.runtime.mu.Unlock()
	s.runtime.poke()
	var all []string
	for n := range deployments {
		all = append(all, fmt.Sprintf("%s 1.0.%d", project(n), n))
	}
	s.runtime.await(t, all...)
}

// A status request makes the agent load, fetch and write nothing, even while there
// is a pending change whose difference it shows.
func TestAskingForTheStatusCostsNoWork(t *testing.T) {
	s := newSite(t, ruled(policy.Rules{Approval: policy.ApproveUpdates}))
	s.runtime.services = map[string]map[string]*compose.Service{
		"1.0.0": {"web": {Name: "web", Image: "example/web:1"}}, "2.0.0": {"web": {Name: "web", Image: "example/web:2"}},
	}
	s.installed()
	events, cancel := s.agent.Subscribe()
	defer cancel()
	s.publish(2, map[string]string{first: document(first, "2.0.0")})
	for e := range events { // not by the status, which is under test
		if e.Kind == control.ChangeWaits {
			break
		}
	}
	s.heard(first, "pending@1", "installing@1", "installed@1", "pending@1")
	s.quiet()
	steps := func() (sum int) {
		s.runtime.mu.Lock()
		defer s.runtime.mu.Unlock()
		for step, n := range s.runtime.counts {
			if strings.HasPrefix(step, "load ") || strings.HasPrefix(step, "fetch ") {
				sum += n
			}
		}
		return sum
	}
	before, writes := steps(), s.store.Writes()
	for range 3 {
		status := s.fullStatus()
		if c := status.Deployments[0].Change; c == nil || c.Cut || len(c.Services) != 1 {
			t.Fatalf("the change is %+v, want one changed service", c)
		}
	}
	if n := steps() - before; n != 0 {
		t.Errorf("the status led to %d packages being loaded or fetched, want none", n)
	}
	if n := s.store.Writes() - writes; n != 0 {
		t.Errorf("the status led to %d writes, want none", n)
	}
}
