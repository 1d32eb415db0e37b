package agent

import (
	"context"
	"fmt"
	"strings"

	"github.com/margolite/margolite/agent/control"
	"github.com/margolite/margolite/runtime"
)

// projectsOf finds what runs of a deployment, named by id, unique prefix of it, or name.
func (a *Agent) projectsOf(ctx context.Context, name string) ([]runtime.ObservedProject, error) {
	id, err := a.deploymentID(name)
	if err != nil {
		return nil, err
	}
	projects, err := a.reconciler.projectsOf(ctx, id)
	if err == nil && len(projects) == 0 {
		err = fmt.Errorf("%w: deployment %s has no containers", control.ErrNotFound, id)
	}
	return projects, err
}

func (a *Agent) deploymentID(name string) (string, error) {
	deployments, err := a.o.Store.Deployments()
	if err != nil && len(deployments) == 0 {
		return "", fmt.Errorf("cannot read the deployments: %w", err)
	}
	var found, all []string
	for i := range deployments {
		d := &deployments[i]
		own := a.headOf(d.Desired.Digest).name
		if name != "" && strings.HasPrefix(strings.ToLower(d.ID), strings.ToLower(name)) || own == name {
			found = append(found, d.ID)
		}
		all = append(all, d.ID)
		if own != "" {
			all[i] = own
		}
	}
	switch {
	case len(found) > 1:
		return "", fmt.Errorf("%w: %q is ambiguous: it may be %s", control.ErrInvalid, name, strings.Join(found, ", "))
	case len(found) == 1:
		return found[0], nil
	case len(all) == 0:
		return "", fmt.Errorf("deployment %q: %w; there are none", name, control.ErrNotFound)
	}
	return "", fmt.Errorf("deployment %q: %w; known: %s", name, control.ErrNotFound, strings.Join(all, ", "))
}
