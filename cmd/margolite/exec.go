package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"strings"

	"github.com/docker/go-units"
	"golang.org/x/term"

	"github.com/margolite/margolite/agent/control"
)

// execFlags are those of both commands that run a command in a container.
type execFlags struct {
	control.ExecRequest
	env   texts
	noTTY bool
}

func (e *execFlags) add(f *flag.FlagSet) {
	f.BoolVar(&e.noTTY, "no-TTY", false, "do not allocate a terminal")
	short(f, "T", "no-TTY")
	var habit bool
	f.BoolVar(&habit, "interactive", true, "accepted for compatibility: input is always passed on")
	short(f, "i", "interactive")
	f.BoolVar(&habit, "tty", true, "accepted for compatibility: a terminal is used where there is one")
	short(f, "t", "tty")
	f.BoolVar(&e.Detach, "detach", false, "do not wait for the command")
	short(f, "d", "detach")
	f.StringVar(&e.User, "user", "", "run as `USER[:GROUP]`")
	short(f, "u", "user")
	f.StringVar(&e.WorkingDir, "workdir", "", "run in `DIR`")
	short(f, "w", "workdir")
	f.Var(&e.env, "env", "set a variable: `NAME=VALUE`, or NAME to pass its value on; may be repeated")
	short(f, "e", "env")
	f.BoolVar(&e.Privileged, "privileged", false, "run with all capabilities")
	f.IntVar(&e.Number, "index", 0, "use replica `N`; default: the first that runs")
}

func (c *cli) exec(ctx context.Context, args []string) error {
	f := c.flags("exec")
	e := &execFlags{}
	e.add(f)
	names, command, err := c.parseCommand(f, args, 2)
	if err != nil {
		return err
	}
	if len(names) < 2 || len(command) == 0 {
		return usagef("give exec a deployment, a service and a command")
	}
	e.Deployment, e.Service, e.Args = names[0], names[1], command
	client, _, err := c.client()
	if err != nil {
		return err
	}
	return c.execute(ctx, e, client.Exec)
}

func (c *cli) composeExec(ctx context.Context, args []string) error {
	p, f := &c.project, c.composeFlags("compose exec")
	e := &execFlags{}
	e.add(f)
	names, command, err := c.parseCommand(f, args, 1)
	if err != nil {
		return err
	}
	if len(names) < 1 || len(command) == 0 {
		return usagef("give compose exec a service and a command")
	}
	if err := c.findName(ctx); err != nil {
		return err
	}
	e.Project, e.Service, e.Args = p.ProjectName, names[0], command
	return c.withProjects(ctx, func(w *reached) error {
		if e.Detach && w.supervise != nil {
			return usagef("--detach needs a running agent")
		}
		return c.execute(ctx, e, w.ComposeExec)
	})
}

// execute runs a command with the streams of this process. The error has its
// exit code, if that is not 0.
func (c *cli) execute(ctx context.Context, e *execFlags, run func(context.Context, control.ExecRequest, control.ExecStreams) (int, error)) error {
	for _, v := range e.env {
		if !strings.Contains(v, "=") {
			value, ok := lookup(c.env, v)
			if !ok {
				continue
			}
			v += "=" + value
		}
		e.Env = append(e.Env, v)
	}
	if e.Detach {
		_, err := run(ctx, e.ExecRequest, control.ExecStreams{})
		return err
	}
	s := control.ExecStreams{Stdin: c.in, Stdout: c.out, Stderr: c.err}
	if !e.noTTY && isTerminal(c.in) && isTerminal(c.out) {
		e.TTY = true
		if kind, ok := lookup(c.env, "TERM"); ok {
			e.Env = append([]string{"TERM=" + kind}, e.Env...)
		}
		keyboard := int(c.in.(*os.File).Fd())
		before, err := term.MakeRaw(keyboard) // every key is the program's
		if err != nil {
			return fmt.Errorf("cannot set the mode of the terminal: %w", err)
		}
		defer func() { _ = term.Restore(keyboard, before) }() // the command has ended: no use for an error
		sizing, stop := context.WithCancel(ctx)
		sizes, join := terminalSizes(sizing, c.out.(*os.File))
		defer join()
		defer stop()
		s.Resize, s.Stderr = sizes, nil
	}
	code, err := run(ctx, e.ExecRequest, s)
	if err != nil {
		return err
	}
	if code != exitDone {
		return &exitError{code}
	}
	return nil
}

func lookup(env []string, name string) (value string, ok bool) {
	for _, v := range env {
		if key, found, assigned := strings.Cut(v, "="); assigned && key == name {
			value, ok = found, true
		}
	}
	return value, ok
}

func bytesIn(n int64) string {
	if n < 1000 {
		return fmt.Sprintf("%d B", n)
	}
	return units.CustomSize("%.1f %s", float64(n), 1000, []string{"B", "kB", "MB", "GB", "TB"})
}
