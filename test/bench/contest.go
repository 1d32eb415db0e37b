package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/margolite/margolite/test/plant"
)

// standing is how everybody did.
type standing struct {
	Contenders []string
	Missing    []string
	Notes      []string
	Rows       []row
	Shims      []shims
}

// row is one thing that every contender did, in as many rounds as there were.
type row struct {
	What  string
	Times map[string][]time.Duration // by contender, round by round
}

// shims is what the shims of a project hold.
type shims struct {
	Contender string
	Services  int
	Processes int
	memory
}

// between is the rest between two contenders: what one of them puts off is not
// to slow down the next one.
const between = 300 * time.Millisecond

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
	for _, missing := range c.missing {
		say("missing: %s", missing)
	}
	for _, n := range c.Sizes {
		say("contest of %s: %d services", strings.Join(s.Contenders, ", "), n)
		if err := c.race(ctx, s, n); err != nil {
			return s, err
		}
	}
	say("contest: restart after a crash")
	return s, c.crashes(ctx, s)
}

// laps are the rows of one race.
type laps struct{ up, same, change, down int }

// race measures projects of n services.
func (c *contest) race(ctx context.Context, s *standing, n int) error {
	rows := laps{
		up:     s.row(fmt.Sprintf("up, %d services", n)),
		same:   s.row(fmt.Sprintf("up again, %d services", n)),
		change: s.row(fmt.Sprintf("change of one of %d", n)),
		down:   s.row(fmt.Sprintf("down, %d services", n)),
	}
	for round := range c.Races {
		for i := range c.contenders {
			one := c.contenders[(i+round)%len(c.contenders)]
			p := &project{contender: one, name: fmt.Sprintf("bench%d", n), services: n, sleep: 86400 + slices.Index(c.contenders, one)}
			p.file = filepath.Join(c.volatile, p.name+".yaml")
			err := s.lap(ctx, p, rows, round == 0)
			if err != nil && (one.ours || ctx.Err() != nil) {
				return err
			}
			if err != nil { // a peer may fail, that is its figure
				s.note("%s, %d services: %v", one.name, n, err)
				_ = p.timed(ctx, nil, "down")
			}
			if err := pause(ctx, between); err != nil {
				return err
			}
		}
	}
	return nil
}

// lap is one round of one contender.
func (s *standing) lap(ctx context.Context, p *project, l laps, weighed bool) error {
	if err := p.write("once"); err != nil {
		return err
	}
	if err := p.timed(ctx, s.at(l.up), p.up...); err != nil {
		return err
	}
	before := p.started(ctx)
	if err := s.allRun(p, before); err != nil {
		return err
	}
	if weighed {
		if err := s.weigh(p.contender, p.services); err != nil {
			return err
		}
	}
	if err := p.timed(ctx, s.at(l.same), p.up...); err != nil {
		return err
	}
	again := p.started(ctx)
	if err := s.allRun(p, again); err != nil {
		return err
	}
	if p.ours && !slices.Equal(again, before) { // nerdctl makes all anew
		return fmt.Errorf("%s: up again left processes %v of %v", p.contender.name, again, before)
	}
	if err := p.write("again"); err != nil {
		return err
	}
	if err := p.timed(ctx, s.at(l.change), p.up...); err != nil {
		return err
	}
	after := p.started(ctx)
	if err := s.allRun(p, after); err != nil {
		return err
	}
	kept := slices.DeleteFunc(after, func(pid int) bool { return !slices.Contains(again, pid) })
	if p.ours && len(kept) != p.services-1 {
		return fmt.Errorf("%s: the change of one service left %v of %v", p.contender.name, kept, again)
	}
	if err := p.timed(ctx, s.at(l.down), "down"); err != nil {
		return err
	}
	if left := p.processes(); len(left) > 0 {
		return fmt.Errorf("%s: processes %v run after down", p.contender.name, left)
	}
	return nil
}

// allRun tells that not every service of ours runs. Of a peer it is noted: its
// time is for less than was asked of it.
func (s *standing) allRun(p *project, processes []int) error {
	if len(processes) == p.services {
		return nil
	}
	what := fmt.Sprintf("%s: %d of %d services ran when it said that it was done", p.contender.name, len(processes), p.services)
	if p.ours {
		return errors.New(what)
	}
	s.note("%s", what)
	return nil
}

func (s *standing) note(format string, args ...any) {
	text, _, _ := strings.Cut(fmt.Sprintf(format, args...), "\n")
	say("%s", text)
	s.Notes = append(s.Notes, text)
}

// project is a project of one contender.
type project struct {
	*contender
	name, file string
	services   int
	sleep      int  // by which its processes are known
	restarted  bool // when a process ends
}

// write writes the Compose file. greeting is in the environment of the first service.
func (p *project) write(greeting string) error {
	var text strings.Builder
	text.WriteString("services:\n")
	for i := range p.services {
		fmt.Fprintf(&text, "  s%02d:\n    image: %s\n    command: [/bin/sleep, %q]\n    stop_signal: SIGKILL\n", i, benchImage, fmt.Sprint(p.sleep))
		if p.restarted {
			text.WriteString("    restart: always\n")
		}
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
	return plant.Processes(fmt.Sprintf("/bin/sleep\x00%d\x00", p.sleep))
}

func (s *standing) row(what string) int {
	s.Rows = append(s.Rows, row{What: what, Times: map[string][]time.Duration{}})
	return len(s.Rows) - 1
}

func (s *standing) at(i int) *row { return &s.Rows[i] }

// weigh takes the memory of the shims that a project of n services has.
func (s *standing) weigh(c *contender, n int) error {
	w := shims{Contender: c.name, Services: n}
	for _, pid := range plant.Processes(c.shims...) {
		m, err := memoryOf(pid)
		if err != nil {
			return err
		}
		w.Processes++
		w.memory = w.plus(m)
	}
	s.Shims = append(s.Shims, w)
	return nil
}

// crashes kills the process of a container, and measures how long it takes until
// another one runs. Without an agent, nobody restarts anything.
func (c *contest) crashes(ctx context.Context, s *standing) error {
	i := s.row("restart after a crash")
	for round := range c.Races {
		for k := range c.contenders {
			one := c.contenders[(k+round)%len(c.contenders)]
			if one.ours && one.agent == nil {
				continue
			}
			p := &project{contender: one, name: "crash", services: 1, restarted: true, sleep: 96400 + slices.Index(c.contenders, one)}
			p.file = filepath.Join(c.volatile, "crash.yaml")
			if err := p.write("once"); err != nil {
				return err
			}
			took, err := p.crash(ctx)
			if err == nil {
				s.at(i).Times[one.name] = append(s.at(i).Times[one.name], took)
			}
			err = errors.Join(err, p.timed(ctx, nil, "down"))
			if err != nil && (one.ours || ctx.Err() != nil) {
				return err
			}
			if err != nil {
				s.note("%s, crash: %v", one.name, err)
			}
		}
	}
	return nil
}

// crash starts the project, ends its process, and waits for the next.
func (p *project) crash(ctx context.Context) (time.Duration, error) {
	if err := p.timed(ctx, nil, p.up...); err != nil {
		return 0, err
	}
	if err := pause(ctx, between); err != nil {
		return 0, err
	}
	before := p.processes()
	if len(before) != 1 {
		return 0, fmt.Errorf("%s: processes %v run, want one", p.contender.name, before)
	}
	begun := time.Now()
	if err := syscall.Kill(before[0], syscall.SIGKILL); err != nil {
		return 0, err
	}
	for time.Since(begun) < time.Minute {
		if now := p.processes(); len(now) == 1 && now[0] != before[0] {
			return time.Since(begun), nil
		}
		if err := pause(ctx, 2*time.Millisecond); err != nil {
			return 0, err
		}
	}
	return 0, fmt.Errorf("%s: nothing runs a minute after a crash", p.contender.name)
}
