package runtime

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/margolite/margolite/runtime/container"
)

// Exec runs a command in the container of a service and returns its exit code.
// Number 0 is the first replica that runs. The command ends with ctx. With an
// error, a code above 0 is what a shell ends with that cannot run the command.
func (e *Engine) Exec(ctx context.Context, project, service string, number int, x container.Exec) (int, error) {
	ctx = e.within(ctx)
	all, err := e.containers.ListProject(ctx, project)
	if err != nil {
		return 0, fail(Internal, service, err)
	}
	all = inOrder(all)
	if len(all) == 0 {
		return 0, &Error{Code: NotFound, Object: project, Err: fmt.Errorf("there is no such project")}
	}
	var services []string
	there, unresponsive := false, false
	for _, c := range all {
		if !slices.Contains(services, c.Labels.Service) {
			services = append(services, c.Labels.Service)
		}
		if c.Labels.Service != service || number != 0 && c.Labels.Number != number {
			continue
		}
		there = true
		unresponsive = unresponsive || c.State == container.Unresponsive
		if c.State != container.Running {
			continue
		}
		code, err := e.containers.Exec(ctx, c.ID, x)
		if err != nil {
			return code, fail(Internal, service, err)
		}
		return code, nil
	}
	switch {
	case unresponsive:
		return 0, &Error{Code: Internal, Object: service, Err: fmt.Errorf("cannot run a command in it: %w", container.ErrUnresponsive)}
	case there:
		return 0, &Error{Code: NotFound, Object: service, Err: fmt.Errorf("cannot run a command in it: it is not running")}
	case slices.Contains(services, service):
		return 0, &Error{Code: NotFound, Object: service, Err: fmt.Errorf("it has no replica %d", number)}
	}
	return 0, &Error{Code: NotFound, Object: service, Err: fmt.Errorf("unknown service in project %s; known: %s", project, strings.Join(services, ", "))}
}
