package log

import (
	"context"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// pollInterval is how often files are looked at where the kernel does not tell.
const pollInterval = time.Second

// watcher waits for changes of files by inotify, and looks at them every now and then:
// there may be no more inotify instances or watches to be had.
type watcher struct {
	poked   chan struct{} // of size one
	inotify *os.File      // nil: there is none
	fd      int           // of inotify; its own Fd would make it block
	reader  sync.WaitGroup
}

// open begins to listen to inotify, until close.
func (w *watcher) open() {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return
	}
	w.fd, w.inotify = fd, os.NewFile(uintptr(fd), "inotify") // lets Read wait in the runtime
	w.reader.Go(func() {
		for events := make([]byte, 4<<10); ; w.poke() {
			if _, err := w.inotify.Read(events); err != nil {
				return
			}
		}
	})
}

func (w *watcher) close() {
	if w.inotify != nil {
		_ = w.inotify.Close()
	}
	w.reader.Wait()
}

// add has these events of a path told, once however often it is called. What cannot be
// watched, as a file that is not there, is looked at every now and then.
func (w *watcher) add(path string, events uint32) {
	if w.inotify != nil {
		_, _ = unix.InotifyAddWatch(w.fd, path, events)
	}
}

// poke ends a wait, from any goroutine: the one under way or the next.
func (w *watcher) poke() {
	select {
	case w.poked <- struct{}{}:
	default:
	}
}

// wait returns when something may have changed, and when ctx is done.
func (w *watcher) wait(ctx context.Context) {
	timer := time.NewTimer(pollInterval)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-w.poked:
	case <-timer.C:
	}
}
