package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/margolite/margolite/agent/margo"
	"github.com/margolite/margolite/test/plant"
	"github.com/margolite/margolite/test/wfmsim"
)

// The first thing that a WFM hears is what the device is; it hears it again when
// something of it changed, and not otherwise.
func TestCAP01CAP03CapabilitiesComeFirstAndWhenTheyChange(t *testing.T) {
	long(t, "the rest of the protocol")
	r := newRig(t, "embedded")
	heard := func() (times int) {
		r.running()
		check(t, r.Control().Sync(t.Context()))
		r.stop()
		requests := r.WFM.Requests().Requests()
		if first := requests[0].Endpoint; first != wfmsim.EndpointCapabilities {
			t.Errorf("the first request is for %s", first)
		}
		for _, request := range requests {
			if request.Endpoint == wfmsim.EndpointCapabilities {
				times++
			}
		}
		return times
	}
	if n := heard(); n != 1 {
		t.Errorf("capabilities were reported %d times, want once", n)
	}
	if n := heard(); n != 1 {
		t.Errorf("after a restart they were reported %d times, want once", n)
	}
	labelled := usual
	labelled.Labels = map[string]string{"example.com/line": "a"}
	check(t, r.Configure(labelled))
	if n := heard(); n != 2 {
		t.Errorf("after a change they were reported %d times, want twice", n)
	}
	known, err := r.WFM.WaitDevice(t.Context(), plant.Client, plant.Device)
	check(t, err)
	if len(known.Labels) != 1 {
		t.Errorf("the WFM knows labels %v, want the one", known.Labels)
	}
}

// A component that takes longer than its timeout fails its deployment.
func TestAD08InstallationsEndWithTheirTimeout(t *testing.T) {
	long(t, "waits for a timeout")
	r := newRig(t, "embedded")
	r.running()
	d := r.application(labID, "1.0.0", `
services:
  app:
    image: ${REGISTRY}/margolite/tools:1.0.0
    command: [sleep, "100000"]
    stop_signal: SIGKILL
    healthcheck: {test: [CMD, cat, /tmp/nonesuch], interval: 200ms, start_period: 1h}
`, nil)
	d.Components[0].Timeout = "0m2s"
	done := r.publish(d)
	r.await(labID, margo.Failed, done.Version)
	reports := r.WFM.Statuses(labID)
	last := reports[len(reports)-1].Status
	if last.Error == nil || last.Error.Code != "TIMEOUT" || last.Components[0].Error == nil || last.Components[0].Error.Source != "lab" {
		t.Errorf("reported %+v, want the error of a timeout of component lab", last)
	}
	r.await(labID, margo.Removed, r.remove(labID))
}

// Every conversation is begun by the device: the agent listens on no port, but
// on the sockets in its directory, which are for local users.
func TestPOL12POL13NobodyOnTheNetworkReachesTheAgent(t *testing.T) {
	long(t, "sockets of the agent")
	r := newRig(t, "embedded")
	r.running()
	r.install(r.Deployment(demoID, nil))
	own := make(map[string]bool) // inodes of the agent's sockets
	descriptors, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", r.Agent()))
	check(t, err)
	for _, d := range descriptors {
		target, _ := os.Readlink(d) // what was closed meanwhile is no socket
		if inode, ok := strings.CutPrefix(target, "socket:["); ok {
			own[strings.TrimSuffix(inode, "]")] = true
		}
	}
	if len(own) == 0 {
		t.Fatal("the agent has no sockets at all")
	}
	const listening = "0A"
	for _, file := range []string{"tcp", "tcp6"} {
		lines, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/%s", r.Agent(), file))
		check(t, err)
		for line := range strings.Lines(string(lines)) {
			if f := strings.Fields(line); len(f) > 9 && f[3] == listening && own[f[9]] {
				t.Errorf("the agent listens on %s port %s", file, f[1])
			}
		}
	}
}
