package neighbours

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/margolite/margolite/agent/control"
	"github.com/margolite/margolite/agent/margo"
	"github.com/margolite/margolite/test/plant"
	"github.com/margolite/margolite/test/wfmsim"
)

// Duty is something that goes on whatever a neighbour does.
type Duty string

// The duties.
const (
	Status   Duty = "status"   // margolite status --json
	Logs     Duty = "logs"     // margolite logs, of a neighbour
	Exec     Duty = "exec"     // margolite exec, in a neighbour
	Approval Duty = "approval" // of an update: from margolite approve until the new revision runs
	Rollback Duty = "rollback" // from margolite rollback until the former revision runs
	Removal  Duty = "removal"  // that the WFM orders, until it hears of it
	Install  Duty = "install"  // of a new deployment, until the WFM hears of it
	Restart  Duty = "restart"  // of a service that was killed
	Probes   Duty = "probes"   // until the next health check of a neighbour
	Polls    Duty = "polls"    // until the next poll that the WFM answers
	Reports  Duty = "reports"  // until the WFM hears for the first time of a new deployment
	Start    Duty = "start"    // of a killed agent: until it answers, and what ended meanwhile runs
	Cleanup  Duty = "cleanup"  // once the hog is gone: until nothing is left of it, and of anybody
)

// acceptable are the longest times that somebody in front of a device would wait for
// duties. The long form alone holds the agent to them.
var acceptable = map[Duty]time.Duration{
	Status: 5 * time.Second, Logs: 10 * time.Second, Exec: 10 * time.Second,
	Approval: 60 * time.Second, Rollback: 60 * time.Second, Removal: 60 * time.Second, Install: 90 * time.Second,
	Restart: 15 * time.Second, Probes: 12 * time.Second, Polls: 15 * time.Second, Reports: 30 * time.Second,
	Start: 60 * time.Second, Cleanup: 120 * time.Second,
}

// patience bounds the wait for a duty where time is not what is tested: one that a hog
// holds up for that long is never done.
const patience = 5 * time.Minute

// bound is how long a duty may take beside a hog.
func (s *Site) bound(h Hog, d Duty) time.Duration {
	if !s.Long {
		return patience
	}
	return cmp.Or(h.Bounds[d], acceptable[d])
}

// Names of the neighbours.
const (
	turned   = "turned"   // is rolled back
	gated    = "gated"    // has an update that waits for an approval
	leaving  = "leaving"  // is removed
	arriving = "arriving" // is installed
	ending   = "ending"   // is killed
	checked  = "checked"  // has a health check
)

// neighbour is an application of one small service.
func neighbour(name string, revision int) application {
	service := map[string]string{
		checked: `
    healthcheck: {test: [CMD, sh, -c, "echo >>/data/probes"], interval: 1s, timeout: 10s, retries: 3}
    volumes: ["data:/data"]
volumes: {data: {}}`,
	}[name]
	tag := "1.0.0"
	if name == arriving {
		tag = "2.0.0" // has to be fetched
	}
	return application{name: name, revision: revision, compose: fmt.Sprintf(`
services:
  app:
    image: ${REGISTRY}/%s:%s
    command: [sh, -c, "echo revision ${REVISION}; exec sleep 1000000"]
    environment: {NEIGHBOUR: %s, REVISION: "${REVISION}"}
    stop_signal: SIGKILL
    restart: always%s
`, tools, tag, name, service)}
}

// Settle installs the neighbours: one of them has a former revision to go back to,
// and one an update that waits to be approved.
func (s *Site) Settle() {
	s.T.Helper()
	s.install(neighbour(turned, 1), neighbour(gated, 1), neighbour(leaving, 1), neighbour(ending, 1), neighbour(checked, 1))
	s.install(neighbour(turned, 2))
	check(s.T, s.Reconfigure(s.settings("updates")))
	_, err := s.publish(neighbour(gated, 2))
	check(s.T, err)
	ctx := s.T.Context()
	check(s.T, plant.Eventually(ctx, func() error {
		status, err := s.Control().Status(ctx)
		if err != nil {
			return err
		}
		d := deployment(status, gated)
		if d == nil || d.Change == nil || !slices.ContainsFunc(d.Change.Reasons, func(r control.Reason) bool { return r.Code == "approval" }) {
			return fmt.Errorf("%s waits for no approval: %+v", gated, d)
		}
		return nil
	}))
}

// done carries out a duty, notes the longest time that it took, and says whether it
// was done. It may be called from any goroutine.
func (s *Site) done(ctx context.Context, h Hog, d Duty, do func(context.Context) error) bool {
	ctx, cancel := context.WithTimeout(ctx, s.bound(h, d))
	defer cancel()
	begun := time.Now()
	err := do(ctx)
	took := time.Since(begun)
	if cause := context.Cause(ctx); err != nil && errors.Is(cause, errEnded) {
		err = cause
	}
	if err != nil {
		s.T.Errorf("beside %s: %s after %s: %v", h.Name, d, took, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.took[d] = max(s.took[d], took)
	return err == nil
}

// errEnded says that the agent ended although nobody told it to.
var errEnded = errors.New("the agent has ended by itself")

// whileRunning is done when the agent, which runs, ends by itself.
func (s *Site) whileRunning(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	ended := s.Done()
	go func() {
		select {
		case <-ended:
			cancel(errEnded)
		case <-ctx.Done():
		}
	}()
	return ctx, func() { cancel(nil) }
}

// Beside carries out all duties beside a hog, from before its beginning until nothing
// is left of it.
func (s *Site) Beside(h Hog) {
	s.T.Helper()
	ctx, stop := s.whileRunning(s.T.Context())
	defer stop()
	started := h.Begin(s)
	if started.Effect != nil {
		effect, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		if err := plant.Until(effect, func() error { return started.Effect(effect) }); err != nil {
			s.T.Errorf("%s has no effect: %v", h.Name, err)
		}
	}
	used, begun := s.processorTime(), time.Now()
	s.beside(ctx, h)
	load := float64(s.processorTime()-used) / float64(time.Since(begun))
	s.restart(h)
	ctx, stop = s.whileRunning(s.T.Context())
	defer stop()
	s.done(ctx, h, Cleanup, func(ctx context.Context) error {
		return errors.Join(started.End(ctx), s.asBefore(ctx))
	})
	memory := s.memory()
	if memory > agentMemory {
		s.T.Errorf("beside %s: the agent has had %d MiB of memory, want at most %d", h.Name, memory>>20, agentMemory>>20)
	}
	if most := agentLoad + h.Load; !s.Short && load > most {
		s.T.Errorf("beside %s: the agent has used %.2f processors, want at most %.2f", h.Name, load, most)
	}
	s.T.Logf("beside %s: %d MiB, %.2f processors, %v", h.Name, memory>>20, load, s.took)
}

// least is for how long duties are carried out, so that what is late shows and the
// agent's share of the processors is one of more than the installation.
func (s *Site) least() time.Duration {
	if s.Short {
		return 0
	}
	return 15 * time.Second
}

// beside carries out the duties that need an agent that runs.
func (s *Site) beside(ctx context.Context, h Hog) {
	s.T.Helper()
	stop := make(chan struct{})
	var always, once sync.WaitGroup
	again := func(d Duty, do func(context.Context) error) {
		always.Go(func() {
			for s.done(ctx, h, d, do) { // one failure is enough
				select {
				case <-stop:
					return
				case <-time.After(2 * time.Second):
				}
			}
		})
	}
	again(Status, s.showsStatus)
	again(Logs, s.showsLogs)
	again(Exec, s.executes)
	again(Polls, s.polls)
	again(Probes, s.probes)
	least := time.After(s.least())
	before := processes(checked)

	killed := processes(ending)
	once.Go(func() {
		s.done(ctx, h, Restart, func(ctx context.Context) error {
			for _, p := range killed {
				_ = unix.Kill(p.pid, unix.SIGKILL)
			}
			return s.returns(ctx, killed)
		})
	})
	s.done(ctx, h, Approval, func(ctx context.Context) error {
		if _, err := s.margolite(ctx, "approve", id(gated), "--yes"); err != nil {
			return err
		}
		return plant.Until(ctx, func() error { return running(gated, 2) })
	})
	if err := s.Reconfigure(s.settings("none")); err != nil {
		s.T.Error(err)
	}

	removed, err := s.remove(leaving)
	check(s.T, err)
	installed, err := s.publish(neighbour(arriving, 1))
	check(s.T, err)
	for d, do := range map[Duty]func(context.Context) error{
		Removal: func(ctx context.Context) error {
			return s.WFM.WaitState(ctx, id(leaving), margo.Removed, removed)
		},
		Install: func(ctx context.Context) error {
			return s.WFM.WaitState(ctx, id(arriving), margo.Installed, installed.Version)
		},
		Reports: func(ctx context.Context) error {
			return s.WFM.WaitStatus(ctx, id(arriving), func(all []wfmsim.Report) bool { return len(all) > 0 })
		},
		Rollback: func(ctx context.Context) error {
			if _, err := s.margolite(ctx, "rollback", id(turned), "--yes"); err != nil {
				return err
			}
			return plant.Until(ctx, func() error { return running(turned, 1) })
		},
	} {
		once.Go(func() { s.done(ctx, h, d, do) })
	}
	once.Wait()
	select {
	case <-least:
	case <-ctx.Done():
	}
	close(stop)
	always.Wait()
	if err := s.stayedHealthy(before); err != nil {
		s.T.Errorf("beside %s: %v", h.Name, err)
	}
	if err := s.survives(); err != nil {
		s.T.Errorf("beside %s: %v", h.Name, err)
	}
}

// restart kills the agent, and one more process before it is back.
func (s *Site) restart(h Hog) {
	s.T.Helper()
	s.memory()
	s.Kill()
	killed := processes(ending)
	for _, p := range killed {
		_ = unix.Kill(p.pid, unix.SIGKILL)
	}
	check(s.T, s.Start())
	ctx, stop := s.whileRunning(s.T.Context())
	defer stop()
	s.done(ctx, h, Start, func(ctx context.Context) error {
		err := plant.Until(ctx, func() error { return s.showsStatus(ctx) })
		return errors.Join(err, s.returns(ctx, killed))
	})
	if err := s.survives(); err != nil {
		s.T.Errorf("after its restart beside %s: %v", h.Name, err)
	}
}

// showsStatus asks for the status on the command line.
func (s *Site) showsStatus(ctx context.Context) error {
	out, err := s.margolite(ctx, "status", "--json")
	if err != nil {
		return err
	}
	var status control.Status
	if err := json.Unmarshal([]byte(out), &status); err != nil {
		return err
	}
	d := deployment(&status, checked)
	switch {
	case status.RuntimeError != "":
		return errors.New(status.RuntimeError)
	case d == nil || len(d.Components) == 0 || len(d.Components[0].Services) == 0:
		return fmt.Errorf("the status lacks %s: %+v", checked, d)
	}
	return nil
}

// showsLogs asks for what a neighbour printed.
func (s *Site) showsLogs(ctx context.Context) error {
	out, err := s.margolite(ctx, "logs", id(checked))
	if err == nil && !strings.Contains(out, "revision 1") {
		err = fmt.Errorf("the logs are %q", out)
	}
	return err
}

// executes runs a command in a neighbour.
func (s *Site) executes(ctx context.Context) error {
	out, err := s.margolite(ctx, "exec", id(checked), "app", "--", "cat", "/etc/passwd")
	if err == nil && !strings.Contains(out, "root") {
		err = fmt.Errorf("the command printed %q", out)
	}
	return err
}

// polls waits for the next poll, and its answer.
func (s *Site) polls(ctx context.Context) error {
	done := s.answered()
	return plant.Until(ctx, func() error {
		if s.answered() == done {
			return errors.New("the WFM has answered no poll")
		}
		return nil
	})
}

// answered is the number of the last poll that was answered.
func (s *Site) answered() (last int64) {
	for _, q := range s.WFM.Requests().Requests() {
		if q.Endpoint == wfmsim.EndpointManifest && q.Done && (q.Status == 200 || q.Status == 304) {
			last = max(last, q.Number)
		}
	}
	return last
}

// returns waits until the service that was killed runs with another process.
func (s *Site) returns(ctx context.Context, killed []process) error {
	return plant.Until(ctx, func() error {
		now := processes(ending)
		if len(now) != 1 || slices.ContainsFunc(killed, func(p process) bool { return p.pid == now[0].pid }) {
			return fmt.Errorf("%s runs as %+v, ran as %+v", ending, now, killed)
		}
		return nil
	})
}

// probes waits for the next health check of a neighbour.
func (s *Site) probes(ctx context.Context) error {
	done, err := s.probed()
	if err != nil {
		return err
	}
	return plant.Until(ctx, func() error {
		if now, err := s.probed(); err != nil || now == done {
			return fmt.Errorf("there have been %d health checks: %w", now, err)
		}
		return nil
	})
}

// probed is how many health checks of a neighbour there have been.
func (s *Site) probed() (int, error) {
	files, err := filepath.Glob(filepath.Join(s.StateDir(), "volumes", "*", "data", "probes"))
	if err != nil || len(files) != 1 {
		return 0, fmt.Errorf("health checks have written %q: %w", files, err)
	}
	text, err := os.ReadFile(files[0])
	return bytes.Count(text, []byte{'\n'}), err
}

// stayedHealthy says whether the neighbour with health checks was restarted, reported
// or shown as anything but healthy.
func (s *Site) stayedHealthy(before []process) (err error) {
	if now := processes(checked); !slices.Equal(before, now) {
		err = fmt.Errorf("%s runs as %+v, ran as %+v", checked, now, before)
	}
	reports := s.WFM.Statuses(id(checked))
	if n := len(reports); n == 0 || reports[n-1].Status.State != margo.Installed {
		err = errors.Join(err, fmt.Errorf("the WFM has heard that %s is %+v", checked, reports))
	}
	log, cannot := os.ReadFile(s.LogFile())
	err = errors.Join(err, cannot)
	for line := range strings.Lines(string(log)) {
		if strings.Contains(line, id(checked)) && strings.Contains(line, "unhealthy") {
			err = errors.Join(err, errors.New(line))
		}
	}
	return err
}

// asBefore waits until neighbours run as they should, then removes them too, and
// waits until the machine is as it was before anything was deployed.
func (s *Site) asBefore(ctx context.Context) error {
	wanted := map[string]int{turned: 1, gated: 2, arriving: 1, ending: 1, checked: 1}
	err := plant.Until(ctx, func() error {
		var errs []error
		for name, revision := range wanted {
			errs = append(errs, running(name, revision))
		}
		status, err := s.Control().Status(ctx)
		if err != nil {
			return errors.Join(append(errs, err)...)
		}
		for _, d := range status.Deployments {
			if d.State != string(margo.Installed) && d.ID != id(turned) { // whose desired revision was refused
				errs = append(errs, fmt.Errorf("deployment %s is %s: %s", d.Name, d.State, d.Reason))
			}
			for _, c := range d.Components {
				for _, service := range c.Services {
					if service.Health != nil && service.Health.Status != "healthy" {
						errs = append(errs, fmt.Errorf("deployment %s is %+v", d.Name, service.Health))
					}
				}
			}
		}
		if len(status.Deployments) != len(wanted) {
			errs = append(errs, fmt.Errorf("%d deployments are left, want %d", len(status.Deployments), len(wanted)))
		}
		return errors.Join(errs...)
	})
	if err != nil {
		return err
	}
	if err := s.withdraw(ctx, turned, gated, arriving, ending, checked); err != nil {
		return err
	}
	if err := s.Quiet(ctx); err != nil {
		return err
	}
	return plant.Until(ctx, func() error {
		var left []error
		for _, line := range s.before.Differences(s.look()) {
			if !s.Keeps(line) {
				left = append(left, errors.New(line))
			}
		}
		return errors.Join(left...)
	})
}
