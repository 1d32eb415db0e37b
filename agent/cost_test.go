package agent_test

import (
	"fmt"
	"testing"
)

// A container that ends has only its own deployment looked at, and nothing loaded
// as long as the containers are those that were made.
func TestAnEventLoadsNothing(t *testing.T) {
	const deployments = 16
	s := newSite(t)
	project := func(n int) string { return numbered(n) + "-main" }
	documents := map[string]string{}
	for n := range deployments {
		documents[numbered(n)] = document(numbered(n), fmt.Sprintf("1.0.%d", n))
	}
	s.publish(1, documents)
	for n := range deployments {
		s.heard(numbered(n), "pending@1", "installing@1", "installed@1")
	}
	looked := func(n int) {
		t.Helper()
		before := s.runtime.count("intact " + project(n))
		s.runtime.end(project(n))
		s.runtime.poke()
		s.eventually("the deployment whose container ended is checked", func() bool { return s.runtime.count("intact "+project(n)) > before })
	}
	for n := range deployments { // each worker has come to rest, and knows that its revision is whole
		looked(n)
	}
	loads, observed, whole := s.runtime.sum("load"), s.runtime.sum("observe"), s.runtime.sum("intact")
	for range 3 {
		looked(7)
	}
	if n := s.runtime.sum("load") - loads; n > 0 {
		t.Errorf("three events led to %d loads of packages, want none", n)
	}
	if n := s.runtime.sum("observe") - observed; n > 0 {
		t.Errorf("three events led to %d looks at everything that runs, want none", n)
	}
	if n := s.runtime.sum("intact") - whole; n != 3 {
		t.Errorf("three events of one deployment had deployments looked at %d times", n)
	}
}
