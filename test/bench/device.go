package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/margolite/margolite/test/plant"
	"github.com/margolite/margolite/test/syscalls"
)

const (
	shimName = "containerd-shim-runc-v2"

	deploymentID = "5b0c7d52-7a0e-4c53-8f36-0d1a5e0f9c01"
	imageVersion = "1.0.0"
	port         = 8090
	// settle is for how long services run before they count as installed.
	settle = 200 * time.Millisecond
)

// subject is the device that is being measured.
type subject struct {
	*plant.Plant
	method
	medium *medium
	syncs  *syscalls.Counter // of the agent and all that it starts; nil: not counted
}

// measureDevice measures a device, in the order of its life.
func (b *bench) measureDevice(ctx context.Context, home string, application *plant.Application) (*device, error) {
	d := &device{}
	err := b.with(ctx, home, plant.Options{Application: application}, func(s *subject) error {
		d.Counted = s.medium.counters != ""
		return s.all(ctx, d, application.Size(imageVersion))
	})
	if err != nil {
		return nil, fmt.Errorf("cannot measure margolite: %w", err)
	}
	return d, nil
}

// with builds a plant below home, does something with it and takes it down.
//
// The state is on a medium. Everything else is in memory, as the run directory
// and the log are on a device. The programs are copies, so that nobody else on
// this machine shares their pages, which are small there, as in a device's squashfs:
// recent kernels map all of a large folio of ext4, 2 MiB, at one touch.
func (b *bench) with(ctx context.Context, home string, o plant.Options, do func(*subject) error) (err error) {
	at, err := newSite(home)
	if err != nil {
		return err
	}
	defer at.close()
	m, err := newMedium(ctx, home)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.close()) }()
	programs, err := copyTo(filepath.Join(at.volatile, "bin"), []string{filepath.Join(b.native(), "margolite"), filepath.Join(b.native(), shimName)})
	if err != nil {
		return err
	}
	o.Dir, o.State, o.Margolite = at.volatile, filepath.Join(m.dir, "state"), programs[0]
	p, err := plant.New(ctx, o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, takeDown(ctx, p, err)) }()
	s := &subject{Plant: p, method: b.method, medium: m}
	defer func() {
		if s.syncs != nil {
			err = errors.Join(err, s.syncs.Close())
		}
	}()
	return do(s)
}

// takeDown removes what is deployed and closes the plant. When something went
// wrong it shows what the agent logged.
func takeDown(ctx context.Context, p *plant.Plant, wrong error) error {
	if wrong != nil && ctx.Err() == nil {
		text, _ := os.ReadFile(p.LogFile())
		say("the agent's log:\n%s", text[max(0, len(text)-8<<10):])
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	var errs []error
	if p.Running() {
		errs = append(errs, p.Clear(ctx), p.Stop())
	}
	return errors.Join(append(errs, p.Close())...)
}

// all measures everything.
func (s *subject) all(ctx context.Context, d *device, imageBytes int64) (err error) {
	say("installation")
	if err := s.start(ctx, plant.Settings{Poll: time.Second, Settle: settle}); err != nil {
		return err
	}
	if s.syncs, err = syscalls.OfProcess(s.Agent(), syscalls.Syncs()...); err != nil {
		say("calls that wait for the medium are not counted: %v", err)
	}
	if _, err := s.rest(ctx); err != nil {
		return err
	}
	status, err := s.Control().Status(ctx)
	if err != nil {
		return err
	}
	d.Version = strings.TrimSpace(status.Agent.Version + " " + status.Agent.Commit)
	if d.Install, err = s.install(ctx); err != nil {
		return err
	}
	d.Install.ImageBytes = imageBytes
	say("updates")
	if d.Updates, err = s.updates(ctx); err != nil {
		return err
	}
	say("unchanged polls")
	d.Polls, err = s.polls(ctx)
	return err
}

func (s *subject) start(ctx context.Context, settings plant.Settings) error {
	if err := s.Configure(settings); err != nil {
		return err
	}
	return s.Run(ctx)
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// copyTo copies programs into a new directory and gives their paths there.
func copyTo(dir string, programs []string) ([]string, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	var copies []string
	for _, from := range programs {
		to := filepath.Join(dir, filepath.Base(from))
		program, err := os.ReadFile(from)
		if err == nil {
			err = os.WriteFile(to, program, 0o755)
		}
		if err != nil {
			return nil, fmt.Errorf("cannot copy %s, is it built? %w", from, err)
		}
		copies = append(copies, to)
	}
	return copies, nil
}
