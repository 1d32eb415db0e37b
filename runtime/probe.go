package runtime

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/margolite/margolite/runtime/container"
	"github.com/margolite/margolite/runtime/health"
)

// tendHealth makes the running containers of a project those that are probed.
func (o *observer) tendHealth(project string, found []container.Container) {
	var targets []health.Target
	for _, c := range found {
		check := c.Labels.Healthcheck
		if check == nil || c.State != container.Running && c.State != container.Unresponsive {
			continue
		}
		if started := startOf(c.Pid); !started.IsZero() {
			targets = append(targets, health.Target{Container: c.ID, Process: c.Pid, Started: started, Check: *check})
		}
	}
	o.health.Tend(project, targets)
}

// probe runs the command of a health check in a container.
func (o *observer) probe(ctx context.Context, id string, timeout time.Duration, command []string, output io.Writer) (int, error) {
	x := container.Exec{Args: command, Own: true, Timeout: timeout, Stdout: output, Stderr: output}
	code, err := o.containers.Exec(o.within(ctx), id, x)
	if errors.Is(err, container.ErrNotTried) {
		err = fmt.Errorf("%w: %w", health.ErrNotTried, err)
	}
	return code, err
}
