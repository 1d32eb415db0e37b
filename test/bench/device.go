package main

import (
	"context"
	"debug/buildinfo"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/margolite/margolite/test/plant"
	"github.com/margolite/margolite/test/syscalls"
)

const (
	shimName = "containerd-shim-runc-v2"

	deploymentID = "5b0c7d52-7a0e-4c53-8f36-0d1a5e0f9c01"
	imageVersion = "1.0.0"
	port         = 8090
)

// deviceBench measures devices.
type deviceBench struct {
	method
	application *plant.Application
	dir         string // on the medium
}

// setup is a device to measure, with the containerd inside margolite or an external
// one.
type setup struct {
	name     string
	external bool
	programs []string // margolite first, then containerd if external, and the shim
}

// setups are the one with the embedded containerd, and the one with the containerd
// that is installed, if there is one.
func (b *bench) setups() (all []setup, missing []string, err error) {
	native := b.native()
	margolite := filepath.Join(native, "margolite")
	all = []setup{{name: "embedded", programs: []string{margolite, filepath.Join(native, shimName)}}}
	containerd, err := exec.LookPath("containerd")
	if err != nil {
		return all, []string{"an external containerd: none is installed"}, nil
	}
	shim, err := exec.LookPath(shimName)
	if err != nil {
		return nil, nil, fmt.Errorf("containerd is installed, its shim is not: %w", err)
	}
	return append(all, setup{name: "external", external: true, programs: []string{margolite, containerd, shim}}), nil, nil
}

// title names a setup in a table.
func title(external bool, containerd string) string {
	if external {
		return "margolite on an external containerd " + containerd
	}
	return "margolite with embedded containerd " + containerd
}

// subject is the device that is being measured.
type subject struct {
	*plant.Plant
	method
	medium  *medium
	version string              // of containerd
	syncs   []*syscalls.Counter // of each agent that ran, and of containerd
}

// measure measures a setup.
func (b *deviceBench) measure(ctx context.Context, how setup) (*device, error) {
	d := &device{External: how.external}
	err := b.with(ctx, how, plant.Options{Application: b.application}, func(s *subject) error {
		d.Counted, d.Containerd = s.medium.counters != "", s.version
		say("%s containerd", how.name)
		return s.all(ctx, d, b.application.Size(imageVersion))
	})
	if err != nil {
		return nil, fmt.Errorf("cannot measure margolite with the %s containerd: %w", how.name, err)
	}
	return d, nil
}

// with builds a plant around a setup, does something with it and takes it down.
//
// The state is on a medium. Everything else is in memory, as the run directory
// and the log are on a device. The programs are copies, so that nobody else on
// this machine shares their pages, which are small there, as in a device's squashfs:
// recent kernels map all of a large folio of ext4, 2 MiB, at one touch.
func (b *deviceBench) with(ctx context.Context, how setup, o plant.Options, do func(*subject) error) (err error) {
	home := filepath.Join(b.dir, how.name)
	m, err := newMedium(ctx, home)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.close()) }()
	volatile := filepath.Join(home, "v")
	if err := os.Mkdir(volatile, 0o700); err != nil {
		return err
	}
	if err := unix.Mount("tmpfs", volatile, "tmpfs", 0, "huge=never,size=256m"); err != nil {
		return fmt.Errorf("cannot mount a tmpfs: %w", err)
	}
	defer func() { err = errors.Join(err, unix.Unmount(volatile, unix.MNT_DETACH)) }()
	programs, err := copyTo(filepath.Join(volatile, "bin"), how.programs)
	if err != nil {
		return err
	}
	o.Dir, o.State, o.Margolite = volatile, filepath.Join(m.dir, "state"), programs[0]
	if how.external {
		o.Containerd = programs[1]
	}
	version, err := containerdVersion(ctx, o)
	if err != nil {
		return err
	}
	p, err := plant.New(ctx, o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, takeDown(ctx, p, err)) }()
	s := &subject{Plant: p, method: b.method, medium: m, version: version}
	defer func() {
		for _, c := range s.syncs {
			err = errors.Join(err, c.Close())
		}
	}()
	if err := s.countSyncs(s.containerd()...); err != nil {
		say("calls that wait for the medium are not counted: %v", err)
	}
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

// all measures everything, in the order of a device's life.
func (s *subject) all(ctx context.Context, d *device, imageBytes int64) (err error) {
	say("installation")
	if err := s.start(ctx, s.Settle[0]); err != nil {
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
	for i, settle := range s.Settle {
		if i > 0 {
			if err := s.Stop(); err != nil {
				return err
			}
			if err := s.start(ctx, settle); err != nil {
				return err
			}
		}
		u, err := s.updates(ctx, settle)
		if err != nil {
			return err
		}
		d.Updates = append(d.Updates, u)
	}
	say("unchanged polls")
	d.Polls, err = s.polls(ctx)
	return err
}

func (s *subject) start(ctx context.Context, settle time.Duration) error {
	if err := s.Configure(plant.Settings{Poll: time.Second, Settle: settle}); err != nil {
		return err
	}
	if err := s.Run(ctx); err != nil {
		return err
	}
	_ = s.countSyncs(s.Agent()) // that it cannot be is known
	_, err := s.rest(ctx)
	return err
}

// countSyncs counts how often processes wait for the medium, and those that they
// start from now on.
func (s *subject) countSyncs(pids ...int) error {
	for _, pid := range pids {
		c, err := syscalls.OfProcess(pid, syscalls.Syncs()...)
		if err != nil {
			return err
		}
		s.syncs = append(s.syncs, c)
	}
	return nil
}

// containerd is the external containerd, if there is one.
func (s *subject) containerd() []int {
	if pid := s.Containerd(); pid != 0 {
		return []int{pid}
	}
	return nil
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

// containerdVersion is the version of the containerd that a device has.
func containerdVersion(ctx context.Context, o plant.Options) (string, error) {
	if o.Containerd != "" {
		out, err := exec.CommandContext(ctx, o.Containerd, "--version").Output()
		if err != nil {
			return "", fmt.Errorf("cannot ask containerd for its version: %w", err)
		}
		words := strings.Fields(string(out)) // containerd <module> <version> <commit>
		if len(words) < 3 {
			return "", fmt.Errorf("containerd says %q about its version", out)
		}
		return words[2], nil
	}
	info, err := buildinfo.ReadFile(o.Margolite)
	if err != nil {
		return "", err
	}
	for _, m := range info.Deps {
		if m.Path == "github.com/containerd/containerd/v2" {
			return m.Version, nil
		}
	}
	return "", fmt.Errorf("%s carries no containerd", o.Margolite)
}
