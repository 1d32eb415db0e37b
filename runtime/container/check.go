package container

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// Check refuses a configuration that needs what is not on this device: a path to
// be mounted, an external volume, a node. It changes nothing. The error names
// service and place, and wraps ErrNotFound where something is missing.
func (c *Containers) Check(ctx context.Context, config Config) error {
	config, err := config.complete()
	if err != nil {
		return err
	}
	s := config.Service
	if _, err := c.volumes.resolve(ctx, config); err != nil {
		return err
	}
	for _, m := range s.Mounts {
		if m.Path == "" || m.Create {
			continue
		}
		switch _, err := os.Stat(m.Path); {
		case errors.Is(err, fs.ErrNotExist):
			return fmt.Errorf("service %s: mount at %s: %s is %w", s.Name, m.Target, m.Path, ErrNotFound)
		case err != nil:
			return fmt.Errorf("service %s: mount at %s: %w", s.Name, m.Target, err)
		}
	}
	spec := specs.Spec{Process: &specs.Process{}, Linux: &specs.Linux{Resources: &specs.LinuxResources{}}}
	if err := complete(&spec, devicesOf(s)); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			err = fmt.Errorf("%w: %w", ErrNotFound, err)
		}
		return fmt.Errorf("service %s: %w", s.Name, err)
	}
	return nil
}
