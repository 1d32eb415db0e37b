package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/margolite/margolite/agent/control"
	"github.com/margolite/margolite/cmd/command"
)

type decision struct {
	verb     string // approve or reject
	takes    string // for the usage
	given    string // Pending.Answer: approved or rejected
	question string
	reason   string
	all      bool // every pending change
	yes      bool // do not ask
	give     func(*control.Client, context.Context, control.AnswerRequest) error
}

// approve permits a pending change after showing it. Without a terminal for the question, it
// approves exactly what it shows, and nothing published in between.
func (c *cli) approve(f *command.Flags) command.Action {
	d := &decision{verb: "approve", takes: "a deployment and optionally its revision, or --all", given: "approved", question: "Approve this?", give: (*control.Client).Approve}
	f.BoolVar(&d.all, "all", false, "approve every pending change")
	return c.answer(f, d)
}

func (c *cli) reject(f *command.Flags) command.Action {
	d := &decision{verb: "reject", takes: "a deployment and optionally its revision", given: "rejected", question: "Reject this for good?", give: (*control.Client).Reject}
	f.StringVar(&d.reason, "reason", "", "explain the decision with `TEXT`")
	return c.answer(f, d)
}

func (c *cli) answer(f *command.Flags, d *decision) command.Action {
	yesFlag(f, &d.yes)
	f.Takes(0, 2, d.takes)
	return c.asks(func(ctx context.Context, client *control.Client, names []string) error {
		switch {
		case d.all && len(names) > 0:
			return command.Usagef("give %s a deployment or --all, not both", d.verb)
		case d.all:
			return c.decideAll(ctx, client, *d)
		case len(names) == 0:
			return command.Usagef("give %s %s", d.verb, d.takes)
		}
		return c.decideOne(ctx, client, *d, names)
	})
}

// decideOne answers a deployment's change to the named revision, else the pending one.
func (c *cli) decideOne(ctx context.Context, client *control.Client, d decision, names []string) error {
	revision := ""
	if len(names) > 1 {
		revision = names[1]
		if !isRevision(revision) {
			return command.Usagef("invalid revision %q: use sha256: and at least the first %d digits", revision, minRevision)
		}
		d.yes = true // naming the revision confirms it
	}
	deployment, err := findDeployment(ctx, client, names[0])
	if err != nil {
		return err
	}
	if deployment.Change == nil {
		return command.Hint(fmt.Errorf("no change of deployment %s is pending", titled(deployment)), "run `margolite status` to see pending changes")
	}
	if now := deployment.Change.Revision; !strings.HasPrefix(digits(now), digits(revision)) {
		return superseded(d, deployment)
	}
	agreed, err := c.decide(ctx, client, d, deployment)
	if err == nil && !agreed {
		err = fmt.Errorf("nothing was %s", d.given)
	}
	return err
}

func (c *cli) decideAll(ctx context.Context, client *control.Client, d decision) error {
	s, err := client.Status(ctx)
	if err != nil {
		return err
	}
	waiting := 0
	var errs []error
	for i := range s.Deployments {
		deployment := &s.Deployments[i]
		if !waitsForApproval(deployment.Change) {
			continue
		}
		waiting++
		agreed, err := c.decide(ctx, client, d, deployment)
		if err != nil {
			errs = append(errs, err)
		} else if !agreed {
			fmt.Fprintf(plainWriter{c.out}, "not %s: %s\n", d.given, described(deployment))
		}
	}
	if waiting == 0 {
		fmt.Fprintln(c.out, "No change is waiting for approval.")
	}
	return errors.Join(errs...)
}

// decide shows a change and, after asking on a terminal, answers exactly that revision of it.
// Nothing is answered that was not shown.
func (c *cli) decide(ctx context.Context, client *control.Client, d decision, deployment *control.Deployment) (agreed bool, err error) {
	change := deployment.Change
	if change.Answer == d.given {
		fmt.Fprintf(plainWriter{c.out}, "%s already: %s\n%s", d.given, described(deployment), waitsFor(change, ""))
		return true, nil
	}
	var shown strings.Builder
	fmt.Fprintf(&shown, "%s\n%s", described(deployment), waitsFor(change, ""))
	printDifference(&shown, *deployment)
	if _, err := io.WriteString(plainWriter{c.out}, shown.String()); err != nil {
		return false, fmt.Errorf("nothing was %s: cannot show the %s: %w", d.given, described(deployment), err)
	}
	if !d.yes && isTerminal(c.in) && !c.agreed(ctx, d.question) {
		return false, nil
	}
	err = d.give(client, ctx, control.AnswerRequest{Deployment: deployment.ID, Revision: change.Revision, Reason: d.reason})
	if errors.Is(err, control.ErrConflict) {
		now, findErr := findDeployment(ctx, client, deployment.ID)
		if findErr == nil && now.Change != nil && now.Change.Revision != change.Revision {
			return false, superseded(d, now)
		}
	}
	if err != nil {
		return false, fmt.Errorf("cannot %s the %s: %w", d.verb, described(deployment), err)
	}
	fmt.Fprintf(plainWriter{c.out}, "%s: %s\n", d.given, described(deployment))
	return true, nil
}

func superseded(d decision, now *control.Deployment) error {
	return command.Hint(
		fmt.Errorf("nothing was %s: another revision is pending now: %s", d.given, now.Change.Revision),
		"look at the new revision with `margolite status`, then answer again",
	)
}

func waitsForApproval(change *control.Pending) bool {
	return change != nil && slices.ContainsFunc(change.Reasons, func(r control.Reason) bool { return r.Code == "approval" })
}

func described(d *control.Deployment) string {
	if d.Change.Kind == "update" {
		return fmt.Sprintf("update of %s to revision %s", titled(d), d.Change.Revision)
	}
	return fmt.Sprintf("%s of %s, revision %s", nounOf(d.Change.Kind), titled(d), d.Change.Revision)
}

// waitsFor says what a change waits for, except for the reason but.
func waitsFor(change *control.Pending, but string) string {
	var b strings.Builder
	for _, r := range change.Reasons {
		if r.Code != but {
			fmt.Fprintf(&b, "  waits for %s: %s\n", r.Code, line(r.Text))
		}
	}
	return b.String()
}

// minRevision is the minimum number of digits of a revision.
const minRevision = 8

func digits(revision string) string { return strings.TrimPrefix(revision, "sha256:") }

func isRevision(text string) bool {
	d := digits(text)
	return len(d) >= minRevision && len(d) <= 64 && strings.Trim(d, "0123456789abcdef") == ""
}
