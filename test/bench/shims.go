package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
)

// shimWeight is what the shims of so many containers hold.
type shimWeight struct {
	External   bool    `json:"external"` // shims of an external containerd
	Containers int     `json:"containers"`
	Together   holding `json:"together"` // of one component: they share a shim
	Apart      holding `json:"apart"`    // each of a deployment of its own, with a shim of its own
}

// onlyShims is a stack of which the shims alone are weighed.
type onlyShims struct{ ourStack }

func (s onlyShims) kinds() []kind { return []kind{{"shims", s.Shims()}} }

// measureShims weighs our shim, which the embedded containerd starts, and that of
// the external containerd.
func (b *bench) measureShims(ctx context.Context, dir string, r *report) error {
	home := filepath.Join(dir, "s")
	if err := os.Mkdir(home, 0o755); err != nil {
		return err
	}
	setups, _, err := b.setups()
	if err != nil {
		return err
	}
	d := deviceBench{method: b.method, dir: home}
	for _, how := range setups {
		err := b.polling(ctx, d, how, func(s *subject) error {
			for _, n := range b.Shared {
				say("shims: %s containerd, %d containers", how.name, n)
				w, err := b.weighShims(ctx, onlyShims{ourStack{s}}, n)
				if err != nil {
					return err
				}
				w.External = how.external
				r.Shims = append(r.Shims, *w)
			}
			return nil
		})
		if err != nil {
			return fmt.Errorf("cannot measure the shims of the %s containerd: %w", how.name, err)
		}
	}
	return nil
}

func (b *bench) weighShims(ctx context.Context, s onlyShims, n int) (*shimWeight, error) {
	w := &shimWeight{Containers: n}
	for _, way := range []struct {
		to                    *holding
		deployments, services int
	}{{&w.Together, 1, n}, {&w.Apart, n, 1}} {
		l := workload{name: fmt.Sprintf("of-%d", way.services), services: way.services}
		for i := range way.deployments {
			if err := s.deployAs(ctx, fmt.Sprintf("5b0c7d52-7a0e-4c53-8f36-0d1a5e0f%04d", i), l, ""); err != nil {
				return nil, err
			}
		}
		if err := pause(ctx, b.Warmup); err != nil {
			return nil, err
		}
		medians, _, err := b.sample(ctx, s, l)
		if err != nil {
			return nil, err
		}
		*way.to = medians[len(medians)-1]
		if err := s.Clear(ctx); err != nil {
			return nil, err
		}
	}
	return w, nil
}

func (p *printer) shims(r *report) {
	p.heading("Memory of shims in MiB, by the containers that they serve")
	p.line("  %-20s %10s  %-9s %9s %7s %7s %9s", "containerd", "containers", "", "processes", "RSS", "PSS", "anonymous")
	for _, w := range r.Shims {
		containerd := "embedded"
		if w.External {
			containerd = "external"
		}
		row := func(how string, h holding) {
			p.line("  %-20s %10d  %-9s %9d %7.1f %7.1f %9.1f", containerd, w.Containers, how, h.Processes, mib(h.RSS), mib(h.PSS), mib(h.Anonymous))
		}
		row("together", w.Together)
		row("apart", w.Apart)
	}
	p.line("  Together are those of one component, as margolite starts them; apart each is of another one.")
}
