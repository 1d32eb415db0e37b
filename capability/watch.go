package capability

import (
	"context"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// maxUevent is the size of the kernel's buffer for one event.
const maxUevent = 8 << 10

// Watch calls changed when it begins to listen, and whenever a device came, went, or got or lost
// its driver, so that facts may have changed. It returns nil when ctx is done. An error says that
// kernel events are unavailable, as in many containers: callers must then poll.
//
// One device causes many events, and after too many at a time the kernel drops some: changed is
// called for that too. It must not block.
func Watch(ctx context.Context, changed func()) error {
	events, err := openUevents()
	if err != nil {
		return fmt.Errorf("cannot listen for the kernel's device events: %w", err)
	}
	changed()
	return follow(ctx, events, changed)
}

func openUevents() (*os.File, error) {
	const fromKernel = 1 // the group; that of udev is 2
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_KOBJECT_UEVENT)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: fromKernel}); err != nil {
		return nil, errors.Join(os.NewSyscallError("bind", err), unix.Close(fd))
	}
	return os.NewFile(uintptr(fd), "uevents"), nil
}

func follow(ctx context.Context, events *os.File, changed func()) error {
	stop := context.AfterFunc(ctx, func() { _ = events.Close() }) // ends the read
	defer func() {
		if stop() {
			_ = events.Close()
		}
	}()
	conn, err := events.SyscallConn()
	if err != nil {
		return fmt.Errorf("cannot use the socket of the kernel's device events: %w", err)
	}
	buffer := make([]byte, maxUevent)
	for {
		var n int
		var from unix.Sockaddr
		var failed error
		err := conn.Read(func(fd uintptr) bool {
			n, from, failed = unix.Recvfrom(int(fd), buffer, 0)
			return !errors.Is(failed, unix.EAGAIN)
		})
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(failed, unix.EINTR):
			continue
		case errors.Is(failed, unix.ENOBUFS): // some were dropped
			changed()
			continue
		case err != nil || failed != nil:
			return fmt.Errorf("cannot read the kernel's device events: %w", errors.Join(err, failed))
		}
		if sender, ok := from.(*unix.SockaddrNetlink); ok && sender.Pid != 0 { // forged by another process
			continue
		}
		if e, ok := parseUevent(string(buffer[:n])); ok && e.matters() {
			changed()
		}
	}
}
