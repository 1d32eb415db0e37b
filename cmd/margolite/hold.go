package main

import (
	"context"
	"fmt"
	"time"

	"github.com/margolite/margolite/agent/control"
)

// hold takes an update lock: nothing is changed while it is held.
func (c *cli) hold(ctx context.Context, args []string) error {
	f := c.flags("hold")
	var r control.HoldRequest
	f.Func("for", "give it back by itself after `DURATION`, as 90m or 8h; default: never", func(s string) error {
		d, err := time.ParseDuration(s)
		if err != nil || d < time.Second || d > control.MaxHoldSeconds*time.Second {
			return fmt.Errorf("%q is no duration such as 90m or 8h, of a second to ten years", s)
		}
		r.Seconds = int64((d + time.Second - 1) / time.Second)
		return nil
	})
	f.StringVar(&r.Reason, "reason", "", "`TEXT` for people: why")
	f.StringVar(&r.Holder, "as", "", "in the name of `NAME`; default: the user")
	f.StringVar(&r.Deployment, "deployment", "", "hold only this `DEPLOYMENT`")
	if err := c.parseNone(f, args); err != nil {
		return err
	}
	client, _, err := c.client(false)
	if err != nil {
		return err
	}
	if r.Deployment != "" {
		s, err := client.Status(ctx)
		if err != nil {
			return hinted(err)
		}
		d, err := deploymentOf(s, r.Deployment)
		if err != nil {
			return err
		}
		r.Deployment = d.ID
	}
	lock, err := client.Hold(ctx, r)
	if err != nil {
		return hinted(err)
	}
	fmt.Fprintf(plainWriter{c.out}, "held %s\n", lockText(lock, time.Now()))
	return nil
}

// release gives back the update locks of a holder.
func (c *cli) release(ctx context.Context, args []string) error {
	f := c.flags("release")
	var r control.ReleaseRequest
	f.StringVar(&r.Holder, "as", "", "those in the name of `NAME`; default: the user's")
	f.BoolVar(&r.All, "all", false, "those of all holders")
	if err := c.parseNone(f, args); err != nil {
		return err
	}
	if r.All && r.Holder != "" {
		return usagef("--as and --all contradict each other")
	}
	client, _, err := c.client(false)
	if err != nil {
		return err
	}
	released, err := client.Release(ctx, r)
	if err != nil {
		return hinted(err)
	}
	now := time.Now()
	for _, lock := range released {
		fmt.Fprintf(plainWriter{c.out}, "released lock held %s\n", lockText(lock, now))
	}
	if len(released) == 0 {
		fmt.Fprintln(c.out, "there was nothing to release")
	}
	s, err := client.Status(ctx)
	if err != nil {
		return fmt.Errorf("cannot tell what is still held: %w", hinted(err))
	}
	for _, lock := range s.Locks {
		fmt.Fprintf(plainWriter{c.out}, "still held %s\n", lockText(lock, now))
	}
	return nil
}

// lockText says who holds what until when, and why.
func lockText(l control.Lock, now time.Time) string {
	of := "for all deployments"
	if l.Deployment != "" {
		of = "for deployment " + l.Deployment
	}
	until := "until it is released"
	switch {
	case l.File != "":
		until = "by lock file " + l.File
	case l.Until != nil && l.Until.After(now):
		until = fmt.Sprintf("until %s (in %s)", l.Until.Local().Format(time.DateTime), ago(*l.Until, now))
	case l.Until != nil:
		until = "until " + l.Until.Local().Format(time.DateTime)
	}
	holder := l.Holder
	if l.By != "" {
		holder += ", " + l.By + ","
	}
	return fmt.Sprintf("by %s %s %s%s", holder, of, until, prefixed(": ", l.Reason))
}

// taken says since when a lock is held; empty: nobody knows.
func taken(l control.Lock, now time.Time) string {
	if l.Since == nil {
		return ""
	}
	return ", taken " + ago(now, *l.Since) + " ago"
}
