package e2e

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/margolite/margolite/agent/control"
	"github.com/margolite/margolite/agent/margo"
)

// Workloads do not need the agent: they answer while it is stopped, and it
// touches none of them when it starts without a WFM.
func TestAgentRestartsOffline(t *testing.T) {
	onBackends(t, func(t *testing.T, p *plant) {
		p.running()
		p.install(p.deployment(demoID, nil))
		first := p.answers(8090)
		before := p.services(demoID)
		p.stop()
		check(t, p.wfm.Close())
		check(t, p.registry.Close())
		if a := p.answers(8090); a.Visit != first.Visit+1 {
			t.Errorf("without the agent it says %+v", a)
		}
		p.running()
		p.settled(demoID)
		if after := p.services(demoID); !maps.EqualFunc(before, after, sameTask) {
			t.Errorf("the restart changed services: %+v were %+v", after, before)
		}
		p.kill()
		p.running()
		p.settled(demoID)
		if after := p.services(demoID); !maps.EqualFunc(before, after, sameTask) {
			t.Errorf("kill -9 and a restart changed services: %+v were %+v", after, before)
		}
		p.answers(8090)

		// The WFM is back, as if nothing had been.
		check(t, p.wfm.Start(""))
		check(t, p.registry.Start(""))
		p.install(p.deployment(demoID, map[string]any{"GREETING": "Again"}))
	})
}

func sameTask(a, b control.Service) bool { return a.Container == b.Container && a.Pid == b.Pid }

// settled waits until the agent has looked at a deployment and is content.
func (p *plant) settled(id string) {
	p.t.Helper()
	p.eventually("the deployment runs", func() error {
		services, err := p.servicesOnce(id)
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
func TestRebootWithoutNetwork(t *testing.T) {
	onBackends(t, func(t *testing.T, p *plant) {
		p.running()
		p.install(p.deployment(demoID, map[string]any{"GREETING": "Still here"}))
		first := p.answers(8090)
		p.kill()
		p.powerOff()
		check(t, p.wfm.Close())
		check(t, p.registry.Close())
		if _, err := p.ask(8090); err == nil {
			t.Fatal("the application survived a power cut")
		}
		if p.backend == "debian" {
			p.startContainerd()
		}
		p.running()
		if a := p.answers(8090); a.Greeting != "Still here" || a.Visit != first.Visit+1 {
			t.Errorf("after the reboot it says %+v, want visit %d", a, first.Visit+1)
		}
		if n := len(p.services(demoID)); n != 2 {
			t.Errorf("%d services run, want 2", n)
		}
	})
}

// What dies is started again: a container's process, and a whole shim with
// everything that it kept.
func TestKilledWorkloadsComeBack(t *testing.T) {
	onBackends(t, func(t *testing.T, p *plant) {
		p.running()
		p.install(p.deployment(demoID, nil))
		p.answers(8090)
		before := p.services(demoID)
		process, err := os.FindProcess(before["web"].Pid)
		check(t, err)
		check(t, process.Kill())
		p.eventually("service web has a new process", func() error {
			services, err := p.servicesOnce(demoID)
			if s := services["web"]; err == nil && (s.State != "running" || s.Pid == before["web"].Pid) {
				err = fmt.Errorf("it is %+v", s)
			}
			return err
		})
		p.answers(8090)
		for _, pid := range p.processes("containerd-shim", p.dir) {
			for _, child := range append(p.descendants(pid), pid) {
				if victim, err := os.FindProcess(child); err == nil {
					victim.Kill()
				}
			}
		}
		p.eventually("the application answers again", func() error {
			_, err := p.ask(8090)
			return err
		})
	})
}

// One hundred polls that bring nothing write nothing and ask nothing else.
func TestUnchangedPollsWriteNothing(t *testing.T) {
	onBackends(t, func(t *testing.T, p *plant) {
		p.running()
		p.install(p.deployment(demoID, nil))
		p.delivered()
		check(t, p.control().Sync(t.Context())) // whatever is still on its way
		p.atRest()
		wrote, files := p.written(), p.files()
		asked := len(p.wfm.Requests().Requests())
		const polls = 100
		for range polls {
			check(t, p.control().Sync(t.Context()))
		}
		if n := p.written() - wrote; n != 0 {
			t.Errorf("%d bytes were written during %d unchanged polls, want 0", n, polls)
		}
		if now := p.files(); !maps.Equal(files, now) {
			t.Errorf("files changed: %v, were %v", now, files)
		}
		requests := p.wfm.Requests().Requests()[asked:]
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

// delivered waits until every report was delivered and acknowledged.
func (p *plant) delivered() {
	p.t.Helper()
	p.eventually("every report was delivered", func() error {
		if n := p.status().Outbox; n > 0 {
			return fmt.Errorf("%d are left", n)
		}
		return nil
	})
}

// atRest waits until the agent has written nothing for a while: containerd
// collects garbage a second after the last deletion.
func (p *plant) atRest() {
	p.t.Helper()
	last, since := p.written(), time.Now()
	p.eventually("nothing is written any more", func() error {
		if now := p.written(); now != last {
			last, since = now, time.Now()
		}
		if quiet := time.Since(since); quiet < 2*time.Second {
			return fmt.Errorf("quiet for %s only", quiet)
		}
		return nil
	})
}

// written is how many bytes the agent handed to the kernel for the medium.
func (p *plant) written() int64 {
	p.t.Helper()
	io, err := os.ReadFile(fmt.Sprintf("/proc/%d/io", p.agent.cmd.Process.Pid))
	check(p.t, err)
	for line := range strings.Lines(string(io)) {
		if value, ok := strings.CutPrefix(line, "write_bytes: "); ok {
			n, err := strconv.ParseInt(strings.TrimSpace(value), 10, 64)
			check(p.t, err)
			return n
		}
	}
	p.t.Fatal("no write_bytes in /proc/<pid>/io")
	return 0
}

// files are the files of the state directory with their sizes and times.
func (p *plant) files() map[string]string {
	p.t.Helper()
	all := map[string]string{}
	check(p.t, filepath.Walk(p.stateDir(), func(path string, info os.FileInfo, err error) error {
		if err != nil || info.IsDir() || strings.Contains(path, "/volumes/") {
			return nil //nolint:nilerr // what vanishes while it is looked at is no file
		}
		all[path] = fmt.Sprintf("%d %s", info.Size(), info.ModTime())
		return nil
	}))
	return all
}

// Reports that could not be delivered are delivered when the WFM is back: every
// one, in order, also those of a deployment that is gone by then.
func TestReportsSurviveAnAbsentWFM(t *testing.T) {
	onBackends(t, func(t *testing.T, p *plant) {
		p.running()
		_, err := p.wfm.Faults().Inject(unavailable("status"))
		check(t, err)
		p.publish(p.deployment(demoID, nil))
		p.answers(8090)
		p.eventually("it is installed", func() error { return p.inState(demoID, margo.Installed) })
		p.kill()
		p.running()
		p.remove(demoID)
		p.eventually("it is gone", func() error {
			if n := len(p.status().Deployments); n > 0 {
				return fmt.Errorf("%d deployments", n)
			}
			return nil
		})
		p.kill()
		p.wfm.Faults().Clear("")
		p.running()
		p.await(demoID, margo.Removed, 3)
		var heard []margo.State
		for _, r := range p.wfm.Statuses(demoID) {
			heard = append(heard, r.Status.State)
		}
		want := []margo.State{margo.Pending, margo.Installing, margo.Installed, margo.Removing, margo.Removed}
		if !slices.Equal(heard, want) {
			t.Errorf("the WFM heard %v, want %v", heard, want)
		}
	})
}

// inState says whether the device shows a deployment in a state.
func (p *plant) inState(id string, state margo.State) error {
	for _, d := range p.status().Deployments {
		if d.ID == id && d.State == string(state) {
			return nil
		}
	}
	return fmt.Errorf("not %s", state)
}
