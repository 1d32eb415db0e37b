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
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/margolite/margolite/agent/control"
	"github.com/margolite/margolite/agent/margo"
	"github.com/margolite/margolite/test/expect"
	"github.com/margolite/margolite/test/plant"
	"github.com/margolite/margolite/test/wfmsim"
)

// duty is something that goes on whatever a neighbour does.
type duty string

// The duties.
const (
	status   duty = "status"   // margolite status --json
	logs     duty = "logs"     // margolite logs, of a neighbour
	execs    duty = "exec"     // margolite exec, in a neighbour
	approval duty = "approval" // of an update: from margolite approve until the new revision runs
	rollback duty = "rollback" // from margolite rollback until the former revision runs
	removal  duty = "removal"  // that the WFM orders, until it hears of it
	install  duty = "install"  // of a new deployment, until the WFM hears of it
	restart  duty = "restart"  // of a service that was killed
	probes   duty = "probes"   // until the next health check of a neighbour
	polls    duty = "polls"    // until the next poll that the WFM answers
	reports  duty = "reports"  // until the WFM hears for the first time of a new deployment
	start    duty = "start"    // of a killed agent: until it answers, and what ended meanwhile runs
	cleanup  duty = "cleanup"  // once the hog is gone: until nothing is left of it, and of anybody
)

// acceptable are the longest times that somebody in front of a device would wait for
// duties. The long form alone holds the agent to them.
var acceptable = map[duty]time.Duration{
	status: 5 * time.Second, logs: 10 * time.Second, execs: 10 * time.Second,
	approval: 60 * time.Second, rollback: 60 * time.Second, removal: 60 * time.Second, install: 90 * time.Second,
	restart: 15 * time.Second, probes: 12 * time.Second, polls: 15 * time.Second, reports: 30 * time.Second,
	start: 60 * time.Second, cleanup: 120 * time.Second,
}

// patience bounds the wait for a duty where time is not what is tested: one that a hog
// holds up for that long is never done.
const patience = 5 * time.Minute

// bound is how long a duty may take beside a hog.
func (s *site) bound(h hog, d duty) time.Duration {
	if !s.long {
		return patience
	}
	return cmp.Or(h.bounds[d], acceptable[d])
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

// settle installs the neighbours: one of them has a former revision to go back to,
// and one an update that waits to be approved.
func (s *site) settle() {
	s.T.Helper()
	s.install(neighbour(turned, 1), neighbour(gated, 1), neighbour(leaving, 1), neighbour(ending, 1), neighbour(checked, 1))
	s.install(neighbour(turned, 2))
	check(s.T, s.Reconfigure(s.settings("updates")))
	expect.Value(s.publish(neighbour(gated, 2)))(s.T)
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
func (s *site) done(ctx context.Context, h hog, d duty, do func(context.Context) error) bool {
	ctx, cancel := context.WithTimeout(ctx, s.bound(h, d))
	defer cancel()
	begun := time.Now()
	err := do(ctx)
	took := time.Since(begun)
	if cause := context.Cause(ctx); err != nil && errors.Is(cause, errEnded) {
		err = cause
	}
	expect.True(s.T, err == nil, "%s after %s: %v", d, took, err)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.took[d] = max(s.took[d], took)
	return err == nil
}

// errEnded says that the agent ended although nobody told it to.
var errEnded = errors.New("the agent has ended by itself")

// whileRunning is done when the agent, which runs, ends by itself.
func (s *site) whileRunning(ctx context.Context) (context.Context, context.CancelFunc) {
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

// row carries out all duties beside a hog, from before its beginning until nothing is
// left of it.
func (s *site) row(h hog, begin func(*site) started) {
	s.T.Helper()
	ctx, stop := s.whileRunning(s.T.Context())
	defer stop()
	begun := begin(s)
	if begun.effect != nil {
		effect, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		if err := plant.Until(effect, func() error { return begun.effect(effect) }); err != nil {
			s.T.Errorf("the hog has no effect: %v", err)
		}
	}
	used, _ := plant.ProcessorTime(s.Agent()) // it may have ended
	since := time.Now()
	s.beside(ctx, h)
	now, _ := plant.ProcessorTime(s.Agent())
	load := float64(now-used) / float64(time.Since(since))
	s.restart(h)
	ctx, stop = s.whileRunning(s.T.Context())
	defer stop()
	s.done(ctx, h, cleanup, func(ctx context.Context) error {
		return errors.Join(begun.end(ctx), s.asBefore(ctx))
	})
	memory := s.memory()
	expect.True(s.T, memory <= agentMemory, "the agent has had %d MiB of memory, want at most %d", memory>>20, agentMemory>>20)
	if most := agentLoad + h.load; !testing.Short() && load > most {
		s.T.Errorf("the agent has used %.2f processors, want at most %.2f", load, most)
	}
	s.T.Logf("%d MiB, %.2f processors, %v", memory>>20, load, s.took)
}

// least is for how long duties are carried out, so that what is late shows and the
// agent's share of the processors is one of more than the installation.
func (s *site) least() time.Duration {
	if testing.Short() {
		return 0
	}
	return 15 * time.Second
}

// beside carries out the duties that need an agent that runs.
func (s *site) beside(ctx context.Context, h hog) {
	s.T.Helper()
	stop := make(chan struct{})
	var always, once sync.WaitGroup
	again := func(d duty, do func(context.Context) error) {
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
	again(status, s.showsStatus)
	again(logs, s.showsLogs)
	again(execs, s.executes)
	again(polls, s.polls)
	again(probes, s.probes)
	least := time.After(s.least())
	before := processes(checked)

	killed := processes(ending)
	once.Go(func() {
		s.done(ctx, h, restart, func(ctx context.Context) error {
			for _, p := range killed {
				_ = unix.Kill(p.pid, unix.SIGKILL)
			}
			return s.returns(ctx, killed)
		})
	})
	s.done(ctx, h, approval, func(ctx context.Context) error {
		if _, err := s.Margolite(ctx, "approve", id(gated), "--yes"); err != nil {
			return err
		}
		return plant.Until(ctx, func() error { return running(gated, 2) })
	})
	expect.OK(s.T, s.Reconfigure(s.settings("none")))

	removed := expect.Value(s.remove(leaving))(s.T)
	installed := expect.Value(s.publish(neighbour(arriving, 1)))(s.T)
	for d, do := range map[duty]func(context.Context) error{
		removal: func(ctx context.Context) error {
			return s.WFM.WaitState(ctx, id(leaving), margo.Removed, removed)
		},
		install: func(ctx context.Context) error {
			return s.WFM.WaitState(ctx, id(arriving), margo.Installed, installed.Version)
		},
		reports: func(ctx context.Context) error {
			return s.WFM.WaitStatus(ctx, id(arriving), func(all []wfmsim.Report) bool { return len(all) > 0 })
		},
		rollback: func(ctx context.Context) error {
			if _, err := s.Margolite(ctx, "rollback", id(turned), "--yes"); err != nil {
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
	expect.OK(s.T, s.stayedHealthy(before))
	expect.OK(s.T, s.survives())
}

// restart kills the agent, and one more process before it is back.
func (s *site) restart(h hog) {
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
	s.done(ctx, h, start, func(ctx context.Context) error {
		err := plant.Until(ctx, func() error { return s.showsStatus(ctx) })
		return errors.Join(err, s.returns(ctx, killed))
	})
	if err := s.survives(); err != nil {
		s.T.Errorf("after its restart: %v", err)
	}
}

// showsStatus asks for the status on the command line.
func (s *site) showsStatus(ctx context.Context) error {
	out, err := s.Margolite(ctx, "status", "--json")
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
func (s *site) showsLogs(ctx context.Context) error {
	out, err := s.Margolite(ctx, "logs", id(checked))
	if err == nil && !strings.Contains(out, "revision 1") {
		err = fmt.Errorf("the logs are %q", out)
	}
	return err
}

// executes runs a command in a neighbour.
func (s *site) executes(ctx context.Context) error {
	out, err := s.Margolite(ctx, "exec", id(checked), "app", "--", "cat", "/etc/passwd")
	if err == nil && !strings.Contains(out, "root") {
		err = fmt.Errorf("the command printed %q", out)
	}
	return err
}

// polls waits for the next poll, and its answer.
func (s *site) polls(ctx context.Context) error {
	done := s.answered()
	return plant.Until(ctx, func() error {
		if s.answered() == done {
			return errors.New("the WFM has answered no poll")
		}
		return nil
	})
}

// answered is the number of the last poll that was answered.
func (s *site) answered() (last int64) {
	for _, q := range s.WFM.Requests().Requests() {
		if q.Endpoint == wfmsim.EndpointManifest && q.Done && (q.Status == 200 || q.Status == 304) {
			last = max(last, q.Number)
		}
	}
	return last
}

// returns waits until the service that was killed runs with another process.
func (s *site) returns(ctx context.Context, killed []process) error {
	return plant.Until(ctx, func() error {
		now := processes(ending)
		if len(now) != 1 || slices.ContainsFunc(killed, func(p process) bool { return p.pid == now[0].pid }) {
			return fmt.Errorf("%s runs as %+v, ran as %+v", ending, now, killed)
		}
		return nil
	})
}

// probes waits for the next health check of a neighbour.
func (s *site) probes(ctx context.Context) error {
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
func (s *site) probed() (int, error) {
	files, err := filepath.Glob(filepath.Join(s.StateDir(), "volumes", "*", "data", "probes"))
	if err != nil || len(files) != 1 {
		return 0, fmt.Errorf("health checks have written %q: %w", files, err)
	}
	text, err := os.ReadFile(files[0])
	return bytes.Count(text, []byte{'\n'}), err
}

// stayedHealthy says whether the neighbour with health checks was restarted, reported
// or shown as anything but healthy.
func (s *site) stayedHealthy(before []process) (err error) {
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
func (s *site) asBefore(ctx context.Context) error {
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
			for _, service := range plant.Services(d) {
				if service.Health != nil && service.Health.Status != "healthy" {
					errs = append(errs, fmt.Errorf("deployment %s is %+v", d.Name, service.Health))
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
		for _, line := range s.Left(s.T, s.before) {
			left = append(left, errors.New(line))
		}
		return errors.Join(left...)
	})
}
