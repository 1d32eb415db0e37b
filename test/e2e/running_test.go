package e2e

import (
	"fmt"
	"testing"

	"github.com/margolite/margolite/agent/margo"
	"github.com/margolite/margolite/test/expect"
)

// troubledFile has a service that falls ill when a file appears in its volume, and is
// well again when it is gone, and one beside it.
const troubledFile = `
services:
  watcher:
    image: ${REGISTRY}/margolite/tools:1.0.0
    command: [sleep, "100000"]
    stop_signal: SIGKILL
    volumes: ["data:/data"]
  sick:
    image: ${REGISTRY}/margolite/tools:1.0.0
    command: [sleep, "100000"]
    stop_signal: SIGKILL
    healthcheck: {test: [CMD, sh, -c, "test ! -e /data/sick"], interval: 200ms, retries: 1}
    volumes: ["data:/data"]
volumes: {data: {}}
`

// ST-01 ST-10: after an installation the WFM hears what is wrong with a service for longer
// than the grace time, and when it is well again. Nothing else is done about it.
func TestST10TheWFMHearsWhatReallyRuns(t *testing.T) {
	long(t, "health after the installation")
	r := newRig(t, "embedded")
	settings := usual
	settings.More = "reports: {grace: 1s}\n"
	check(t, r.Configure(settings))
	r.running()
	r.install(r.application(labID, "1.0.0", troubledFile, nil))
	watcher := r.services(labID)["watcher"]
	run := func(command ...string) {
		t.Helper()
		expect.Value(r.margolite(append([]string{"exec", labID, "watcher", "--"}, command...)...))(t)
	}
	run("touch", "/data/sick")
	r.heard(labID, 1, margo.Failed)
	if f := r.lastFault(labID); f.Code != "SERVICE_UNHEALTHY" || !containsAll(f.Message, "service sick", "code 1") {
		t.Errorf("the WFM heard %+v", f)
	}
	r.eventually("status says the same", func() error {
		if d := r.deployment(labID); d.State != string(margo.Failed) || d.Reported == nil || d.Reported.State != d.State {
			return fmt.Errorf("status says %+v", d)
		}
		return nil
	})
	run("busybox", "rm", "/data/sick")
	r.heard(labID, 2, margo.Installed)
	if now := r.services(labID)["watcher"]; !sameTask(now, watcher) {
		t.Errorf("a service beside it was touched: %+v, before %+v", now, watcher)
	}
}
