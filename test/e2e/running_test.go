package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/margolite/margolite/agent/margo"
	"github.com/margolite/margolite/test/wfmsim"
)

// troubledFile has services that fall ill when a file appears in their volume, and are
// well again when it is gone; one that ends for good, and one that has done its work.
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
  looping:
    image: ${REGISTRY}/margolite/tools:1.0.0
    command: [sh, -c, "while ! test -e /data/looping; do sleep 0.2; done; exit 4"]
    stop_signal: SIGKILL
    restart: always
    volumes: ["data:/data"]
  ended:
    image: ${REGISTRY}/margolite/tools:1.0.0
    command: [sh, -c, "while ! test -e /data/ended; do sleep 0.2; done; exit 3"]
    stop_signal: SIGKILL
    restart: "no"
    volumes: ["data:/data"]
  done:
    image: ${REGISTRY}/margolite/tools:1.0.0
    command: [sh, -c, "exit 0"]
    restart: "no"
volumes: {data: {}}
`

// ST-01 ST-10: after an installation the WFM hears what is wrong with a service for longer
// than the grace time, and when it is well again. Nothing else is done about it.
func TestST10TheWFMHearsWhatReallyRuns(t *testing.T) {
	for code, c := range map[string]struct {
		service, detail string
		recovers        bool
	}{
		"SERVICE_UNHEALTHY":  {"sick", "code 1", true},
		"SERVICE_RESTARTING": {"looping", "4", true},
		"SERVICE_EXITED":     {"ended", "code 3", false},
	} {
		t.Run(code, func(t *testing.T) {
			r := newRig(t, "embedded")
			settings := usual
			settings.Settle, settings.More = time.Second, "reports: {grace: 2s}\n"
			check(t, r.Configure(settings))
			r.running()
			r.install(r.application(labID, "1.0.0", troubledFile, nil))
			watcher := r.services(labID)["watcher"]
			began := time.Now()
			_, err := r.margolite("exec", labID, "watcher", "--", "touch", "/data/"+c.service)
			check(t, err)
			r.heard(labID, 1, margo.Failed)
			reports := r.WFM.Statuses(labID)
			last := reports[len(reports)-1].Status
			for _, f := range []*margo.Fault{last.Error, last.Components[0].Error} {
				if f == nil || f.Code != code || !strings.Contains(f.Message, "service "+c.service+"-1") || !strings.Contains(f.Message, c.detail) {
					t.Errorf("the WFM heard %+v", f)
				}
			}
			if heard := reports[len(reports)-1].Time.Sub(began); heard < 2*time.Second {
				t.Errorf("it was told after %s, before the grace time", heard)
			}
			if d := r.deployment(labID); d.State != string(margo.Failed) || d.Reported == nil || d.Reported.State != d.State {
				t.Errorf("status says %+v", d)
			}
			if c.recovers {
				_, err = r.margolite("exec", labID, "watcher", "--", "busybox", "rm", "/data/"+c.service)
				check(t, err)
				r.heard(labID, 2, margo.Installed)
			}
			if now := r.services(labID)["watcher"]; !sameTask(now, watcher) {
				t.Errorf("a service beside it was touched: %+v, before %+v", now, watcher)
			}
			t.Log(heardOf(r.WFM.Statuses(labID), began))
		})
	}
}

// heardOf tells what the WFM heard, and when.
func heardOf(reports []wfmsim.Report, began time.Time) string {
	var text strings.Builder
	for _, report := range reports {
		fmt.Fprintf(&text, "%8.1f s  %s", report.Time.Sub(began).Seconds(), report.Status.State)
		if f := report.Status.Error; f != nil {
			fmt.Fprintf(&text, "  %s: %s", f.Code, f.Message)
		}
		text.WriteByte('\n')
	}
	return text.String()
}
