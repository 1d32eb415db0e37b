package tree

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// maxDepth limits the memory for the directories above the current one, 24 bytes each.
const maxDepth = 1 << 17

var (
	errMoved   = errors.New("its directories are being moved")
	errTooDeep = fmt.Errorf("it is nested deeper than %d directories", maxDepth)
)

// Size returns the bytes that the directory at path takes on its medium, with everything below
// it except mounts. With an error it returns those counted so far.
func Size(ctx context.Context, path string) (bytes int64, err error) {
	err = walk(ctx, path, func(depth int, blocks int64) bool {
		bytes += blocks
		return depth <= maxDepth
	}, true)
	if err == errStopped {
		err = errTooDeep
	}
	if err != nil {
		err = fmt.Errorf("cannot measure %s: %w", path, err)
	}
	return bytes, err
}

// IsDeeper reports whether directories below path are nested more than levels deep.
func IsDeeper(ctx context.Context, path string, levels int) (bool, error) {
	err := walk(ctx, path, func(depth int, _ int64) bool { return depth <= levels }, false)
	if err == errStopped {
		return true, nil
	}
	if err != nil {
		err = fmt.Errorf("cannot read directory %s: %w", path, err)
	}
	return false, err
}

var errStopped = errors.New("stopped")

type level struct {
	inode
	next int64 // where it goes on
}

// walk calls visit for the directory at path and all below it, with its depth and its bytes on
// the medium; files: also for files, for their sizes. It stops when visit returns false.
func walk(ctx context.Context, path string, visit func(depth int, bytes int64) bool, files bool) error {
	fd, err := openRoot(path)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	_, bytes, err := inodeOf(fd)
	if err != nil {
		return err
	}
	if !visit(0, bytes) {
		return errStopped
	}
	var above []level
	r := &reader{}
	if err := r.seek(fd, 0); err != nil {
		return err
	}
	for {
		if err := ctx.Err(); err != nil {
			return context.Cause(ctx)
		}
		e, ok, err := r.next()
		switch {
		case err == unix.ENOENT: // it was removed
		case err != nil:
			return err
		case ok:
			directory, err := isDir(fd, e)
			if err != nil || !directory {
				if err == nil && files && !visit(len(above), blocksOf(fd, e.name)) {
					return errStopped
				}
				continue
			}
			child, err := openChild(fd, e.name)
			if err != nil { // it is gone, replaced or mounted on
				if err == unix.EMFILE || err == unix.ENFILE || err == unix.EACCES || err == unix.EIO {
					return err
				}
				continue
			}
			own, _, err := inodeOf(fd)
			if err == nil {
				_, bytes, err = inodeOf(child)
			}
			if err == nil {
				err = r.seek(child, 0)
			}
			if err != nil {
				_ = unix.Close(child)
				return err
			}
			above = append(above, level{own, e.next})
			_ = unix.Close(fd)
			fd = child
			if !visit(len(above), bytes) {
				return errStopped
			}
			continue
		}
		if len(above) == 0 {
			return nil
		}
		back := above[len(above)-1]
		above = above[:len(above)-1]
		parent, err := retried(func() (int, error) { return unix.Openat(fd, "..", openFlags, 0) })
		if err != nil {
			return err
		}
		_ = unix.Close(fd)
		fd = parent
		if is, _, err := inodeOf(fd); err != nil {
			return err
		} else if is != back.inode {
			return errMoved
		}
		if err := r.seek(fd, back.next); err != nil {
			return err
		}
	}
}

// blocksOf returns the bytes a file takes on its medium; 0 if it is gone.
func blocksOf(fd int, name string) int64 {
	var stat unix.Stat_t
	if err := unix.Fstatat(fd, name, &stat, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return 0
	}
	return stat.Blocks * 512
}
