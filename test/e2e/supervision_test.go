package e2e

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/margolite/margolite/test/servicemanager"
)

// isTold waits for a message that begins with what, and returns those before it.
func (r *rig) isTold(heard <-chan string, what string) (before []string) {
	r.t.Helper()
	timeout := time.After(2 * time.Minute)
	for {
		select {
		case said := <-heard:
			if strings.HasPrefix(said, what) {
				return before
			}
			before = append(before, said)
		case <-timeout:
			r.t.Fatalf("the agent does not say %q, but %q", what, before)
		}
	}
}

// After a reboot in the middle of nowhere, where not even a link is up, workloads
// come back; then the agent is ready, and says so. It tells that it gets on with
// its work, that it takes over a configuration, and that it stops.
func TestWorkloadsAreBackBeforeTheAgentIsReadyWithoutAnyNetwork(t *testing.T) {
	long(t, "the service manager")
	r := newRig(t, "embedded")
	r.running()
	r.install(r.Deployment(demoID, nil))
	r.Kill()
	r.powerOff()
	nowhere := filepath.Join(r.dir, "nowhere")
	program := filepath.Join(programs.dir, "margolite")
	check(t, os.WriteFile(nowhere, fmt.Appendf(nil, "#!/bin/sh\nexec unshare --net %s \"$@\"\n", program), 0o700))
	r.Upgrade(nowhere)
	manager, heard := servicemanager.Listen(t)
	r.running("NOTIFY_SOCKET="+manager, "WATCHDOG_USEC=2000000")
	r.isTold(heard, "READY=1")
	services, err := r.servicesOnce(demoID)
	check(t, err)
	for _, name := range []string{"counter", "web"} {
		if s := services[name]; s.State != "running" {
			t.Errorf("the agent is ready, and %s is %s", name, s.State)
		}
	}
	if st := r.status(); st.WFM.Reachable || st.SelfCheck == nil || st.SelfCheck.Panics > 0 || len(st.SelfCheck.Problems) > 0 {
		t.Errorf("status is %+v, self-check %+v", st.WFM, st.SelfCheck)
	}
	r.isTold(heard, "WATCHDOG=1")
	check(t, r.Reload())
	r.isTold(heard, "RELOADING=1")
	r.isTold(heard, "READY=1")
	for _, pid := range r.Shims() {
		if environment, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid)); err != nil || bytes.Contains(environment, []byte("NOTIFY_SOCKET")) {
			t.Errorf("a shim could speak for the agent: %v, %q", err, environment)
		}
	}
	r.stop()
	r.isTold(heard, "STOPPING=1")
	r.powerOff()
	r.Upgrade(program)
}
