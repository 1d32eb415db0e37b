package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/margolite/margolite/test/plant"
)

const (
	// goal is which part of the faster peer's time margolite is to take at most.
	goal = 0.5
	// between is the rest between two contenders: what one of them puts off is not to
	// slow down the next one.
	between = 300 * time.Millisecond
)

// standing is how everybody did.
type standing struct {
	Contenders []string
	Missing    []string
	Rows       []row
}

// row is one thing that every contender did, in as many rounds as there were.
type row struct {
	What  string
	Times map[string][]time.Duration // by contender, round by round
}

// measureContest lets everybody who is there do the same, one after the other,
// round after round, each round in another order. It gives what it has also when
// it fails.
func (b *bench) measureContest(ctx context.Context, dir string) (_ *standing, err error) {
	home := filepath.Join(dir, "c")
	if err := os.MkdirAll(home, 0o755); err != nil {
		return nil, err
	}
	c, err := newContest(ctx, home, b.native(), b.method)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, c.close()) }()
	s := &standing{Missing: c.missing}
	for _, one := range c.contenders {
		s.Contenders = append(s.Contenders, one.name)
	}
	for _, n := range []int{1, 3, 20} {
		say("contest of %s: %d services", strings.Join(s.Contenders, ", "), n)
		if err := c.race(ctx, s, n); err != nil {
			return s, err
		}
	}
	return s, nil
}

// race measures projects of n services.
func (c *contest) race(ctx context.Context, s *standing, n int) error {
	first := len(s.Rows)
	for _, what := range []string{"up, %d services", "change of one of %d", "down, %d services"} {
		s.Rows = append(s.Rows, row{What: fmt.Sprintf(what, n), Times: map[string][]time.Duration{}})
	}
	for round := range c.Races {
		for i := range c.contenders {
			one := c.contenders[(i+round)%len(c.contenders)]
			p := &project{contender: one, name: fmt.Sprintf("bench%d", n), services: n, sleep: 86400 + slices.Index(c.contenders, one)}
			p.file = filepath.Join(c.volatile, p.name+".yaml")
			err := p.lap(ctx, s.Rows[first:])
			if err != nil && (one.ours || ctx.Err() != nil) {
				return err
			}
			if err != nil { // a peer may fail, that is its figure
				say("%s, %d services: %v", one.name, n, err)
				_ = p.timed(ctx, nil, "down")
			}
			if err := pause(ctx, between); err != nil {
				return err
			}
		}
	}
	return nil
}

// project is a project of one contender.
type project struct {
	*contender
	name, file string
	services   int
	sleep      int // by which its processes are known
}

// lap is one round of one contender, whose times go into the rows: up, a change of
// one service, down.
func (p *project) lap(ctx context.Context, rows []row) error {
	var before []int
	for i, greeting := range []string{"once", "again"} {
		if err := p.write(greeting); err != nil {
			return err
		}
		if err := p.timed(ctx, &rows[i], p.up...); err != nil {
			return err
		}
		now := p.started(ctx)
		if len(now) != p.services {
			return fmt.Errorf("%s: %d of %d services ran when it said that it was done", p.contender.name, len(now), p.services)
		}
		kept := slices.DeleteFunc(slices.Clone(now), func(pid int) bool { return !slices.Contains(before, pid) })
		if p.ours && i > 0 && len(kept) != p.services-1 {
			return fmt.Errorf("%s: the change of one service left %v of %v", p.contender.name, kept, before)
		}
		before = now
	}
	if err := p.timed(ctx, &rows[2], "down"); err != nil {
		return err
	}
	if left := p.processes(); len(left) > 0 {
		return fmt.Errorf("%s: processes %v run after down", p.contender.name, left)
	}
	return nil
}

// write writes the Compose file. greeting is in the environment of the first service.
func (p *project) write(greeting string) error {
	var text strings.Builder
	text.WriteString("services:\n")
	for i := range p.services {
		fmt.Fprintf(&text, "  s%02d:\n    image: %s\n    command: [/bin/busybox, sleep, %q]\n    stop_signal: SIGKILL\n", i, benchImage, fmt.Sprint(p.sleep))
		if i == 0 {
			fmt.Fprintf(&text, "    environment: {GREETING: %s}\n", greeting)
		}
	}
	return os.WriteFile(p.file, []byte(text.String()), 0o600)
}

// timed runs a verb of compose and notes how long it took.
func (p *project) timed(ctx context.Context, r *row, verb ...string) error {
	args := slices.Clone(verb)
	if p.ours { // whose flags follow the verb
		if verb[0] != "up" {
			args = append(args, p.up[1:]...)
		}
		args = append(args, "-f", p.file, "-p", p.name)
	} else {
		args = slices.Concat([]string{"-f", p.file, "-p", p.name}, args)
	}
	begun := time.Now()
	err := p.place.run(ctx, p.command(ctx, args...))
	if r != nil && err == nil {
		r.Times[p.contender.name] = append(r.Times[p.contender.name], time.Since(begun))
	}
	return err
}

// started are the processes in the containers. A process that containerd calls running may be about to become the
// container's.
func (p *project) started(ctx context.Context) []int {
	for range 100 {
		if found := p.processes(); len(found) == p.services || pause(ctx, 10*time.Millisecond) != nil {
			return found
		}
	}
	return p.processes()
}

// processes are those in the containers now.
func (p *project) processes() []int {
	return plant.Processes(fmt.Sprintf("/bin/busybox\x00sleep\x00%d\x00", p.sleep))
}

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
		var ours, peer time.Duration
		for _, name := range c.Contenders {
			times := row.Times[name]
			if len(times) == 0 {
				line += fmt.Sprintf(" %19s", "-")
				continue
			}
			took := median(slices.Clone(times))
			line += fmt.Sprintf(" %19s", ms(took))
			switch {
			case name == agentName:
				ours = took
			case !strings.HasPrefix(name, "margolite") && (peer == 0 || took < peer):
				peer = took
			}
		}
		if ours > 0 && peer > 0 {
			ratio := float64(ours) / float64(peer)
			line += fmt.Sprintf("  %.2f", ratio)
			if ratio > goal {
				line += "  more than half"
			}
		}
		p.line("%s", line)
	}
	p.line("  ours/peer: margolite on the containerd of nerdctl, and the faster peer.")
	for _, missing := range c.Missing {
		p.line("  missing: %s", missing)
	}
}
