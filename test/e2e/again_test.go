package e2e

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/margolite/margolite/agent/margo"
	"github.com/margolite/margolite/test/plant"
	"github.com/margolite/margolite/test/wfmsim"
)

const idleFile = `
services:
  idle:
    image: ${REGISTRY}/margolite/demoapp:1.0.0
    command: [counter]
    environment: {DATA: /tmp}
    tmpfs: [/tmp, /data]
`

// An update that there was no space for, when it had begun already, is back, and
// comes by itself once there is some; the WFM hears just that.
func TestAnUpdateComesByItselfOnceThereIsSpace(t *testing.T) {
	long(t, "a medium of its own")
	for name, containerd := range backends {
		t.Run(name, func(t *testing.T) {
			medium := smallDisk(t, "192M")
			r := newRigOn(t, plant.Options{Containerd: containerd, State: filepath.Join(medium, "state")})
			check(t, r.Configure(plant.Settings{Settle: 10 * time.Second}))
			r.pushComponent("apps/idle", compose("idle", "1.0.0", idleFile))
			r.running()
			r.install(r.Deployment(demoID, map[string]any{"GREETING": "Hello"}))
			visits := r.answers(8090).Visit

			update := r.Deployment(demoID, map[string]any{"GREETING": "Servus"})
			idle := wfmsim.Component{Name: "idle", Repository: r.Registry.Address() + "/apps/idle", Revision: "1.0.0"}
			update.Components = append([]wfmsim.Component{idle}, update.Components...)
			done := r.publish(update)
			r.eventually("its first component settles", func() error {
				services, err := r.servicesOnce(demoID)
				if err == nil && services["idle"].State != "running" {
					err = fmt.Errorf("services are %+v", services)
				}
				return err
			})
			free := fill(t, medium)
			r.failsWith(demoID, "STORAGE_FULL", done.Version)
			heard := len(r.WFM.Statuses(demoID))
			free()
			r.await(demoID, margo.Installed, done.Version)
			if a := r.says(8090, "Servus"); a.Visit <= visits {
				t.Errorf("it says %+v: its data are not those of visit %d", a, visits)
			}
			var states []margo.State
			for _, report := range r.WFM.Statuses(demoID)[heard:] {
				if s := report.Status.State; s != margo.Failed || len(states) > 0 { // how it went back may be told as well
					states = append(states, s)
				}
			}
			if !slices.Equal(states, []margo.State{margo.Installing, margo.Installed}) {
				t.Errorf("after its failure the WFM heard %v", states)
			}
		})
	}
}

// Of a first installation that does not work nothing runs between its tries, also
// not after a kill in the middle of one. Its volumes stay, and what it said is told.
func TestNothingRunsOfAnInstallationThatDoesNotWork(t *testing.T) {
	long(t, "tries that wait")
	onBackends(t, func(t *testing.T, r *rig) {
		r.running()
		done := r.publish(r.application(labID, "1.0.0", fmt.Sprintf(checkedFile, badCheck), nil))
		fault := r.failsWith(labID, "CONTAINER_UNHEALTHY", done.Version)
		if !containsAll(fault.Message, "web", "output") {
			t.Errorf("the WFM heard %q", fault.Message)
		}
		gone := func(when string) {
			t.Helper()
			r.eventually("nothing is left "+when, func() error {
				if shims := r.Shims(); len(shims) > 0 {
					return fmt.Errorf("shims are %v", shims)
				}
				services, err := r.servicesOnce(labID)
				if err == nil && len(services) > 0 {
					err = fmt.Errorf("services are %+v", services)
				}
				return err
			})
		}
		gone("after the failure")
		r.eventually("it is tried again", func() error {
			if len(r.Shims()) == 0 {
				return errors.New("nothing runs")
			}
			return nil
		})
		r.Kill()
		r.running()
		gone("after a kill")
		volumes, err := filepath.Glob(filepath.Join(r.StateDir(), "volumes", "*", "data"))
		if err == nil && len(volumes) != 1 {
			_, err = os.Stat(filepath.Join(r.StateDir(), "volumes"))
			t.Errorf("volumes are %v (%v), want one", volumes, err)
		}
		check(t, err)
		r.install(r.application(labID, "2.0.0", fmt.Sprintf(checkedFile, goodCheck), nil))
		r.says(8090, "Hello")
	})
}
