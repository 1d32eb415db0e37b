package main

import (
	"context"
	"fmt"
	"time"

	"github.com/margolite/margolite/agent/control"
	"github.com/margolite/margolite/cmd/command"
)

func (c *cli) hold(f *command.Flags) command.Action {
	var r control.HoldRequest
	f.Func("for", "release the lock after `DURATION`, such as 90m or 8h; default: never", func(s string) error {
		d, err := time.ParseDuration(s)
		if err != nil || d < time.Second || d > control.MaxHoldSeconds*time.Second {
			return fmt.Errorf("invalid duration %q: use 90m or 8h (1s to 10 years)", s)
		}
		r.Seconds = int64((d + time.Second - 1) / time.Second)
		return nil
	})
	f.StringVar(&r.Reason, "reason", "", "explain the decision with `TEXT`")
	f.StringVar(&r.Holder, "as", "", "hold it in the name of `NAME`; default: the user")
	f.StringVar(&r.Deployment, "deployment", "", "hold `DEPLOYMENT` only")
	return c.asks(func(ctx context.Context, client *control.Client, _ []string) error {
		lock, err := client.Hold(ctx, r)
		if err == nil {
			fmt.Fprintf(plainWriter{c.out}, "held %s\n", lockText(lock, time.Now()))
		}
		return err
	})
}

func (c *cli) release(f *command.Flags) command.Action {
	var r control.ReleaseRequest
	f.StringVar(&r.Holder, "as", "", "release the locks in the name of `NAME`; default: the user's")
	f.BoolVar(&r.All, "all", false, "release the locks of all holders")
	return c.asks(func(ctx context.Context, client *control.Client, _ []string) error {
		if r.All && r.Holder != "" {
			return command.Usagef("give release --as or --all, not both")
		}
		released, err := client.Release(ctx, r)
		if err != nil {
			return err
		}
		now := time.Now()
		for _, lock := range released {
			fmt.Fprintf(plainWriter{c.out}, "released the lock held %s\n", lockText(lock, now))
		}
		if len(released) == 0 {
			fmt.Fprintln(c.out, "There is no lock to release.")
		}
		s, err := client.Status(ctx)
		if err != nil {
			return fmt.Errorf("cannot read the remaining locks: %w", err)
		}
		for _, lock := range s.Locks {
			fmt.Fprintf(plainWriter{c.out}, "still held %s\n", lockText(lock, now))
		}
		return nil
	})
}

func lockText(l control.Lock, now time.Time) string {
	of := "for all deployments"
	if l.Deployment != "" {
		of = "for deployment " + l.Deployment
	}
	until := "until it is released"
	switch {
	case l.File != "":
		until = "by lock file " + l.File
	case l.Until.After(now):
		until = fmt.Sprintf("until %s (in %s)", l.Until.Local().Format(time.DateTime), ago(l.Until, now))
	case !l.Until.IsZero():
		until = "until " + l.Until.Local().Format(time.DateTime)
	}
	holder := l.Holder
	if l.By != "" {
		holder += ", " + l.By + ","
	}
	return fmt.Sprintf("by %s %s %s%s", holder, of, until, prefixed(": ", l.Reason))
}

// taken says since when a lock is held; empty if unknown.
func taken(l control.Lock, now time.Time) string {
	if l.Since.IsZero() {
		return ""
	}
	return ", taken " + ago(now, l.Since) + " ago"
}
