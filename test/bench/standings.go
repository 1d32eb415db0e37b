package main

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// goal is which part of the faster peer's time margolite is to take at most.
const goal = 0.5

func (p *printer) contest(r *report) {
	c := r.Contest
	p.heading("Compose side by side: median of %d interleaved rounds; images are present, stop signal KILL", r.Method.Races)
	head := fmt.Sprintf("  %-24s", "")
	for _, name := range c.Contenders {
		head += fmt.Sprintf(" %19s", name)
	}
	p.line("%s  ours/peer", head)
	for _, row := range c.Rows {
		line := fmt.Sprintf("  %-24s", row.What)
		for _, name := range c.Contenders {
			text := "-"
			if times := row.Times[name]; len(times) > 0 {
				text = ms(median(slices.Clone(times)))
			}
			line += fmt.Sprintf(" %19s", text)
		}
		if ratio, ok := row.ratio(); ok {
			line += fmt.Sprintf("  %.2f", ratio)
			if ratio > goal {
				line += "  more than half"
			}
		}
		p.line("%s", line)
	}
	p.line("  ours/peer: margolite through its agent on the containerd of nerdctl, and the faster peer.")
	for _, missing := range c.Missing {
		p.line("  missing: %s", missing)
	}
	for _, note := range c.Notes {
		p.line("  note: %s", note)
	}
	p.heading("Memory of the shims of a project in MiB, proportional")
	for _, s := range c.Shims {
		p.line("  %-44s %3d services %3d shims %7.1f  %5.2f for each service", s.Contender, s.Services, s.Processes, mib(s.PSS), mib(s.PSS)/float64(s.Services))
	}
}

// ratio is how the first contender, which is ours, compares with the fastest peer.
func (r *row) ratio() (float64, bool) {
	var ours, peer time.Duration
	for name, times := range r.Times {
		took := median(slices.Clone(times))
		switch {
		case name == agentName:
			ours = took
		case !strings.HasPrefix(name, "margolite") && (peer == 0 || took < peer):
			peer = took
		}
	}
	return float64(ours) / float64(peer), ours > 0 && peer > 0
}
