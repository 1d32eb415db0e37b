package e2e

import (
	"fmt"
	"maps"
	"os"
	"testing"

	"github.com/margolite/margolite/agent/control"
	"github.com/margolite/margolite/test/plant"
)

// Workloads do not need the agent: they answer while it is stopped, and it
// touches none of them when it starts without a WFM.
func TestPOL05AgentRestartsOffline(t *testing.T) {
	onBackends(t, func(t *testing.T, r *rig) {
		r.running()
		r.install(r.Deployment(demoID, nil))
		first := r.answers(8090)
		before := r.services(demoID)
		r.stop()
		check(t, r.WFM.Close())
		check(t, r.Registry.Close())
		if a := r.answers(8090); a.Visit != first.Visit+1 {
			t.Errorf("without the agent it says %+v", a)
		}
		r.running()
		r.settled(demoID)
		if after := r.services(demoID); !maps.EqualFunc(before, after, sameTask) {
			t.Errorf("the restart changed services: %+v were %+v", after, before)
		}
		r.Kill()
		r.running()
		r.settled(demoID)
		if after := r.services(demoID); !maps.EqualFunc(before, after, sameTask) {
			t.Errorf("kill -9 and a restart changed services: %+v were %+v", after, before)
		}
		r.answers(8090)

		// The WFM is back, as if nothing had been.
		check(t, r.WFM.Start(""))
		check(t, r.Registry.Start(""))
		r.install(r.Deployment(demoID, map[string]any{"GREETING": "Again"}))
	})
}

func sameTask(a, b control.Service) bool { return a.Container == b.Container && a.Pid == b.Pid }

// settled waits until the agent has looked at a deployment and is content.
func (r *rig) settled(id string) {
	r.t.Helper()
	r.eventually("the deployment runs", func() error {
		services, err := r.servicesOnce(id)
		if err != nil {
			return err
		}
		for _, s := range services {
			if s.State != "running" {
				return fmt.Errorf("service %s is %s", s.Name, s.State)
			}
		}
		if len(services) == 0 {
			return fmt.Errorf("no services")
		}
		return nil
	})
}

// After a reboot workloads come back from what the device holds, without a
// network and with their data.
func TestPKG16RebootWithoutNetwork(t *testing.T) {
	onBackends(t, func(t *testing.T, r *rig) {
		r.running()
		r.install(r.Deployment(demoID, map[string]any{"GREETING": "Still here"}))
		first := r.answers(8090)
		r.Kill()
		r.powerOff()
		check(t, r.WFM.Close())
		check(t, r.Registry.Close())
		if _, err := plant.Ask(t.Context(), 8090); err == nil {
			t.Fatal("the application survived a power cut")
		}
		r.running()
		if a := r.answers(8090); a.Greeting != "Still here" || a.Visit != first.Visit+1 {
			t.Errorf("after the reboot it says %+v, want visit %d", a, first.Visit+1)
		}
		if n := len(r.services(demoID)); n != 2 {
			t.Errorf("%d services run, want 2", n)
		}
	})
}

// What dies is started again: a container's process, and a whole shim with
// everything that it kept.
func TestDS26DS31KilledWorkloadsComeBack(t *testing.T) {
	long(t, "kills at every point")
	onBackends(t, func(t *testing.T, r *rig) {
		r.running()
		r.install(r.Deployment(demoID, nil))
		r.answers(8090)
		before := r.services(demoID)
		process, err := os.FindProcess(before["web"].Pid)
		check(t, err)
		check(t, process.Kill())
		r.eventually("service web has a new process", func() error {
			services, err := r.servicesOnce(demoID)
			if s := services["web"]; err == nil && (s.State != "running" || s.Pid == before["web"].Pid) {
				err = fmt.Errorf("it is %+v", s)
			}
			return err
		})
		r.answers(8090)
		for _, pid := range r.Shims() {
			plant.KillTree(pid)
		}
		r.eventually("the application answers again", func() error {
			_, err := plant.Ask(t.Context(), 8090)
			return err
		})
	})
}
