package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/margolite/margolite/agent/margo"
	"github.com/margolite/margolite/test/plant"
	"github.com/margolite/margolite/test/wfmsim"
)

// upkeep is what a device with so many containers costs while nobody changes it.
type upkeep struct {
	Containers  int    `json:"containers"`
	Deployments int    `json:"deployments"`
	Event       effort `json:"event"`   // a service ends and is brought back
	Status      effort `json:"status"`  // somebody asks for the status
	Poll        effort `json:"poll"`    // nothing has changed
	Restart     effort `json:"restart"` // of the agent, until the WFM has heard all
}

// effort is what something takes: medians.
type effort struct {
	Took time.Duration `json:"tookNs"`
	CPU  time.Duration `json:"cpuNs"` // of the agent with the containerd in it, until some time later
}

const (
	inDeployment = 6                // containers
	aftermath    = 2 * time.Second  // for what follows an event
	afterStart   = 10 * time.Second // for what follows a start
	settling     = time.Minute      // after all was installed
)

// measureUpkeep measures devices with more and more containers.
func (b *bench) measureUpkeep(ctx context.Context, dir string) (all []upkeep, err error) {
	home := filepath.Join(dir, "u")
	if err := os.Mkdir(home, 0o755); err != nil {
		return nil, err
	}
	setups, _, err := b.setups()
	if err != nil {
		return nil, err
	}
	how := setups[0]
	for _, n := range b.Crowds {
		say("upkeep of %d containers", n)
		how.name = fmt.Sprintf("%d", n)
		b := *b
		b.Poll = 30 * time.Second // those that are measured are asked for
		err := b.polling(ctx, deviceBench{method: b.method, dir: home}, how, func(s *subject) error {
			u, err := s.upkeep(ctx, n)
			all = append(all, u)
			return errors.Join(err, s.Clear(ctx))
		})
		if err != nil {
			return all, fmt.Errorf("cannot measure the upkeep of %d containers: %w", n, err)
		}
	}
	return all, nil
}

func (s *subject) upkeep(ctx context.Context, n int) (u upkeep, err error) {
	u.Containers = n
	if u.Deployments, err = s.crowd(ctx, n); err != nil {
		return u, err
	}
	if err := pause(ctx, min(settling, time.Duration(n)*time.Second)); err != nil {
		return u, err
	}
	for _, one := range []struct {
		to    *effort
		after time.Duration
		do    func(context.Context) error
	}{
		{&u.Event, aftermath, s.crash},
		{&u.Status, aftermath, func(ctx context.Context) error { return ourStack{s}.look(ctx) }},
		{&u.Poll, aftermath, func(ctx context.Context) error { return s.Control().Sync(ctx) }},
		{&u.Restart, afterStart, s.restart},
	} {
		var took, cpu []time.Duration
		for range s.Races {
			spent, err := s.effort(ctx, one.after, one.do)
			if err != nil {
				return u, err
			}
			took, cpu = append(took, spent.Took), append(cpu, spent.CPU)
		}
		*one.to = effort{median(took), median(cpu)}
	}
	return u, nil
}

// effort measures what something takes, and what follows it.
func (s *subject) effort(ctx context.Context, after time.Duration, do func(context.Context) error) (e effort, err error) {
	agent := s.Agent()
	before, err := cpuOf(agent)
	if err != nil {
		return e, err
	}
	begun := time.Now()
	if err := do(ctx); err != nil {
		return e, err
	}
	e.Took = time.Since(begun)
	if err := pause(ctx, after); err != nil {
		return e, err
	}
	if s.Agent() != agent { // a new one begins at nothing
		before = 0
	}
	used, err := cpuOf(s.Agent())
	e.CPU = used - before
	return e, err
}

// crowd installs so many containers and tells in how many deployments.
func (s *subject) crowd(ctx context.Context, n int) (deployments int, err error) {
	versions := map[string]uint64{}
	for left := n; left > 0; left -= inDeployment {
		l := workload{name: fmt.Sprintf("crowd-%d", len(versions)), services: min(left, inDeployment)}
		id := fmt.Sprintf("5b0c7d52-7a0e-4c53-8f36-%012d", len(versions))
		if versions[id], err = s.publishLoad(ctx, id, l, "Hello"); err != nil {
			return 0, err
		}
	}
	if err := s.Control().Sync(ctx); err != nil {
		return 0, err
	}
	for id, version := range versions {
		if _, err := s.Await(ctx, id, margo.Installed, version); err != nil {
			return 0, err
		}
	}
	return len(versions), s.Quiet(ctx)
}

// crash ends a service's process and returns when another one is there.
func (s *subject) crash(ctx context.Context) error {
	before := servers()
	if len(before) == 0 {
		return errors.New("no service runs that could end")
	}
	if err := syscall.Kill(before[0], syscall.SIGKILL); err != nil {
		return err
	}
	return plant.Eventually(ctx, func() error {
		now := servers()
		if len(now) != len(before) || slices.Contains(now, before[0]) {
			return fmt.Errorf("%d services run, want %d again", len(now), len(before))
		}
		return nil
	})
}

// servers are the processes of the services.
func servers() []int { return plant.Processes("/bin/busybox\x00httpd") }

func (s *subject) restart(ctx context.Context) error {
	if err := s.Stop(); err != nil {
		return err
	}
	if err := s.Run(ctx); err != nil {
		return err
	}
	return s.Quiet(ctx)
}

// publishLoad publishes a load as a deployment, and gives the manifest's version.
func (s *subject) publishLoad(ctx context.Context, id string, l workload, greeting string) (uint64, error) {
	repository := "apps/" + l.name
	component, err := l.component()
	if err != nil {
		return 0, err
	}
	if err := s.Push(ctx, repository, loadRevision, component); err != nil {
		return 0, err
	}
	done, err := s.Publish(wfmsim.Deployment{
		ID: id, Name: l.name, DeviceID: plant.Device, ApplicationID: l.name,
		Components: []wfmsim.Component{{Name: l.name, Repository: s.Registry.Address() + "/" + repository, Revision: loadRevision}},
		Parameters: map[string]any{"IMAGE": s.Registry.Address() + "/" + loadImage + ":" + loadVersion, "GREETING": greeting},
	})
	return done.Version, err
}

func (p *printer) upkeep(r *report) {
	p.heading("What a device with more and more containers costs: median of %d, and processor time of the agent until %s later (a restart: %s)",
		r.Method.Races, aftermath, afterStart)
	p.line("  %10s %11s %20s %20s %20s %20s", "containers", "deployments", "a service ends", "status", "an unchanged poll", "restart of the agent")
	for _, u := range r.Upkeep {
		row := fmt.Sprintf("  %10d %11d", u.Containers, u.Deployments)
		for _, e := range []effort{u.Event, u.Status, u.Poll, u.Restart} {
			row += fmt.Sprintf(" %20s", ms(e.Took)+", "+ms(e.CPU))
		}
		p.line("%s", row)
	}
}
