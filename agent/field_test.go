package agent_test

import (
	"strings"
	"testing"

	"github.com/margolite/margolite/agent/margo"
)

// What a deployment was refused by may change: it is judged again, and not at any other
// time.
func TestAFinalVerdictIsJudgedAgain(t *testing.T) {
	elsewhere := strings.Replace(document(first, "1.0.0"), deviceID, "edge-02", 1)
	for name, change := range map[string]func(s *site){
		"with another device id": func(s *site) {
			set := s.settings()
			set.Device.ID = "edge-02"
			s.agent.Configure(set)
		},
		"at a start, by the id that the WFM gave": func(s *site) {
			s.stop()
			s.wfm.set(func() { s.wfm.clientID = "edge-02" })
			s.start()
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			s.publish(1, map[string]string{first: elsewhere})
			s.heard(first, "pending@1", "failed@1")
			s.restart()
			s.agent.Configure(s.settings())
			s.publish(2, map[string]string{first: elsewhere, second: document(second, "1.0.0")})
			s.heard(second, "pending@2", "installing@2", "installed@2")
			s.heard(first, "pending@1", "failed@1")
			change(s)
			s.heard(first, "pending@1", "failed@1", "pending@1", "installing@2", "installed@2")
		})
	}
}

// An id that is no UUID but safe is run, with a project of its own; one that is not
// safe fails alone.
func TestDeploymentIDsThatAreNoUUIDs(t *testing.T) {
	s := newSite(t)
	const odd, unsafe = "Self.Test~App", "../../app"
	s.publish(1, map[string]string{first: document(first, "1.0.0"), odd: document(odd, "1.0.0"), unsafe: document(unsafe, "1.0.0")})
	s.heard(first, "pending@1", "installing@1", "installed@1")
	s.heard(odd, "pending@1", "installing@1", "installed@1")
	s.heard(unsafe, "failed@1")
	if last := s.wfm.last(unsafe); last.Error == nil || last.Error.Code != "INVALID_ID" || last.State != margo.Failed {
		t.Errorf("the WFM heard %+v", last)
	}
	for _, project := range s.runtime.running() {
		if name, _, _ := strings.Cut(project, " "); strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789_-") != "" {
			t.Errorf("a project is called %q", name)
		}
	}
	s.restart()
	s.publish(2, map[string]string{first: document(first, "1.0.0")})
	s.heard(odd, "pending@1", "installing@1", "installed@1", "removing@2", "removed@2")
	s.heard(unsafe, "failed@1")
}
