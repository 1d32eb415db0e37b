package network

import (
	"errors"
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// mountWatcher hears of changes to the mounts of this process.
type mountWatcher struct {
	mounts *os.File
	poll   *os.File // an epoll instance, which the runtime waits for without a thread
	raw    syscall.RawConn
}

func watchMounts() (*mountWatcher, error) {
	mounts, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("cannot watch mounts: %w", err)
	}
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("cannot watch mounts: %w", err), mounts.Close())
	}
	err = unix.EpollCtl(fd, unix.EPOLL_CTL_ADD, int(mounts.Fd()), &unix.EpollEvent{Events: unix.EPOLLPRI, Fd: int32(mounts.Fd())})
	if err == nil {
		err = unix.SetNonblock(fd, true) // else the runtime would not wait for it
	}
	w := &mountWatcher{mounts: mounts, poll: os.NewFile(uintptr(fd), "mounts")}
	if err == nil {
		w.raw, err = w.poll.SyscallConn()
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("cannot watch mounts: %w", err), w.Close())
	}
	return w, nil
}

// Close ends the watching; wait then fails.
func (w *mountWatcher) Close() error { return errors.Join(w.poll.Close(), w.mounts.Close()) }

// wait waits for a change.
func (w *mountWatcher) wait() error {
	var failed error
	err := w.raw.Read(func(fd uintptr) bool {
		events := make([]unix.EpollEvent, 1)
		n, err := unix.EpollWait(int(fd), events, 0)
		if errors.Is(err, unix.EINTR) {
			return false
		}
		failed = err
		return err != nil || n > 0
	})
	return errors.Join(err, failed)
}
