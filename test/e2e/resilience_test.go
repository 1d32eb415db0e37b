package e2e

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
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

// One hundred polls that bring nothing write nothing and ask nothing else.
func TestDS05UnchangedPollsWriteNothing(t *testing.T) {
	long(t, "hundreds of polls")
	onBackends(t, func(t *testing.T, r *rig) {
		r.running()
		r.install(r.Deployment(demoID, nil))
		r.quiet()
		// Containerd collects garbage a second after the last deletion, and the kernel
		// counts for the agent what others on the same file system bring about, now and
		// then. What polls write comes in each round.
		const polls = 100
		var asked int
		r.eventually("polls write nothing", func() error {
			wrote, files := r.written(), r.files()
			asked = len(r.WFM.Requests().Requests())
			for range polls {
				check(t, r.Control().Sync(t.Context()))
			}
			if n, now := r.written()-wrote, r.files(); n != 0 || !maps.Equal(files, now) {
				return fmt.Errorf("%d bytes were written during %d polls; files are %v, were %v", n, polls, now, files)
			}
			return nil
		})
		requests := r.WFM.Requests().Requests()[asked:]
		if len(requests) < polls {
			t.Errorf("%d requests, want at least %d polls", len(requests), polls)
		}
		for _, r := range requests {
			if r.Endpoint != "manifest" || r.Status != 304 {
				t.Errorf("%s %s was answered %d, want nothing but polls answered 304", r.Method, r.Path, r.Status)
			}
		}
	})
}

// written is how many bytes the agent handed to the kernel for the medium.
func (r *rig) written() int64 {
	r.t.Helper()
	counts, err := plant.Counts(r.Agent(), "io")
	check(r.t, err)
	n, known := counts["write_bytes"]
	if !known {
		r.t.Fatal("no write_bytes in /proc/<pid>/io")
	}
	return n
}

// files are the files of the state directory with their sizes and times.
func (r *rig) files() map[string]string {
	r.t.Helper()
	all := map[string]string{}
	check(r.t, filepath.Walk(r.StateDir(), func(path string, info os.FileInfo, err error) error {
		if err != nil || info.IsDir() || strings.Contains(path, "/volumes/") {
			return nil //nolint:nilerr // what vanishes while it is looked at is no file
		}
		all[path] = fmt.Sprintf("%d %s", info.Size(), info.ModTime())
		return nil
	}))
	return all
}
