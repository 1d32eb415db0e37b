package agent

import (
	"context"
	"fmt"
	"strings"

	"github.com/margolite/margolite/agent/control"
	"github.com/margolite/margolite/agent/margo"
	"github.com/margolite/margolite/runtime"
)

// projectsOf finds what runs of a deployment, which is named by its id, a unique
// beginning of it, or its name.
func (a *Agent) projectsOf(ctx context.Context, name string) ([]runtime.ObservedProject, error) {
	id, err := a.deploymentID(name)
	if err != nil {
		return nil, err
	}
	observed, err := a.o.Runtime.Observe(ctx)
	if err != nil {
		return nil, fmt.Errorf("cannot observe the runtime: %w", err)
	}
	var projects []runtime.ObservedProject
	for _, o := range observed {
		if margo.SameID(o.Labels[labelDeployment], id) {
			projects = append(projects, o)
		}
	}
	if len(projects) == 0 {
		return nil, fmt.Errorf("%w: deployment %s has no containers", control.ErrNotFound, id)
	}
	return projects, nil
}

func (a *Agent) deploymentID(name string) (string, error) {
	deployments, err := a.o.Store.Deployments()
	if err != nil && len(deployments) == 0 {
		return "", fmt.Errorf("cannot read the deployments: %w", err)
	}
	var found, all []string
	for i, own := range a.names.of(deployments) {
		d := &deployments[i]
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
