package e2e

import (
	"fmt"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/margolite/margolite/agent/margo"
	"github.com/margolite/margolite/test/wfmsim/registry"
)

const admittedFile = `
services:
  tools:
    image: ${REGISTRY}/margolite/tools:1.0.0
    command: [sleep, "100000"]
    stop_signal: SIGKILL
`

// What would take over the device is refused before any image of it is fetched,
// and what ran before runs on; the site may allow it.
func TestPOL07WhatTakesOverTheDeviceIsRefused(t *testing.T) {
	long(t, "what a site allows")
	r := newRigRuled(t, nil)
	r.install(r.application(labID, "1.0.0", admittedFile, nil))
	before := r.services(labID)
	asked := len(r.Registry.Requests().Requests())
	file := strings.Replace(admittedFile, "tools:1.0.0", "demoapp:2.0.0", 1)
	done := r.publish(r.application(labID, "2.0.0", file+"    pid: host\n", nil))
	if fault := r.failsWith(labID, "NOT_ALLOWED", done.Version); !containsAll(fault.Message, "policy.allow.namespaces", "tools") {
		t.Errorf("the WFM heard %q, want the rule and the service", fault.Message)
	}
	r.Kill()
	r.running()
	r.settled(labID)
	r.quiet()
	r.untouched(labID, before)
	for _, q := range r.Registry.Requests().Requests()[asked:] {
		if strings.Contains(q.Path, "demoapp") && (q.Endpoint == registry.EndpointManifest || q.Endpoint == registry.EndpointBlob) {
			t.Errorf("the image of what is refused was asked for: %s", q.Path)
		}
	}
	done = r.publish(r.application(labID, "3.0.0", admittedFile+"    privileged: true\n", nil))
	r.failsWith(labID, "NOT_ALLOWED", done.Version)
	r.untouched(labID, before)
	check(t, r.Reconfigure(ruled(map[string]string{"allow": "{privileged: true}"})))
	r.await(labID, margo.Installed, done.Version)
	out, err := r.margolite("exec", labID, "tools", "--", "grep", "CapEff", "/proc/1/status")
	check(t, err)
	var powers uint64
	if _, err := fmt.Sscanf(out, "CapEff: %x", &powers); err != nil || powers&(1<<unix.CAP_SYS_ADMIN) == 0 {
		t.Errorf("what is privileged has the powers %q, %v", out, err)
	}
}
