package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/margolite/margolite/agent/control"
	"github.com/margolite/margolite/cmd/command"
)

func (c *cli) rollback(f *command.Flags) command.Action {
	var r control.ReturnRequest
	var yes bool
	f.StringVar(&r.Reason, "reason", "", "explain the decision with `TEXT`")
	yesFlag(f, &yes)
	f.Takes(1, 1, "a deployment")
	return c.asks(func(ctx context.Context, client *control.Client, names []string) error {
		d, err := findDeployment(ctx, client, names[0])
		if err != nil {
			return err
		}
		if d.Former == "" {
			return command.Hint(
				fmt.Errorf("cannot roll back deployment %s: no previous revision is kept", titled(d)),
				"publish the previous revision in the WFM; a device keeps one from the first update on, unless policy.rollback is off or space is short",
			)
		}
		r.Deployment, r.Revision = d.ID, d.Former
		now := d.Active
		if now == "" || now == d.Former { // a failed update was left running
			now = d.Digest
		}
		fmt.Fprintf(plainWriter{c.out}, "deployment %s\n  now  %s\n  then %s\n", titled(d), now, d.Former)
		if err := c.confirm(ctx, yes, "Return to it until the WFM publishes another revision?", "nothing was rolled back", "repeat this with --yes"); err != nil {
			return err
		}
		if err := client.Rollback(ctx, r); err != nil {
			return fmt.Errorf("cannot roll back deployment %s: %w", titled(d), err)
		}
		fmt.Fprintln(c.out, "The rollback has started; `margolite status` shows its progress.")
		return nil
	})
}

func (c *cli) acceptRollback(f *command.Flags) command.Action {
	var yes bool
	yesFlag(f, &yes)
	return c.asks(func(ctx context.Context, client *control.Client, _ []string) error {
		s, err := client.Status(ctx)
		if err != nil {
			return err
		}
		if s.WFM.RefusedManifest == nil {
			// It may have been restored since the last poll.
			syncErr := client.Sync(ctx)
			if s, err = client.Status(ctx); err != nil {
				return err
			}
			if s.WFM.RefusedManifest == nil && syncErr != nil {
				return fmt.Errorf("cannot get the manifest to accept: %w", syncErr)
			}
		}
		refused := s.WFM.RefusedManifest
		if refused == nil {
			return errors.New("there is nothing to accept: the WFM's manifest was not refused for its version")
		}
		c.printRollback(s, refused)
		if err := c.confirm(ctx, yes, "Accept the served manifest in place of the held one?", "nothing was accepted", "look at the change above, then repeat this with --yes"); err != nil {
			return err
		}
		if err := client.AcceptRollback(ctx, control.RollbackRequest{Version: refused.Version, Digest: refused.Digest}); err != nil {
			return err
		}
		fmt.Fprintf(c.out, "Version %d is accepted.\n", refused.Version)
		return nil
	})
}

func (c *cli) printRollback(s *control.Status, refused *control.RefusedManifest) {
	w := table(c.out)
	if s.Manifest != nil {
		fmt.Fprintf(w, "held\tversion %d\t%s\n", s.Manifest.Version, s.Manifest.Digest)
	}
	fmt.Fprintf(w, "served\tversion %d\t%s\n", refused.Version, refused.Digest)
	w.Flush()
	names := map[string]string{}
	for _, d := range s.Deployments {
		names[d.ID] = d.Name
	}
	differs := 0
	for _, list := range []struct {
		what string
		ids  []string
	}{{"added", refused.Added}, {"changed", refused.Changed}, {"removed", refused.Removed}} {
		differs += len(list.ids)
		for _, id := range list.ids {
			fmt.Fprintf(plainWriter{c.out}, "%-8s %s%s\n", list.what, id, prefixed("  ", names[id]))
		}
	}
	same := len(refused.Deployments) - len(refused.Added) - len(refused.Changed)
	switch {
	case differs == 0:
		fmt.Fprintln(c.out, "No deployment would change.")
	case same > 0:
		fmt.Fprintf(c.out, "%s unchanged\n", plural(same, "deployment"))
	}
}
