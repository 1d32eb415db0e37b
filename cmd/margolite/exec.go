package main

import (
	"context"
	"fmt"
	"os"
	"strings"

	"github.com/docker/go-units"
	"golang.org/x/term"

	"github.com/margolite/margolite/agent/control"
	"github.com/margolite/margolite/cmd/command"
)

type execFlags struct {
	control.ExecRequest
	env   command.Texts
	noTTY bool
}

func (e *execFlags) add(f *command.Flags) {
	f.BoolVar(&e.noTTY, "no-TTY,T", false, "do not allocate a terminal")
	var habit bool
	f.BoolVar(&habit, "interactive,i", true, "accepted for compatibility: input is always passed on")
	f.BoolVar(&habit, "tty,t", true, "accepted for compatibility: a terminal is used where there is one")
	f.BoolVar(&e.Detach, "detach,d", false, "do not wait for the command")
	f.StringVar(&e.User, "user,u", "", "run as `USER[:GROUP]`")
	f.StringVar(&e.WorkingDir, "workdir,w", "", "run in `DIR`")
	f.Var(&e.env, "env,e", "set a variable: `NAME=VALUE`, or NAME to pass its value on; may be repeated")
	f.BoolVar(&e.Privileged, "privileged", false, "run with all capabilities")
	f.IntVar(&e.Number, "index", 0, "use replica `N`; default: the first that runs")
}

func (c *cli) exec(f *command.Flags) command.Action {
	e := &execFlags{}
	e.add(f)
	f.Takes(3, command.Many, "a deployment, a service and a command")
	f.Own = 2
	return c.asks(func(ctx context.Context, client *control.Client, args []string) error {
		e.Deployment, e.Service, e.Args = args[0], args[1], args[2:]
		return c.execute(ctx, e, client.Exec)
	})
}

func (c *cli) composeExec(f *command.Flags) command.Action {
	c.composeFlags(f)
	e := &execFlags{}
	e.add(f)
	f.Takes(2, command.Many, "a service and a command")
	f.Own = 1
	return func(ctx context.Context, args []string) error {
		if err := c.findName(ctx); err != nil {
			return err
		}
		e.Project, e.Service, e.Args = c.project.ProjectName, args[0], args[1:]
		return c.withProjects(ctx, func(w *reached) error {
			if e.Detach && w.supervise != nil {
				return command.Usagef("--detach needs a running agent")
			}
			return c.execute(ctx, e, w.Exec)
		})
	}
}

// execute runs a command with the streams of this process. The error has its exit code, if not 0.
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
		before, err := term.MakeRaw(keyboard) // every key goes to the program
		if err != nil {
			return fmt.Errorf("cannot set the mode of the terminal: %w", err)
		}
		defer func() { _ = term.Restore(keyboard, before) }() // the command has ended: errors do not matter
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
	if code != command.Done {
		return command.Exit(code)
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
