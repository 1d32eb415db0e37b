package network

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// fileWatcher hears of files that are removed from directories.
type fileWatcher struct {
	fd int
	f  *os.File
}

func watchFiles() (*fileWatcher, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("cannot watch files: %w", err)
	}
	return &fileWatcher{fd: fd, f: os.NewFile(uintptr(fd), "inotify")}, nil
}

// add has the files of a directory watched, once however often it is called.
func (w *fileWatcher) add(dir string) error {
	const events = unix.IN_DELETE | unix.IN_MOVED_FROM | unix.IN_ONLYDIR | unix.IN_DONT_FOLLOW
	_, err := unix.InotifyAddWatch(w.fd, dir, events)
	return err
}

// wait waits for a removal.
func (w *fileWatcher) wait() error {
	events := make([]byte, 4<<10)
	_, err := w.f.Read(events)
	return err
}

// Close ends the watching; wait then fails.
func (w *fileWatcher) Close() error { return w.f.Close() }
