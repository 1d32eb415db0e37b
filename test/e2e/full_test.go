package e2e

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/margolite/margolite/agent/margo"
	"github.com/margolite/margolite/test/isolated"
	"github.com/margolite/margolite/test/plant"
)

// A device full to the last block keeps running and recovers: an update is
// refused and said to be, what runs is not touched, the agent starts, and what
// dies comes back. With space all goes on by itself.
func TestAFullDeviceKeepsRunningAndRecovers(t *testing.T) {
	long(t, "a medium of its own")
	for name, containerd := range backends {
		t.Run(name, func(t *testing.T) {
			medium := isolated.Disk(t, "ext4", 192<<20)
			r := newRigOn(t, plant.Options{Containerd: containerd, State: filepath.Join(medium, "state")})
			r.running()
			r.install(r.Deployment(demoID, map[string]any{"GREETING": "Hello"}))
			r.answers(8090)
			r.quiet()
			before := r.services(demoID)

			free := isolated.Fill(t, medium)
			done := r.publish(r.Deployment(demoID, map[string]any{"GREETING": "Hello", "TAG": "2.0.0"}))
			report, err := r.Await(t.Context(), demoID, margo.Failed, done.Version)
			check(t, err)
			if body := string(report.Body); !strings.Contains(body, "STORAGE_FULL") || !strings.Contains(body, "demoapp:2.0.0") || !strings.Contains(body, "reserved") {
				t.Errorf("it reported %s", body)
			}
			untouched := func(when string) {
				t.Helper()
				if after := r.services(demoID); !maps.EqualFunc(before, after, sameTask) {
					t.Errorf("%s services are %+v, were %+v", when, after, before)
				}
				check(t, r.pageIsThere())
			}
			untouched("on a full device")

			r.stop()
			r.running()
			r.settled(demoID)
			untouched("after a restart of the agent")
			r.Kill()
			r.running()
			r.settled(demoID)
			untouched("after a kill of the agent")

			// What dies comes back, though nothing can be written.
			web, err := os.FindProcess(before["web"].Pid)
			check(t, err)
			check(t, web.Kill())
			r.eventually("service web runs again", func() error {
				services, err := r.servicesOnce(demoID)
				if s := services["web"]; err == nil && (s.State != "running" || s.Pid == before["web"].Pid) {
					err = fmt.Errorf("it is %+v", s)
				}
				return err
			})
			r.eventually("the page is there", r.pageIsThere)

			free()
			r.await(demoID, margo.Installed, done.Version)
			if a := r.answers(8090); a.Version != "2.0.0" {
				t.Errorf("the application says %+v", a)
			}
			r.quiet()
		})
	}
}

// pageIsThere asks the application, which can count no visits on a full device
// and says so.
func (r *rig) pageIsThere() error {
	r.t.Helper()
	_, err := plant.Ask(r.t.Context(), 8090)
	if err != nil && strings.Contains(err.Error(), "/next answered 500") {
		return nil
	}
	return err
}
