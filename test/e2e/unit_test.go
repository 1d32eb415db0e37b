package e2e

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/margolite/margolite/test/expect"
	"github.com/margolite/margolite/test/plant"
)

// unitFile has who does what a workload may do that is nobody special, who is
// somebody else, and who has a capability that the site lets it have.
const unitFile = `
services:
  root:
    image: ${REGISTRY}/margolite/tools:1.0.0
    command: [sleep, "${FOR:-100000}"]
    stop_signal: SIGKILL
    ports: ["8096:80"]
    volumes: ["data:/data"]
    networks: [one, two]
  other:
    image: ${REGISTRY}/margolite/tools:1.0.0
    command: [sleep, "100000"]
    stop_signal: SIGKILL
    user: "1000:1001"
    volumes: ["data:/data"]
    tmpfs: [/scratch]
    sysctls: {net.ipv4.ip_unprivileged_port_start: 0}
    healthcheck: {test: [CMD, stat, /], interval: 1s}
    devices: ["/dev/null:/dev/special"]
  network:
    image: ${REGISTRY}/margolite/tools:1.0.0
    command: [sleep, "100000"]
    stop_signal: SIGKILL
    cap_add: [NET_ADMIN, SYS_TIME, SYS_NICE]
    network_mode: host
volumes:
  data: {}
networks:
  one: {}
  two: {internal: true}
`

// What the unit takes from the agent it needs for nothing: it installs, looks
// into, updates and removes what workloads may ask for.
func TestTheAgentNeedsNoMoreThanItsUnitLeaves(t *testing.T) {
	long(t, "rights of the unit")
	for name := range backends {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, name)
			r.Upgrade(withoutCapabilities(t, filepath.Join(plant.ProgramsDir(), "margolite")))
			r.running()
			r.install(r.application(labID, "1.0.0", unitFile, nil))
			for _, service := range []string{"root", "other", "network"} {
				r.shows("exec " + labID + " " + service + " -- touch /tmp/here")
			}
			before := r.services(labID)
			d := r.application(labID, "1.0.0", unitFile, nil)
			d.Parameters["FOR"] = "200000"
			r.install(d)
			after := r.services(labID)
			expect.True(t, !sameTask(before["root"], after["root"]), "the update replaced nothing")
			delete(before, "root")
			delete(after, "root")
			expect.True(t, maps.EqualFunc(before, after, sameTask), "the update replaced %+v by %+v", before, after)
			status := expect.Value(os.ReadFile(fmt.Sprintf("/proc/%d/status", r.Agent())))(t)
			expect.True(t, !strings.Contains(string(status), "CapBnd:\t000001ffffffffff"), "the agent has every capability: %s", status)
			r.shows("check")
		})
	}
}

// withoutCapabilities is a program that starts another one as systemd does by the
// unit: without the capabilities that it names.
func withoutCapabilities(t *testing.T, program string) string {
	t.Helper()
	unit := expect.Value(os.ReadFile("../../packaging/margolite.service"))(t)
	named := regexp.MustCompile(`(?m)^CapabilityBoundingSet=~(.*)$`).FindSubmatch(unit)
	expect.Require(t, named != nil, "the unit takes no capability")
	var without []string
	for name := range strings.FieldsSeq(string(named[1])) {
		without = append(without, "-"+strings.ToLower(strings.TrimPrefix(name, "CAP_")))
	}
	if _, err := exec.LookPath("setpriv"); err != nil {
		t.Skip("needs setpriv")
	}
	wrapper := filepath.Join(t.TempDir(), "unit")
	expect.Check(t, os.WriteFile(wrapper, fmt.Appendf(nil, "#!/bin/sh\nexec setpriv --bounding-set=%s %s \"$@\"\n", strings.Join(without, ","), program), 0o755))
	return wrapper
}
