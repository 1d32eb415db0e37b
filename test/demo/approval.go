package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/margolite/margolite/agent/control"
	"github.com/margolite/margolite/agent/margo"
	"github.com/margolite/margolite/test/plant"
)

// approvalRules are the site's in the story of an approval.
func approvalRules() map[string]string { return map[string]string{"approval": "updates"} }

// approvalStory shows how a site decides about an update: it is shown, postponed,
// approved, and undone.
func approvalStory() []chapter {
	return []chapter{prepare, waitsForApproval, approved, undone, removalApproved, journal}
}

func waitsForApproval(ctx context.Context, m *machine) error {
	m.screen.chapter("An application runs, and the WFM publishes an update")
	if err := m.startAgent(ctx); err != nil {
		return err
	}
	if err := m.pushImage(ctx, "2.0.0"); err != nil {
		return err
	}
	if _, err := m.publish("Hello", "1.0.0"); err != nil {
		return err
	}
	if err := m.awaits(ctx, func(d control.Deployment) bool { return d.State == string(margo.Installed) }); err != nil {
		return err
	}
	if err := m.visit(ctx); err != nil {
		return err
	}
	if _, err := m.publish("Servus", "2.0.0"); err != nil {
		return err
	}
	m.screen.say("published", "visitors with image 2.0.0 and another greeting")
	if err := m.awaits(ctx, waitsFor("approval")); err != nil {
		return err
	}
	if err := m.command(ctx, "status"); err != nil {
		return err
	}
	return m.visit(ctx)
}

func approved(ctx context.Context, m *machine) error {
	m.screen.chapter("A technician approves it, but only after the running batch")
	if err := m.command(ctx, "hold", "--for", "8h", "--reason", "a batch is running"); err != nil {
		return err
	}
	if err := m.command(ctx, "approve", deploymentID[:8]); err != nil {
		return err
	}
	if err := m.awaits(ctx, waitsFor("lock")); err != nil {
		return err
	}
	if err := m.visit(ctx); err != nil {
		return err
	}
	if err := m.command(ctx, "release"); err != nil {
		return err
	}
	if err := m.awaits(ctx, func(d control.Deployment) bool { return d.State == string(margo.Installed) && d.Change == nil }); err != nil {
		return err
	}
	return m.visit(ctx)
}

func undone(ctx context.Context, m *machine) error {
	m.screen.chapter("The update disappoints: back to the previous revision")
	if err := m.command(ctx, "rollback", "visitors", "--yes", "--reason", "visitors prefer Hello"); err != nil {
		return err
	}
	if err := plant.Eventually(ctx, func() error {
		newest, err := m.Control().History(ctx, control.HistoryRequest{Last: 1})
		if err == nil && (len(newest) != 1 || newest[0].Kind != "rollback.done") {
			err = fmt.Errorf("the journal ends with %+v", newest)
		}
		return err
	}); err != nil {
		return err
	}
	return m.visit(ctx)
}

func removalApproved(ctx context.Context, m *machine) error {
	m.screen.chapter("The WFM withdraws the application, which needs approval as well")
	if _, err := m.Remove(deploymentID); err != nil {
		return err
	}
	if err := m.awaits(ctx, waitsFor("approval")); err != nil {
		return err
	}
	if err := m.command(ctx, "approve", "--all"); err != nil {
		return err
	}
	return plant.Eventually(ctx, func() error {
		s, err := m.Control().Status(ctx)
		if err == nil && len(s.Deployments) > 0 {
			err = errors.New("the application is still there")
		}
		return err
	})
}

func journal(ctx context.Context, m *machine) error {
	m.screen.chapter("The journal records what happened and who decided it")
	if err := m.command(ctx, "history"); err != nil {
		return err
	}
	return m.command(ctx, "history", "--verify")
}

// waitsFor says of a deployment that its change is staged, and waits for one
// thing alone.
func waitsFor(code string) func(control.Deployment) bool {
	return func(d control.Deployment) bool {
		return d.Change != nil && len(d.Change.Services) > 0 && len(d.Change.Reasons) == 1 && d.Change.Reasons[0].Code == code
	}
}

// awaits waits until the device says so of the application.
func (m *machine) awaits(ctx context.Context, so func(control.Deployment) bool) error {
	return plant.Eventually(ctx, func() error {
		s, err := m.Control().Status(ctx)
		if err == nil && (len(s.Deployments) != 1 || !so(s.Deployments[0])) {
			err = fmt.Errorf("deployments are %+v", s.Deployments)
		}
		return err
	})
}

// command runs margolite as somebody on the device does, and shows both.
func (m *machine) command(ctx context.Context, args ...string) error {
	var quoted []string
	for _, a := range args {
		if strings.Contains(a, " ") {
			a = "'" + a + "'"
		}
		quoted = append(quoted, a)
	}
	m.screen.command("margolite %s", strings.Join(quoted, " "))
	out, err := m.Margolite(ctx, args...)
	for line := range strings.Lines(out) {
		m.screen.output(strings.TrimRight(line, "\n"))
	}
	return err
}
