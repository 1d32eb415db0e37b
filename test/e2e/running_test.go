package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
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
  fragile:
    image: ${REGISTRY}/margolite/tools:1.0.0
    command: [sh, -c, "while ! test -e /data/fragile; do sleep 0.2; done; exit 5"]
    stop_signal: SIGKILL
    restart: always
    volumes: ["data:/data", {type: bind, source: FILE, target: /file, bind: {create_host_path: false}}]
  done:
    image: ${REGISTRY}/margolite/tools:1.0.0
    command: [sh, -c, "exit 0"]
    restart: "no"
volumes: {data: {}}
`

// ST-01 ST-10: after an installation the WFM hears what is wrong with a service for longer
// than the grace time, and when it is well again. Nothing else is done about it.
func TestST10TheWFMHearsWhatReallyRuns(t *testing.T) {
	long(t, "the rest of the program")
	type change func(r *rig, file string)
	says := func(command ...string) change {
		return func(r *rig, _ string) {
			r.t.Helper()
			_, err := r.margolite(append([]string{"exec", labID, "watcher", "--"}, command...)...)
			check(r.t, err)
		}
	}
	shims := func(signal syscall.Signal) change {
		return func(r *rig, _ string) {
			for _, pid := range r.Shims() {
				check(r.t, syscall.Kill(pid, signal))
			}
		}
	}
	for code, c := range map[string]struct {
		service, detail string
		fall, mend      change // nil: it does not get well
	}{
		"SERVICE_UNHEALTHY":  {"sick", "code 1", says("touch", "/data/sick"), says("busybox", "rm", "/data/sick")},
		"SERVICE_RESTARTING": {"looping", "4", says("touch", "/data/looping"), says("busybox", "rm", "/data/looping")},
		"SERVICE_EXITED":     {"ended", "code 3", says("touch", "/data/ended"), nil},
		"SERVICE_NOT_STARTED": {"fragile", "cannot be started", func(r *rig, file string) {
			check(r.t, os.Rename(file, file+".away"))
			says("touch", "/data/fragile")(r, file)
		}, func(r *rig, file string) {
			says("busybox", "rm", "/data/fragile")(r, file)
			check(r.t, os.Rename(file+".away", file))
		}},
		"SERVICE_NOT_RESPONDING": {"", "does not respond", shims(syscall.SIGSTOP), shims(syscall.SIGCONT)},
	} {
		t.Run(code, func(t *testing.T) {
			r := newRig(t, "embedded")
			settings := usual
			settings.Settle, settings.More = time.Second, "reports: {grace: 2s}\n"
			check(t, r.Configure(settings))
			r.running()
			file := filepath.Join(t.TempDir(), "file")
			check(t, os.WriteFile(file, nil, 0o644))
			r.install(r.application(labID, "1.0.0", strings.ReplaceAll(troubledFile, "FILE", file), nil))
			watcher := r.services(labID)["watcher"]
			began := time.Now()
			c.fall(r, file)
			r.heard(labID, 1, margo.Failed)
			reports := r.WFM.Statuses(labID)
			last := reports[len(reports)-1].Status
			for _, f := range []*margo.Fault{last.Error, last.Components[0].Error} {
				if f == nil || f.Code != code || !strings.Contains(f.Message, "service "+c.service) || !strings.Contains(f.Message, c.detail) {
					t.Errorf("the WFM heard %+v", f)
				}
			}
			if heard := reports[len(reports)-1].Time.Sub(began); heard < 2*time.Second {
				t.Errorf("it was told after %s, before the grace time", heard)
			}
			r.eventually("status says the same", func() error {
				if d := r.deployment(labID); d.State != string(margo.Failed) || d.Reported == nil || d.Reported.State != d.State {
					return fmt.Errorf("status says %+v", d)
				}
				return nil
			})
			if c.mend != nil {
				c.mend(r, file)
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
