package log

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// pollInterval is how often a file is looked at where the kernel does not tell.
const pollInterval = time.Second

// changes tell that a file may have changed.
type changes interface {
	// Wait returns nil at a change and when ctx is done.
	Wait(ctx context.Context) error
	Close() error
}

// watch waits for changes of the file at path by inotify, or by looking at it
// every now and then where there are no more inotify instances to be had.
func watch(ctx context.Context, path string) (changes, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return &poll{ticker: time.NewTicker(pollInterval)}, nil
	}
	file := os.NewFile(uintptr(fd), "inotify") // closes fd, and lets Read wait in the runtime
	// Removal shows as a change of attributes: the number of links.
	if _, err := unix.InotifyAddWatch(fd, path, unix.IN_MODIFY|unix.IN_ATTRIB|unix.IN_MOVE_SELF); err != nil {
		err = errors.Join(os.NewSyscallError("inotify_add_watch", err), file.Close())
		if errors.Is(err, unix.ENOSPC) {
			return &poll{ticker: time.NewTicker(pollInterval)}, nil
		}
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	n := &notify{file: file}
	n.stop = context.AfterFunc(ctx, func() { _ = file.SetReadDeadline(time.Unix(1, 0)) })
	return n, nil
}

type notify struct {
	file *os.File
	stop func() bool
	// events are only counted as one change; this holds at least one of them.
	events [4096]byte
}

func (n *notify) Wait(ctx context.Context) error {
	_, err := n.file.Read(n.events[:])
	if errors.Is(err, os.ErrDeadlineExceeded) && ctx.Err() != nil {
		return nil
	}
	return err
}

func (n *notify) Close() error {
	n.stop()
	return n.file.Close()
}

type poll struct{ ticker *time.Ticker }

func (p *poll) Wait(ctx context.Context) error {
	select {
	case <-ctx.Done():
	case <-p.ticker.C:
	}
	return nil
}

func (p *poll) Close() error {
	p.ticker.Stop()
	return nil
}
