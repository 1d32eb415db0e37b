package container

import (
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// shareMemory makes the shared memory of a container that is about to start: its
// own that others may join, or that of the container joined.
func (p *paths) shareMemory(id string, l Labels, joined string) error {
	if l.SharedMemory == 0 && joined == "" {
		return nil
	}
	dir := p.sharedMemory(id)
	if err := errors.Join(detach(dir), os.MkdirAll(dir, 0o700)); err != nil { // there may be that of its former process
		return fmt.Errorf("cannot create shared memory: %w", err)
	}
	if joined == "" {
		flags := uintptr(unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC)
		if err := unix.Mount("shm", dir, "tmpfs", flags, "mode=1777,size="+strconv.FormatInt(l.SharedMemory, 10)); err != nil {
			return fmt.Errorf("cannot create shared memory: %w", err)
		}
		return nil
	}
	switch mounted, err := isMounted(p.sharedMemory(joined)); {
	case err != nil:
		return fmt.Errorf("cannot join shared memory: %w", err)
	case !mounted:
		return errors.New("cannot join shared memory: the service whose ipc namespace is joined needs ipc: shareable")
	}
	if err := unix.Mount(p.sharedMemory(joined), dir, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("cannot join shared memory: %w", err)
	}
	return nil
}
