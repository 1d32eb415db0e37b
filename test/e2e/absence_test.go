package e2e

import (
	"context"
	"errors"
	"maps"
	"path/filepath"
	"testing"
	"time"

	"github.com/margolite/margolite/agent/control"
	"github.com/margolite/margolite/test/plant"
)

// Workloads, their ports and their names work while the agent is stopped,
// killed or replaced by another release: nobody who uses them notices.
func TestNobodyNoticesThatTheAgentIsGone(t *testing.T) {
	long(t, "names and visits")
	onBackends(t, func(t *testing.T, r *rig) {
		r.running()
		r.install(r.application(labID, "1.0.0", labFile, nil))
		r.answers(8090)
		before := r.services(labID)
		r.namesWork(before)
		r.answersNames()
		visits := r.visit()

		for _, absence := range []struct {
			name string
			gone func()
		}{
			{"stopped", r.stop},
			{"killed", r.Kill},
			{"replaced", func() {
				r.stop()
				r.Upgrade(filepath.Join(programs.dir, nextMargolite))
			}},
		} {
			absence.gone()
			r.namesWork(before)
			r.running()
			r.settled(labID)
			r.namesWork(before)
			r.answersNames()
			if after := r.services(labID); !maps.EqualFunc(before, after, sameTask) {
				t.Errorf("%s: services are %+v, were %+v", absence.name, after, before)
			}
		}
		if n, err := visits(); err != nil || n == 0 {
			t.Errorf("after %d visits: %v", n, err)
		}
		if v := r.status().Agent.Version; v != "two" {
			t.Errorf("version %q runs, want two", v)
		}
	})
}

// namesWork says that programs in containers reach each other by name. It asks no agent.
func (r *rig) namesWork(services map[string]control.Service) {
	r.t.Helper()
	if err := r.inside(services["web"].Pid, "HEALTH_URL=http://counter:9090/healthz", "/demoapp", "healthy"); err != nil {
		r.t.Error(err)
	}
}

// answersNames says that those are answered, too, who ask a nameserver and no
// file. That takes the agent.
func (r *rig) answersNames() {
	r.t.Helper()
	r.eventually("nslookup counter", func() error {
		_, err := r.margolite("exec", labID, "tools", "--", "nslookup", "-type=a", "counter")
		return err
	})
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
