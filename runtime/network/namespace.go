package network

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/margolite/margolite/runtime/contain"
	"github.com/margolite/margolite/runtime/tree"
)

// onOwnThread runs f on a thread that ends with it, whatever its namespace. It contains panics.
func onOwnThread(f func() error) error {
	done := make(chan error, 1)
	go func() {
		// Never unlocked: the runtime ends the thread with the goroutine.
		runtime.LockOSThread()
		if unix.Gettid() != unix.Getpid() {
			done <- contain.Call(f)
			return
		}
		// The first thread cannot end. While it is locked here, another goroutine gets another thread.
		done <- onOwnThread(f)
		runtime.UnlockOSThread()
	}()
	return <-done
}

func inside(path string, f func() error) error {
	return onOwnThread(func() error {
		fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("cannot open namespace %s: %w", path, err)
		}
		err = unix.Setns(fd, unix.CLONE_NEWNET)
		_ = unix.Close(fd)
		if err != nil {
			return fmt.Errorf("cannot enter namespace %s: %w", path, err)
		}
		return f()
	})
}

func ensurePin(at *survey, path string) error {
	if pinned, err := isPin(path); err != nil || pinned {
		return err
	}
	return at.change("no network namespace is pinned at "+path, "create network namespace", func() error {
		return onOwnThread(func() error {
			if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
				return err
			}
			return pinAt(path, "/proc/thread-self/ns/net")
		})
	})
}

func pinAt(path, netns string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("cannot create namespace directory: %w", err)
	}
	// A reboot, or a kill before the mount, leaves a plain file.
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDONLY, 0o444)
	if err != nil {
		return fmt.Errorf("cannot create namespace file: %w", err)
	}
	_ = file.Close()
	if err := unix.Mount(netns, path, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("cannot pin network namespace at %s: %w", path, err)
	}
	return nil
}

func isPin(path string) (bool, error) {
	var fs unix.Statfs_t
	err := unix.Statfs(path, &fs)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("cannot look at namespace file %s: %w", path, err)
	}
	return fs.Type == unix.NSFS_MAGIC, nil
}

// removePin releases the namespace, which ends with the last process in it.
func removePin(path string) error {
	err := tree.Detach(path)
	if err == nil {
		err = os.Remove(path)
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("cannot remove namespace: %w", err)
	}
	return nil
}

func isGone(err error) bool {
	return errors.Is(err, unix.ENODEV) || errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENXIO)
}
