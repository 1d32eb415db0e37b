package runtime

import (
	"context"

	"github.com/margolite/margolite/runtime/container"
)

// Usage is what the containers that run have used of the machine, by id. It reads
// a few files for each.
func (o *observer) Usage(ctx context.Context) (map[string]container.Usage, error) {
	all, err := o.containers.List(o.within(ctx))
	if err != nil {
		return nil, err
	}
	usage := make(map[string]container.Usage, len(all))
	for _, c := range all {
		if c.Pid != 0 {
			usage[c.ID] = o.containers.UsageOf(c)
		}
	}
	return usage, nil
}

// Downloaded is how many bytes of images and packages have come over the network
// since this process started.
func (s *stager) Downloaded() int64 { return s.images.Downloaded() }
