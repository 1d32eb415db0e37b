package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/margolite/margolite/agent/control"
	"github.com/margolite/margolite/cmd/command"
)

// deploymentOf finds a deployment by its id, a unique prefix of it, or its name.
func deploymentOf(s *control.Status, name string) (*control.Deployment, error) {
	var found *control.Deployment
	var meant, all []string // their titles
	for i := range s.Deployments {
		d := &s.Deployments[i]
		if strings.EqualFold(d.ID, name) {
			return d, nil
		}
		if name != "" && (d.Name == name || len(d.ID) > len(name) && strings.EqualFold(d.ID[:len(name)], name)) {
			found, meant = d, append(meant, titled(d))
		}
		all = append(all, titled(d))
	}
	switch {
	case len(meant) == 1:
		return found, nil
	case len(meant) > 1:
		return nil, command.Hint(fmt.Errorf("deployment %q is ambiguous: %s", name, strings.Join(meant, ", ")), "use more of its id")
	case len(all) == 0:
		return nil, fmt.Errorf("unknown deployment %q: there are none", name)
	}
	return nil, fmt.Errorf("unknown deployment %q; known: %s", name, strings.Join(all, ", "))
}

func findDeployment(ctx context.Context, client *control.Client, name string) (*control.Deployment, error) {
	s, err := client.Status(ctx)
	if err != nil {
		return nil, err
	}
	return deploymentOf(s, name)
}

func titled(d *control.Deployment) string {
	if d.Name == "" {
		return d.ID
	}
	return fmt.Sprintf("%s (%s)", d.ID, d.Name)
}
