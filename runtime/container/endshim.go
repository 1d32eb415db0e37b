package container

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/containerd/errdefs"

	"github.com/margolite/margolite/runtime/containerd"
)

// shimProcess is what the kernel has room for of the name of a shim's process.
const shimProcess = "containerd-shim"

// WatchShims asks silent shims again until ctx ends, and kills those that have not
// responded within the grace time: containerd then reports that their containers have
// ended. changed is called with the container of a shim that becomes silent or is so no
// more; it must not block.
func (s *shims) WatchShims(ctx context.Context, changed func(id string)) error {
	told := make(map[string]bool) // containers of silent shims, and whether that was logged
	for {
		var again <-chan time.Time // nil: all shims respond
		if len(told) > 0 {
			again = time.After(s.recheck())
		}
		select {
		case <-ctx.Done():
			return nil
		case <-s.changed:
		case <-again:
		}
		silent := s.listSilent()
		for id, logged := range told {
			if slices.Contains(silent, id) {
				continue
			}
			if logged {
				s.logger.Info("shim responds again, or is gone", "container", id)
			}
			delete(told, id)
			changed(id)
		}
		for _, id := range silent {
			now := s.standing(id)
			logged, known := told[id]
			if !known {
				changed(id)
			}
			if told[id] = now.again; now.again && !logged {
				s.logger.Warn("shim does not respond", "container", id, "kill_after", s.grace)
			}
			if !now.expired {
				s.isSilent(ctx, id) // asks it when it is time
				continue
			}
			if err := s.end(ctx, id); err != nil && ctx.Err() == nil {
				s.logger.Warn("cannot kill shim that does not respond", "container", id, "error", err)
			}
		}
	}
}

// with does something with a container. If its shim does not respond, it waits
// until it does, kills it when its grace time is over, and does it again.
func (s *shims) with(ctx context.Context, id string, do func() error) error {
	err := do()
	for errors.Is(err, ErrUnresponsive) && ctx.Err() == nil {
		for !s.standing(id).expired && errors.Is(s.check(ctx, id).err, ErrUnresponsive) {
			if !pause(ctx, s.recheck()) {
				return ctx.Err()
			}
		}
		if s.standing(id).expired {
			if err := s.end(ctx, id); err != nil {
				return err
			}
		}
		err = do()
	}
	return err
}

// awaitGroup waits until the shim that a task of a project would join responds, or
// kills it. A task whose creation such a shim keeps waiting is worse to get rid of:
// containerd 1.6 leaves its directory, and refuses to create it again.
func (s *shims) awaitGroup(ctx context.Context, project string) error {
	if s.allAnswered() {
		return nil
	}
	found, err := s.client.ContainerService().List(ctx, ofProject(project))
	if err != nil {
		return err
	}
	for _, r := range found {
		if now := s.standing(r.ID); !now.silent && !now.late {
			continue
		}
		err := s.with(ctx, r.ID, func() error { return s.check(ctx, r.ID).err })
		if err != nil && !errdefs.IsNotFound(err) {
			return err
		}
	}
	return nil
}

// end kills the shim of a container, with all that it runs, unless it
// responds by now, and waits until containerd has noticed.
func (s *shims) end(ctx context.Context, id string) error {
	select {
	case s.ending <- struct{}{}:
		defer func() { <-s.ending }()
	case <-ctx.Done():
		return ctx.Err()
	}
	if s.check(ctx, id); !s.isSilent(ctx, id) {
		return nil
	}
	found, err := s.find(ctx, id)
	if err != nil {
		return fmt.Errorf("cannot find the shim of container %s: %w", id, err)
	}
	for _, pid := range found {
		s.logger.Warn("killing shim that does not respond", "container", id, "shim", pid)
		killTree(pid, isShim)
	}
	ctx, done := context.WithTimeout(ctx, killTimeout)
	defer done()
	for {
		switch answer := s.check(ctx, id); {
		case ctx.Err() != nil, errors.Is(answer.err, ErrUnresponsive):
		case errdefs.IsNotFound(answer.err):
			return s.cgroups.endStrays(ctx, id)
		default:
			return answer.err
		}
		if !pause(ctx, strayPoll) {
			return fmt.Errorf("cannot kill the shim of container %s within %s (%d processes found)", id, killTimeout, len(found))
		}
	}
}

// find finds the shim of a container without asking it: the parent of the
// container's process, or one that was started for it. Where there is neither, the
// task is to be created in the shim of its project, which is that of another of
// its containers that does not respond, or one that containerd has given up.
func (s *shims) find(ctx context.Context, id string) (found []int, err error) {
	// All questions go through containerd, which may itself be what does not respond.
	limited, cancel := context.WithTimeout(ctx, stateTimeout)
	defer cancel()
	record, err := s.client.ContainerService().Get(limited, id)
	if err != nil && !errdefs.IsNotFound(err) {
		return nil, fmt.Errorf("cannot determine whether it or containerd does not respond: %w", err)
	}
	running, err := s.byContainer()
	if err != nil {
		return nil, err
	}
	own := func(id string) int {
		if pid := parentOf(s.runc.recordedPid(id)); isShim(pid) {
			return pid
		}
		return running[id]
	}
	if pid := own(id); pid > 0 {
		return []int{pid}, nil
	}
	siblings, err := s.client.ContainerService().List(ctx, ofProject(record.Labels[OwnerKey]))
	if err != nil {
		return nil, err
	}
	for _, sibling := range siblings {
		pid := own(sibling.ID)
		if pid == 0 || slices.Contains(found, pid) {
			continue
		}
		err := s.check(ctx, sibling.ID).err
		if errors.Is(err, ErrUnresponsive) || errdefs.IsNotFound(err) {
			found = append(found, pid)
		}
	}
	return found, nil
}

// byContainer are the shims that containerd has started, by the container
// that each was started for. Those of another containerd may serve containers of
// the same names.
func (s *shims) byContainer() (map[string]int, error) {
	socket, err := os.Stat(containerd.Address(s.client))
	if err != nil {
		return nil, err
	}
	found := make(map[string]int)
	for _, pid := range processesWith(func(line []byte) bool { return argument(line, "-namespace") == s.namespace }) {
		line := commandLine(pid)
		of, err := os.Stat(argument(line, "-address"))
		if err == nil && os.SameFile(of, socket) && isShim(pid) {
			found[argument(line, "-id")] = pid
		}
	}
	return found, nil
}

func isShim(pid int) bool {
	name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	return err == nil && pid > 1 && string(bytes.TrimSpace(name)) == shimProcess && isOutside(pid)
}
