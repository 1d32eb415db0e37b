package log

import (
	"context"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// pollInterval is how often files are checked if the kernel does not report changes.
const pollInterval = time.Second

// watcher uses inotify and polls: inotify instances or watches may have run out.
type watcher struct {
	poked   chan struct{} // holds one
	inotify *os.File      // nil: none
	fd      int           // of inotify; calling its Fd would make it blocking
	reader  sync.WaitGroup
}

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

// add watches a path, once however often it is called; it polls what cannot be watched.
func (w *watcher) add(path string, events uint32) {
	if w.inotify != nil {
		_, _ = unix.InotifyAddWatch(w.fd, path, events)
	}
}

// poke ends the current wait, or the next one, from any goroutine.
func (w *watcher) poke() {
	select {
	case w.poked <- struct{}{}:
	default:
	}
}

// wait returns when something may have changed, and when ctx ends.
func (w *watcher) wait(ctx context.Context) {
	timer := time.NewTimer(pollInterval)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-w.poked:
	case <-timer.C:
	}
}
