package runtime_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/margolite/margolite/runtime"
	"github.com/margolite/margolite/runtime/compose"
	"github.com/margolite/margolite/runtime/health"
	"github.com/margolite/margolite/test/expect"
)

// change is load with something changed in the model afterwards.
func (r *rig) change(e *runtime.Engine, name, file string, change func(services map[string]*compose.Service)) *runtime.Project {
	r.Helper()
	p := r.load(e, name, file)
	change(p.Compose.Services)
	return p
}

func on(service string, condition compose.Condition) []compose.Dependency {
	return []compose.Dependency{{Service: service, Condition: condition, Required: true}}
}

// exists is a check that a file is there.
func exists(path string) *compose.Healthcheck {
	return &compose.Healthcheck{Test: []string{"CMD-SHELL", "echo looked; test -e " + path}, Interval: time.Second, Retries: 1}
}

const gated = `
services:
  web: {image: BUSYBOX, depends_on: [db]}
  db: {image: BUSYBOX, command: ["sh", "-c", "sleep 0.7; touch /data/ready; exec sleep 1000"], volumes: ["data:/data"]}
volumes: {data: {}}
`

func TestDependentsWaitForHealth(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		e := r.engine()
		p := r.change(e, "gated", gated, func(s map[string]*compose.Service) {
			s["db"].Healthcheck = exists("/data/ready")
			s["web"].DependsOn = on("db", compose.ConditionHealthy)
		})
		r.apply(e, p)
		c := r.containers(e, "gated")
		if c["web"].State != runtime.Running || c["db"].Health.State != health.Healthy || c["db"].Health.Output != "looked" || c["web"].Health.State != "" {
			t.Errorf("web is %+v, db is %+v", c["web"], c["db"])
		}

		t.Log("after a reboot, too")
		r.reboot(e)
		expect.Check(t, os.Remove(filepath.Join(r.state, "volumes/gated/data/ready")))
		e = r.engine()
		r.supervise(e)
		expect.Eventually(r, "web waits and says so", func() bool {
			web := r.containers(e, "gated")["web"]
			return web.Waiting == "db-1 to be healthy" && web.Undecided
		})
		expect.Eventually(r, "web runs", func() bool { return r.containers(e, "gated")["web"].State == runtime.Running })
		expect.Equal(t, r.containers(e, "gated")["db"].Health.State, health.Healthy, "health of db")
	})
}

// Health is waited for also where no other service does so.
func TestPKG14ApplyWaitsForHealth(t *testing.T) {
	r := newRig(t, embeddedBackend())
	e := r.engine()
	p := r.change(e, "slow", gated, func(s map[string]*compose.Service) {
		s["db"].Healthcheck = exists("/data/ready")
		s["db"].Healthcheck.Retries = 30
		s["web"].DependsOn = nil
	})
	expect.Check(t, e.Apply(t.Context(), p, runtime.ApplyOptions{}))
	expect.Equal(t, r.containers(e, "slow")["db"].Health.State, health.Healthy, "health of db")
}

func TestPKG14UnhealthyServicesFailTheApply(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		e := r.engine()
		p := r.change(e, "ill", gated, func(s map[string]*compose.Service) {
			s["db"].Healthcheck = exists("/never")
			s["web"].DependsOn = on("db", compose.ConditionHealthy)
		})
		r.refused(e, p, runtime.Unhealthy, "db", "looked")
		expect.Equal(t, r.containers(e, "ill")["web"].State, runtime.Created, "state of web")
		expect.Check(t, e.Remove(t.Context(), "ill"))
		r.expectNothingLeft()
	})
}

func TestWaitsThatNeverEndFailAtOnce(t *testing.T) {
	r := newRig(t, embeddedBackend())
	e := r.engine()
	p := r.change(e, "never", gated, func(s map[string]*compose.Service) { s["web"].DependsOn = on("db", compose.ConditionHealthy) })
	r.refused(e, p, runtime.StartFailed, "nothing checks")
}

func TestAD08ADeadlineSaysWhatWasWaitedFor(t *testing.T) {
	r := newRig(t, embeddedBackend())
	e := r.engine()
	p := r.change(e, "slow", gated, func(s map[string]*compose.Service) {
		s["db"].Healthcheck = exists("/never")
		s["db"].Healthcheck.StartPeriod = time.Hour
		s["web"].DependsOn = on("db", compose.ConditionHealthy)
	})
	ctx := deadline{t.Context(), make(chan struct{})}
	err := e.Apply(ctx, p, runtime.ApplyOptions{Notify: func(event runtime.Event) {
		if event.Step == "start container db-1" && event.Done {
			close(ctx.passed)
		}
	}})
	if runtime.CodeOf(err) != runtime.Timeout || !strings.Contains(err.Error(), "web-1 waits for db-1 to be healthy") {
		t.Errorf("got %v", err)
	}
}

// deadline is a context whose deadline passes when its channel is closed.
type deadline struct {
	context.Context
	passed chan struct{}
}

func (d deadline) Done() <-chan struct{} { return d.passed }

func (d deadline) Err() error {
	select {
	case <-d.passed:
		return context.DeadlineExceeded
	default:
		return nil
	}
}

func TestHooksRunOncePerProcess(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		e := r.engine()
		p := r.change(e, "hooks", `
services:
  app: {image: BUSYBOX, restart: always, volumes: ["data:/data"], command: ["sh", "-c", "trap 'exit 1' USR1; while :; do sleep 0.05; done"]}
  next: {image: BUSYBOX, depends_on: [app]}
volumes: {data: {}}
`, func(s map[string]*compose.Service) {
			s["app"].PostStart = []compose.Hook{{Command: []string{"sh", "-c", `echo "$WHO" >> /data/log`}, Environment: map[string]string{"WHO": "hook"}}}
		})
		ran := func() int { return strings.Count(r.volume("hooks/data/log"), "hook\n") }
		r.apply(e, p)
		expect.Equal(t, ran(), 1, "runs of the hook")
		r.apply(r.engine(), p)
		r.supervise(e)
		expect.Equal(t, ran(), 1, "runs of the hook")
		r.kill(e, "hooks", "app")
		expect.Eventually(r, "the hook ran for the next process", func() bool { return ran() == 2 })

		bad := r.change(e, "hooks", `services: {app: {image: BUSYBOX}}`, func(s map[string]*compose.Service) {
			s["app"].PostStart = []compose.Hook{{Command: []string{"sh", "-c", "echo sorry; exit 9"}}}
		})
		r.refused(e, bad, runtime.StartFailed, "sorry", "code 9")
		expect.Check(t, e.Remove(t.Context(), "hooks"))
		r.expectNothingLeft()
		expect.Equal(t, expect.Value(filepath.Glob(filepath.Join(r.run, "started/*")))(t), nil, "left")
	})
}
