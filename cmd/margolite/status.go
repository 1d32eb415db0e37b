package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/margolite/margolite/agent/control"
	"github.com/margolite/margolite/cmd/command"
)

func (c *cli) status(f *command.Flags) command.Action {
	c.jsonFlag(f)
	return c.asks(func(ctx context.Context, client *control.Client, _ []string) error {
		s, err := client.Status(ctx)
		if err != nil {
			return err
		}
		if c.json {
			return c.printJSON(s)
		}
		c.printStatus(s, time.Now())
		return nil
	})
}

func (c *cli) printStatus(s *control.Status, now time.Time) {
	w := table(plainWriter{c.out})
	fmt.Fprintf(w, "device\t%s\n", s.Device)
	fmt.Fprintf(w, "agent\t%s, up %s\n", s.Agent.Version, ago(now, s.Agent.Started))
	reach := "unreachable"
	switch {
	case s.WFM.Reachable:
		reach = "reachable"
	case s.WFM.LastPoll.IsZero():
		reach = "not asked yet"
	}
	fmt.Fprintf(w, "wfm\t%s, %s\n", s.WFM.URL, reach)
	if !s.WFM.LastPoll.IsZero() {
		fmt.Fprintf(w, "last poll\t%s ago%s\n", ago(now, s.WFM.LastPoll), prefixed(": ", s.WFM.LastError))
	}
	if !s.WFM.LastContact.IsZero() {
		fmt.Fprintf(w, "contact\tthe WFM answered %s ago\n", ago(now, s.WFM.LastContact))
	}
	if s.WFM.NextPoll.After(now) {
		fmt.Fprintf(w, "next poll\tin %s%s\n", ago(s.WFM.NextPoll, now), prefixed(", ", waitingFor(s.WFM.Waiting)))
	}
	if s.Manifest != nil {
		fmt.Fprintf(w, "manifest\tversion %d\n", s.Manifest.Version)
	} else {
		fmt.Fprint(w, "manifest\tnone accepted yet\n")
	}
	if r := s.WFM.RefusedManifest; r != nil {
		fmt.Fprintf(w, "refused\tversion %[2]d, which the WFM has served for %[1]s: it is not greater than the accepted version %[3]d. Was the WFM restored?\n",
			ago(now, r.Since), r.Version, r.Accepted)
		fmt.Fprint(w, "\tworkloads are not touched; `margolite accept-rollback` shows the difference and accepts it\n")
	}
	printIdentity(w, s.Identity, now)
	if s.Outbox > 0 {
		fmt.Fprintf(w, "reports\t%d waiting for the WFM\n", s.Outbox)
	}
	for _, l := range s.Locks {
		fmt.Fprintf(w, "lock\t%s\n", line(lockText(l, now)+taken(l, now)))
	}
	if d := s.Damage; d != nil {
		fmt.Fprintf(w, "records\tdamaged and recreated %s ago: %s\n", ago(now, d.At), line(d.Text))
		if d.Kept != "" {
			fmt.Fprintf(w, "\tdelete %s in state.dir once it is no longer needed for an investigation\n", d.Kept)
		}
	}
	if s.RuntimeError != "" {
		fmt.Fprintf(w, "containers\t%s\n", s.RuntimeError)
	}
	if c := s.SelfCheck; c != nil {
		for _, p := range c.Problems {
			fmt.Fprintf(w, "attention\t%s%s\n", line(p.Text), prefixed("; fix: ", p.Mend))
		}
		if p := c.LastPanic; p != nil {
			fmt.Fprintf(w, "mistake\t%s ago, %s: %s\n", ago(now, p.Time), line(p.Object), line(p.Text))
		}
	}
	w.Flush()
	for _, d := range s.Deployments {
		c.printDeployment(d, now)
	}
	if len(s.Deployments) == 0 {
		fmt.Fprintln(c.out, "\nno deployments")
	}
}

// waitingFor says in words why the next poll waits; "" if only for the interval.
func waitingFor(reason string) string {
	return map[string]string{
		"backoff":  "the last one failed",
		"refused":  "the WFM does not accept this device",
		"retired":  "the WFM ended the relationship with this device",
		"window":   "when a window opens",
		"silence":  "the WFM asked for this delay",
		"downtime": "after downtime",
	}[reason]
}

func printIdentity(w io.Writer, i control.IdentityStatus, now time.Time) {
	if !i.Expires.IsZero() {
		left := "expired " + ago(now, i.Expires) + " ago"
		if i.Expires.After(now) {
			left = "certificate valid for " + ago(i.Expires, now)
		}
		fmt.Fprintf(w, "identity\t%s\n", strings.TrimPrefix(i.Client+", "+left, ", "))
	}
	if b := i.TrustBundle; b != nil {
		switch {
		case b.Accepted.IsZero():
			fmt.Fprintf(w, "trust bundle\tnone yet%s\n", prefixed(": ", b.LastError))
		default:
			fmt.Fprintf(w, "trust bundle\t%s, %s old%s\n", plural(b.Anchors, "anchor"), ago(now, b.Accepted), prefixed("; cannot be refreshed: ", b.LastError))
		}
	}
	for _, a := range i.Warnings {
		fmt.Fprintf(w, "attention\t%s%s\n", a.Text, prefixed("; fix: ", a.Mend))
	}
}

func (c *cli) printDeployment(d control.Deployment, now time.Time) {
	out := plainWriter{c.out}
	fmt.Fprintf(out, "\n%s  %s  %s (for %s)\n", d.ID, d.Name, d.State, ago(now, d.Since))
	if r := d.Reported; r != nil {
		fmt.Fprintf(out, "  reported: %s\n", reportedText(r, d.State, now))
	}
	if d.Reason != "" && (d.Change == nil || len(d.Change.Reasons) == 0) {
		fmt.Fprintf(out, "  waits: %s\n", d.Reason)
	}
	if d.Error != nil {
		fmt.Fprintf(out, "  error: %s: %s: %s\n", d.Error.Code, d.Error.Source, indented(d.Error.Message))
	}
	if len(d.Unread) > 0 {
		fmt.Fprintf(out, "  not read by any service: parameters %s\n", line(strings.Join(d.Unread, ", ")))
	}
	if d.Change != nil {
		printChange(out, d, now)
	}
	for _, component := range d.Components {
		fmt.Fprintf(out, "  %s: %s\n", component.Name, component.State)
		if p := component.Progress; p != nil {
			fmt.Fprintf(out, "    fetching %s: %s\n", p.Object, bytesOf(p))
		}
		c.printServices("    ", component.Services, now)
	}
}

func reportedText(r *control.Reported, state string, now time.Time) string {
	text := "nothing yet"
	switch {
	case !r.At.IsZero():
		text = fmt.Sprintf("%s, %s ago", r.State, ago(now, r.At))
	case r.Waiting == 0:
		text = state + ", before the agent was started"
	}
	if r.Waiting > 0 {
		text += "; " + plural(r.Waiting, "report") + " waiting for the WFM"
	}
	return text
}

func (c *cli) printServices(indent string, services []control.Service, now time.Time) {
	w := table(c.out)
	for _, s := range services {
		fmt.Fprintf(w, "%s%s-%d\t%s\t%.12s\t%s\t%s\n", indent, s.Name, s.Number, statusOf(s, now), s.Container, s.Address, strings.Join(s.Ports, " "))
	}
	w.Flush()
	for _, s := range services {
		switch {
		case s.State == "unresponsive":
			fmt.Fprintf(c.out, "%s  %s-%d: its shim does not respond; the agent replaces it if this lasts\n", indent, s.Name, s.Number)
		case s.Health != nil && s.Health.Status == "unhealthy":
			fmt.Fprintf(c.out, "%s  %s-%d is unhealthy: its health check ended with code %d%s\n",
				indent, s.Name, s.Number, s.Health.ExitCode, prefixed(": ", indented(strings.TrimSpace(s.Health.Output))))
		case s.Health != nil && s.Health.Skipped != "":
			fmt.Fprintf(c.out, "%s  %s-%d: %s\n", indent, s.Name, s.Number, indented(s.Health.Skipped))
		}
	}
}

func (c *cli) sync(*command.Flags) command.Action {
	return c.asks(func(ctx context.Context, client *control.Client, _ []string) error { return client.Sync(ctx) })
}

func ago(later, earlier time.Time) string {
	d := later.Sub(earlier)
	switch {
	case d < time.Second:
		return "moments"
	case d < time.Hour:
		return d.Round(time.Second).String()
	case d < 48*time.Hour:
		return strings.TrimSuffix(d.Round(time.Minute).String(), "0s")
	}
	return fmt.Sprintf("%d days", int(d.Hours()/24))
}

func bytesOf(p *control.Progress) string {
	if p.Total == 0 {
		return bytesIn(p.Done)
	}
	return bytesIn(p.Done) + " of " + bytesIn(p.Total)
}

// indented prepares a text that may quote a workload for a terminal.
func indented(text string) string {
	return strings.ReplaceAll(plain(text), "\n", "\n    ")
}

func prefixed(prefix, s string) string {
	if s == "" {
		return ""
	}
	return prefix + s
}
