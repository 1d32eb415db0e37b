package e2e

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/margolite/margolite/agent/margo"
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
	long(t, "the rest of the program")
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

// A mistake of the program in the middle of a change is the failure of one
// deployment: the agent and the others go on, it is told to the WFM, the status and
// the metrics, and what is left half done is put right with the next attempt.
func TestAPanicInTheMiddleOfAChangeIsOneFailedDeployment(t *testing.T) {
	long(t, "the rest of the program")
	const file = `
services:
  tools: {image: "${REGISTRY}/margolite/tools:1.0.0", command: [sleep, "1000"], stop_signal: SIGKILL}
`
	r := newRig(t, "embedded")
	r.running()
	r.install(r.Deployment(demoID, nil))
	other := r.services(demoID)["web"]
	r.stop()
	s := usual
	s.More = "metrics: {listen: '127.0.0.1:9464'}\ncollector: {http: 'http://192.0.2.1:4318'}\n"
	check(t, r.Configure(s))
	r.running("MARGOLITE_PANIC_AT_STEP=after create container tools-1")
	agent := r.Agent()
	done := r.publish(r.application(labID, "1.0.0", file, nil))
	r.await(labID, margo.Failed, done.Version)
	r.await(labID, margo.Installed, done.Version)
	if r.Agent() != agent || !sameTask(r.services(demoID)["web"], other) {
		t.Error("the agent, or another workload, did not live through it")
	}
	var states []margo.State
	for _, report := range r.WFM.Statuses(labID) {
		states = append(states, report.Status.State)
		if e := report.Status.Error; report.Status.State == margo.Failed && (e == nil || e.Code != "DEVICE_ERROR" || !strings.Contains(e.Message, "at step")) {
			t.Errorf("the WFM heard of %+v", e)
		}
	}
	if want := []margo.State{margo.Pending, margo.Installing, margo.Failed}; len(states) < 4 || !slices.Equal(states[:3], want) {
		t.Errorf("the WFM heard %v, want %v and installed", states, want)
	}
	if c := r.status().SelfCheck; c == nil || c.Panics != 1 || c.LastPanic == nil || !strings.Contains(c.LastPanic.Object, labID) {
		t.Errorf("self-check is %+v", c)
	}
	log, err := os.ReadFile(r.LogFile())
	check(t, err)
	if n := bytes.Count(log, []byte("stack=")); n != 1 {
		t.Errorf("the log has %d stacks, want one", n)
	}

	// Over the socket and over TCP, the same.
	text, err := r.margolite("metrics")
	check(t, err)
	res, err := http.Get("http://127.0.0.1:9464/metrics")
	check(t, err)
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	check(t, err)
	for _, text := range []string{text, string(body)} {
		for _, want := range []string{
			"margolite_panics_total 1\n", `margolite_deployments{state="installed"} 2`, "margolite_outbox_reports 0\n",
			fmt.Sprintf("margolite_manifest_version %d\n", done.Version), `margolite_container_memory_bytes{deployment="` + labID + `",component="lab"`,
			`margolite_container_cpu_seconds_total{deployment="` + demoID + `"`,
		} {
			if !strings.Contains(text, want) {
				t.Errorf("metrics lack %q:\n%s", want, text)
			}
		}
	}

	// New containers find the collector, those from before were not made anew for it.
	tools := r.services(labID)["tools"]
	environment, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", tools.Pid))
	check(t, err)
	if !slices.Contains(strings.Split(string(environment), "\x00"), "HTTP_OTEL_EXPORTER_OTLP_ENDPOINT=http://192.0.2.1:4318") {
		t.Errorf("OBS-08: the environment is %q", environment)
	}
}
