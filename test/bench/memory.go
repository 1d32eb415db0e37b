package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"github.com/margolite/margolite/test/plant"
)

// footprint is what a stack holds under every load.
type footprint struct {
	Stack string
	Ours  bool
	Loads []weight
}

// overBounds is an error for each load under which agent and shims hold more memory
// than they may.
func (f *footprint) overBounds() (errs []error) {
	if !f.Ours {
		return nil
	}
	for _, w := range f.Loads {
		bound, pss := memoryBound(w.Load), w.Holdings[len(w.Holdings)-1].PSS
		if bound > 0 && pss > bound {
			errs = append(errs, fmt.Errorf("%s holds %.1f MiB under the load %s, want at most %.0f", f.Stack, mib(pss), w.Load, mib(bound)))
		}
	}
	return errs
}

// memoryBound is the most proportional memory that agent and shims may hold under a
// load; 0: there is no bound.
func memoryBound(load string) int64 {
	switch load {
	case idleLoad:
		return 22 << 20
	case threeServices:
		return 45 << 20
	}
	return 0
}

// weight is what it holds under one load.
type weight struct {
	Load     string
	Holdings []holding // medians: of each kind of process, and of all together
	Most     int64     // of all together, in any sample
	Changing int64     // the most of all together, proportional, while the load was changed
}

// holding is the memory of one kind of process, the median of the samples.
type holding struct {
	What      string
	Processes int
	memory
}

// glance is the time between two looks at a peak.
const glance = 50 * time.Millisecond

// measureMemory measures ours, and Docker with the agent of somebody else where that is
// wanted and there.
func (b *bench) measureMemory(ctx context.Context, dir string, r *report) error {
	image, err := loadServer()
	if err != nil {
		return err
	}
	err = b.with(ctx, filepath.Join(dir, "m"), plant.Options{}, func(s *subject) error {
		if err := s.Push(ctx, loadImage, loadVersion, image); err != nil {
			return err
		}
		if err := s.start(ctx, plant.Settings{Poll: b.Poll}); err != nil {
			return err
		}
		return b.weigh(ctx, r, footprint{Stack: "margolite", Ours: true}, ourStack{s})
	})
	if err != nil {
		return fmt.Errorf("cannot measure the memory of margolite: %w", err)
	}
	if !b.docker {
		return nil
	}
	name := "dockerd, its containerd"
	if b.agent != "" {
		name += ", " + b.agentName
	}
	missing, err := withDocker(ctx, filepath.Join(dir, "docker"), b.agent, func(s stack) error { return b.weigh(ctx, r, footprint{Stack: name}, s) })
	if err != nil {
		return fmt.Errorf("cannot measure the memory of Docker: %w", err)
	}
	if missing != "" {
		say("memory is not measured of Docker: %s", missing)
	}
	return nil
}

// weigh puts a stack under every load and adds its footprint to the report.
func (b *bench) weigh(ctx context.Context, r *report, f footprint, s stack) error {
	for _, l := range workloads {
		say("memory: %s, %s", f.Stack, l.name)
		w, err := b.under(ctx, s, l)
		if err != nil {
			return fmt.Errorf("load %s: %w", l.name, err)
		}
		f.Loads = append(f.Loads, *w)
	}
	r.Memory = append(r.Memory, f)
	return nil
}

// under puts a stack under one load and takes it away.
func (b *bench) under(ctx context.Context, s stack, l workload) (_ *weight, err error) {
	w := &weight{Load: l.name}
	if l.services > 0 {
		defer func() { err = errors.Join(err, s.remove(ctx)) }()
		if err := s.deploy(ctx, l, "Hello"); err != nil {
			return nil, err
		}
	}
	if err := pause(ctx, b.Warmup); err != nil {
		return nil, err
	}
	if w.Holdings, w.Most, err = b.sample(ctx, s, l); err != nil {
		return nil, err
	}
	if l.services > 0 {
		w.Changing, err = peak(s, func() error { return s.deploy(ctx, l, "Servus") })
	}
	return w, err
}

// sample takes samples over a time.
func (b *bench) sample(ctx context.Context, s stack, l workload) (medians []holding, most int64, err error) {
	var samples [][]holding
	for range b.Samples {
		if err := pause(ctx, b.Over/time.Duration(b.Samples)); err != nil {
			return nil, 0, err
		}
		if l.checked {
			if err := s.look(ctx); err != nil {
				return nil, 0, err
			}
		}
		now, err := holdings(s.kinds())
		if err != nil {
			return nil, 0, err
		}
		if len(samples) > 0 && !sameProcesses(samples[0], now) {
			return nil, 0, fmt.Errorf("processes came or went while memory was measured: %v, then %v", samples[0], now)
		}
		samples = append(samples, now)
		most = max(most, now[len(now)-1].PSS)
	}
	medians = slices.Clone(samples[0])
	for i := range medians {
		of := func(field func(memory) int64) int64 {
			var values []int64
			for _, sample := range samples {
				values = append(values, field(sample[i].memory))
			}
			return median(values)
		}
		medians[i].memory = memory{
			RSS:       of(func(m memory) int64 { return m.RSS }),
			PSS:       of(func(m memory) int64 { return m.PSS }),
			Anonymous: of(func(m memory) int64 { return m.Anonymous }),
		}
	}
	return medians, most, nil
}

// peak is the most that a stack holds while something is done. Processes come and
// go then: one that is gone counts nothing.
func peak(s stack, do func() error) (most int64, err error) {
	done := make(chan error, 1)
	go func() { done <- do() }()
	look := time.NewTicker(glance)
	defer look.Stop()
	for {
		select {
		case err := <-done:
			return most, err
		case <-look.C:
		}
		var sum int64
		for _, k := range s.kinds() {
			for _, pid := range k.pids {
				if m, err := memoryOf(pid); err == nil {
					sum += m.PSS
				}
			}
		}
		most = max(most, sum)
	}
}

// holdings are the memory of each kind of process now, and of all together.
func holdings(kinds []kind) ([]holding, error) {
	var all []holding
	sum := holding{What: "together"}
	for _, k := range kinds {
		if len(k.pids) == 0 {
			continue
		}
		h := holding{What: k.name, Processes: len(k.pids)}
		for _, pid := range k.pids {
			m, err := memoryOf(pid)
			if err != nil {
				return nil, err
			}
			h.memory = h.plus(m)
		}
		all = append(all, h)
		sum.Processes += h.Processes
		sum.memory = sum.plus(h.memory)
	}
	return append(all, sum), nil
}

func sameProcesses(a, b []holding) bool {
	return slices.EqualFunc(a, b, func(x, y holding) bool { return x.What == y.What && x.Processes == y.Processes })
}

func (p *printer) memory(r *report) {
	p.heading("Memory in MiB: median of %d samples over %s, after %s of rest; a poll every %s", r.Method.Samples, r.Method.Over, r.Method.Warmup, r.Method.Poll)
	for _, f := range r.Memory {
		p.line("  %-44s %9s %7s %7s %9s", f.Stack, "processes", "RSS", "PSS", "anonymous")
		for _, w := range f.Loads {
			name := w.Load
			for _, h := range w.Holdings {
				p.line("    %-10s %-31s %9d %7.1f %7.1f %9.1f", name, h.What, h.Processes, mib(h.RSS), mib(h.PSS), mib(h.Anonymous))
				name = ""
			}
			p.line("    %-10s %-31s %9s %7s %7.1f", "", "most in a sample", "", "", mib(w.Most))
			if w.Changing > 0 {
				p.line("    %-10s %-31s %9s %7s %7.1f", "", "most while it is changed", "", "", mib(w.Changing))
			}
		}
	}
	p.line("  Processes in containers are not counted. idle: nothing is deployed. simple: one")
	p.line("  service. realistic: three with health checks every 5 s and published ports; with each")
	p.line("  sample somebody asks how they are. What is changed is the environment of one service.")
}
