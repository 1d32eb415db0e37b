package main

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/margolite/margolite/agent/control"
	"github.com/margolite/margolite/cmd/command"
)

type logsFlags struct {
	control.LogsRequest
	noPrefix, noColor bool
}

func (l *logsFlags) add(f *command.Flags, follow string, now time.Time) {
	f.BoolVar(&l.Follow, follow, false, "follow the output")
	f.BoolVar(&l.Timestamps, "timestamps,t", false, "show the time of each line")
	f.Func("tail,n", "show the last `N` lines of each container only, or all", func(s string) error {
		if s == "all" {
			l.Tail = nil
			return nil
		}
		n, err := strconv.Atoi(s)
		if err != nil || n < 0 {
			return fmt.Errorf("invalid number of lines %q: use a number, or all", s)
		}
		l.Tail = &n
		return nil
	})
	f.Func("since", "show lines since `TIME` only, such as 10m or 2026-01-31T12:00:00Z", moment(&l.Since, now))
	f.Func("until", "show lines until `TIME` only", moment(&l.Until, now))
	f.BoolVar(&l.noPrefix, "no-log-prefix", false, "omit the names of containers")
	f.BoolVar(&l.noColor, "no-color", false, "omit colours")
}

func (l *logsFlags) request(c *cli, services []string) control.LogsRequest {
	l.Services = services
	if l.noPrefix {
		l.Prefix = control.PrefixNever
	}
	l.Color = c.colored() && !l.noColor
	return l.LogsRequest
}

func (c *cli) colored() bool {
	off, set := lookup(c.env, "NO_COLOR")
	return isTerminal(c.out) && (!set || off == "")
}

// moment reads a time in Docker's forms: a point in time (local time unless it names a zone),
// seconds since 1970, or a duration ago.
func moment(to *time.Time, now time.Time) func(string) error {
	return func(s string) error {
		if d, err := time.ParseDuration(s); err == nil {
			*to = now.Add(-d)
			return nil
		}
		if seconds, err := strconv.ParseFloat(s, 64); err == nil && seconds >= 0 && seconds < 1<<40 {
			*to = time.UnixMilli(int64(seconds * 1000))
			return nil
		}
		for _, layout := range []string{time.RFC3339Nano, "2006-01-02T15:04:05.999999999", "2006-01-02T15:04", "2006-01-02"} {
			if t, err := time.ParseInLocation(layout, s, time.Local); err == nil {
				*to = t
				return nil
			}
		}
		return fmt.Errorf("invalid time %q: use 10m, 2026-01-31 or 2026-01-31T12:00:00Z", s)
	}
}

func (c *cli) logs(f *command.Flags) command.Action {
	l := &logsFlags{}
	l.add(f, "follow,f", time.Now())
	f.Takes(1, command.Many, "a deployment and optionally some of its services")
	return c.asks(func(ctx context.Context, client *control.Client, names []string) error {
		l.Deployment = names[0]
		return client.Logs(ctx, l.request(c, names[1:]), c.out)
	})
}

// composeLogs shows the output of a Compose project's services. As with Docker, -f means the
// Compose file before the verb, and follow after it.
func (c *cli) composeLogs(f *command.Flags) command.Action {
	c.composeFlags(f)
	l := &logsFlags{}
	l.add(f, "follow", time.Now())
	f.Lookup("follow").Usage += "; -f does the same where no file follows it"
	l.Prefix = control.PrefixAlways
	f.Rewrite = followed
	f.Takes(0, command.Many, "services")
	return func(ctx context.Context, services []string) error {
		if err := c.findName(ctx); err != nil {
			return err
		}
		l.Project = c.project.ProjectName
		return c.withProjects(ctx, func(w *reached) error { return w.Logs(ctx, l.request(c, services), c.out) })
	}
}

// followed reads -f as Docker does, unless a Compose file follows it.
func followed(args []string) []string {
	var result []string
	for i, arg := range args {
		file := i+1 < len(args) && slices.Contains([]string{".yaml", ".yml"}, filepath.Ext(args[i+1]))
		switch {
		case arg == "-f" && !file:
			result = append(result, "--follow")
		case arg == "-ft", arg == "-tf":
			result = append(result, "--follow", "--timestamps")
		default:
			result = append(result, arg)
		}
	}
	return result
}
