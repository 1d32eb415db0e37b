package log

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// pollInterval is how often files are looked at where the kernel does not tell.
const pollInterval = time.Second

// watcher waits for changes of files by inotify, or by looking at them every now
// and then where there are no more inotify instances to be had.
type watcher struct {
	inotify *os.File      // nil: there is none
	fd      int           // of inotify; its own Fd would make it block
	poked   chan struct{} // of size one
	events  [4096]byte    // holds at least one event
}

// change is what is known about one change. The zero value: anything may have
// changed.
type change struct {
	watch int32  // that add returned
	name  string // of a file in a watched directory; empty: the watched file itself
	moved bool   // the file is, or may be, another one than before
}

func newWatcher() *watcher {
	w := &watcher{poked: make(chan struct{}, 1)}
	if fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK); err == nil {
		w.fd, w.inotify = fd, os.NewFile(uintptr(fd), "inotify") // lets Read wait in the runtime
	}
	return w
}

func (w *watcher) close() error {
	if w.inotify == nil {
		return nil
	}
	return w.inotify.Close()
}

// add watches a file, or a directory for new names. The number stands for what it
// is now, whatever its name will be. A file that is not there is no error, nor is
// one too many: from then on the files are looked at every now and then.
func (w *watcher) add(path string, dir bool) (int32, error) {
	if w.inotify == nil {
		return -1, nil
	}
	// Removal shows as a change of attributes: the number of links.
	mask := uint32(unix.IN_MODIFY | unix.IN_ATTRIB | unix.IN_MOVE_SELF)
	if dir {
		mask = unix.IN_CREATE | unix.IN_MOVED_TO | unix.IN_ONLYDIR
	}
	watch, err := unix.InotifyAddWatch(w.fd, path, mask)
	switch {
	case err == nil:
		return int32(watch), nil
	case errors.Is(err, unix.ENOENT):
		return -1, nil
	case errors.Is(err, unix.ENOSPC):
		err = w.inotify.Close()
		w.inotify = nil
		return -1, err
	default:
		return -1, os.NewSyscallError("inotify_add_watch", err)
	}
}

// poke ends a wait, from any goroutine: the one under way or the next.
func (w *watcher) poke() {
	select {
	case w.poked <- struct{}{}:
	default:
	}
	if w.inotify != nil {
		_ = w.inotify.SetReadDeadline(time.Unix(1, 0))
	}
}

// wait returns what changed; nothing when it was poked or ctx is done.
func (w *watcher) wait(ctx context.Context) ([]change, error) {
	if w.inotify == nil {
		timer := time.NewTimer(pollInterval)
		defer timer.Stop()
		select {
		case <-ctx.Done():
		case <-w.poked:
		case <-timer.C:
			return []change{{}}, nil
		}
		return nil, nil
	}
	// A poke before this line is found in the channel, one after it ends Read.
	if err := w.inotify.SetReadDeadline(time.Time{}); err != nil {
		return nil, err
	}
	defer context.AfterFunc(ctx, func() { _ = w.inotify.SetReadDeadline(time.Unix(1, 0)) })()
	select {
	case <-w.poked:
		return nil, nil
	default:
	}
	n, err := w.inotify.Read(w.events[:])
	if errors.Is(err, os.ErrDeadlineExceeded) {
		select {
		case <-w.poked:
		default:
		}
		return nil, nil
	}
	return changesIn(w.events[:n]), err
}

// changesIn reads the events of inotify: watch, mask, cookie and length of the
// name, then the name.
func changesIn(events []byte) []change {
	var changes []change
	for len(events) >= unix.SizeofInotifyEvent {
		mask := binary.NativeEndian.Uint32(events[4:])
		end := unix.SizeofInotifyEvent + int(binary.NativeEndian.Uint32(events[12:]))
		if end > len(events) {
			break
		}
		name, _, _ := bytes.Cut(events[unix.SizeofInotifyEvent:end], []byte{0})
		c := change{
			watch: int32(binary.NativeEndian.Uint32(events)),
			name:  string(name),
			moved: mask&^unix.IN_MODIFY != 0,
		}
		if mask&unix.IN_Q_OVERFLOW != 0 {
			c = change{}
		}
		changes = append(changes, c)
		events = events[end:]
	}
	return changes
}
