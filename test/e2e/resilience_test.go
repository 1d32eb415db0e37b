package e2e

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"testing"
	"time"

	"github.com/margolite/margolite/agent/control"
	"github.com/margolite/margolite/test/expect"
	"github.com/margolite/margolite/test/plant"
)

// Workloads, their ports and their names work while the agent is stopped or killed:
// nobody who uses them notices, and it touches none of them when it starts without a WFM.
func TestPOL05AgentRestartsOffline(t *testing.T) {
	onBackends(t, func(t *testing.T, r *rig) {
		r.running()
		r.install(r.Deployment(demoID, nil))
		r.answers(8090)
		before := r.services(demoID)
		visits := r.visit()
		for name, gone := range map[string]func(){"stopped": r.stop, "killed": r.Kill} {
			gone()
			expect.Check(t, errors.Join(r.WFM.Close(), r.Registry.Close()))
			r.namesWork(before)
			r.running()
			r.settled(demoID)
			r.namesWork(before)
			if after := r.services(demoID); !maps.EqualFunc(before, after, sameTask) {
				t.Errorf("%s: services are %+v, were %+v", name, after, before)
			}
		}
		if n, err := visits(); err != nil || n == 0 {
			t.Errorf("after %d visits: %v", n, err)
		}

		// The WFM is back, as if nothing had been.
		expect.Check(t, r.WFM.Start(""))
		expect.Check(t, r.Registry.Start(""))
		r.install(r.Deployment(demoID, map[string]any{"GREETING": "Again"}))
	})
}

// namesWork says that programs in containers reach each other by name. It asks no agent.
func (r *rig) namesWork(services map[string]control.Service) {
	r.t.Helper()
	expect.OK(r.t, r.inside(services["web"].Pid, "HEALTH_URL=http://counter:9090/healthz", "/demoapp", "healthy"))
}

// visit visits the published port again and again, until end is called.
func (r *rig) visit() (end func() (visits int, err error)) {
	ctx, stop := context.WithCancel(r.t.Context())
	visits, done := 0, make(chan error, 1)
	go func() {
		var errs []error
		for ctx.Err() == nil {
			if _, err := plant.Ask(ctx, 8090); err == nil {
				visits++
			} else if ctx.Err() == nil {
				errs = append(errs, err)
			}
			select {
			case <-ctx.Done():
			case <-time.After(20 * time.Millisecond):
			}
		}
		done <- errors.Join(errs...)
	}()
	return func() (int, error) {
		stop()
		err := <-done
		return visits, err
	}
}

func sameTask(a, b control.Service) bool { return a.Container == b.Container && a.Pid == b.Pid }

// settled waits until the agent has looked at a deployment and is content.
func (r *rig) settled(id string) {
	r.t.Helper()
	plant.Require(r.t, "the deployment runs", func() error {
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
		expect.Check(t, r.WFM.Close())
		expect.Check(t, r.Registry.Close())
		expect.Require(t, expect.ErrorOf(plant.Ask(t.Context(), 8090)) != nil, "the application survived a power cut")
		r.running()
		if a := r.answers(8090); a.Greeting != "Still here" || a.Visit != first.Visit+1 {
			t.Errorf("after the reboot it says %+v, want visit %d", a, first.Visit+1)
		}
		expect.Equal(t, len(r.services(demoID)), 2, "services run")
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
		process := expect.Value(os.FindProcess(before["web"].Pid))(t)
		expect.Check(t, process.Kill())
		plant.Require(r.t, "service web has a new process", func() error {
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
		r.answers(8090)
	})
}
