package runtime

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/margolite/margolite/runtime/compose"
	"github.com/margolite/margolite/runtime/container"
	"github.com/margolite/margolite/runtime/health"
	"github.com/margolite/margolite/runtime/image"
)

// checkOf is the health check of a service: its own, with what that leaves open
// from the image; nil where there is none.
func checkOf(service *compose.Healthcheck, image *image.Health) *compose.Healthcheck {
	var check compose.Healthcheck
	if image != nil {
		check = compose.Healthcheck(*image)
	}
	if service != nil {
		if len(service.Test) > 0 {
			check.Test = service.Test
		}
		check.Interval = cmp.Or(service.Interval, check.Interval)
		check.Timeout = cmp.Or(service.Timeout, check.Timeout)
		check.StartPeriod = cmp.Or(service.StartPeriod, check.StartPeriod)
		check.StartInterval = cmp.Or(service.StartInterval, check.StartInterval)
		check.Retries = cmp.Or(service.Retries, check.Retries)
	}
	if len(check.Test) == 0 || check.Test[0] == "NONE" {
		return nil
	}
	return &check
}

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

// healthOf is what is known of the health of a container that runs. What nobody
// in this process has probed is starting.
func (o *observer) healthOf(c container.Container) health.Status {
	if c.Labels.Healthcheck == nil {
		return health.Status{}
	}
	if status, ok := o.health.Status(c.ID); ok {
		return status
	}
	return health.Status{State: health.Starting}
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
