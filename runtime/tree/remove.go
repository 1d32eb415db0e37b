package tree

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// Remove removes path with everything below it. It may be repeated after an interruption. A
// missing path is no error; a mount at or below it is one, and stays.
func Remove(ctx context.Context, path string) error {
	err := remove(ctx, path)
	if err != nil {
		return fmt.Errorf("cannot remove %s: %w", path, err)
	}
	return nil
}

func remove(ctx context.Context, path string) error {
	parent, err := openRoot(filepath.Dir(path))
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return err
	}
	defer unix.Close(parent)
	f := flattener{}
	return f.one(ctx, parent, filepath.Base(path), func(ctx context.Context, name string) error {
		if f.root, err = openChild(parent, name); err != nil {
			return err
		}
		defer unix.Close(f.root)
		if err := f.empty(ctx); err != nil {
			return err
		}
		return unix.Unlinkat(parent, name, unix.AT_REMOVEDIR)
	})
}

// Empty removes everything below the directory at path.
func Empty(ctx context.Context, path string) error {
	root, err := openRoot(path)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err == nil {
		defer unix.Close(root)
		f := flattener{root: root}
		err = f.empty(ctx)
	}
	if err != nil {
		return fmt.Errorf("cannot empty %s: %w", path, err)
	}
	return nil
}

// flattener empties a directory. It moves nested directories up into the root, so that it needs
// neither a descriptor nor a path per level: two descriptors are open at a time.
type flattener struct {
	root  int
	moved uint64 // directories; the count is the next name
	did   bool   // something was removed
}

func (f *flattener) empty(ctx context.Context) error {
	for {
		f.did = false
		left, err := f.pass(ctx, f.root, f.hoist)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if !f.did && (left || err != nil) {
			if err == nil {
				err = unix.ENOTEMPTY
			}
			return err
		}
		if !left && err == nil {
			return nil
		}
	}
}

// pass goes through a directory once, and calls full for its non-empty directories. left: there
// was something; err is the last reason why some of it remains.
func (f *flattener) pass(ctx context.Context, fd int, full func(context.Context, string) error) (left bool, err error) {
	r := &reader{}
	if err := r.seek(fd, 0); err != nil {
		return true, err
	}
	for ctx.Err() == nil {
		e, ok, readErr := r.next()
		if readErr != nil {
			return true, readErr
		}
		if !ok {
			return left, err
		}
		left = true
		if oneErr := f.one(ctx, fd, e.name, full); oneErr != nil {
			err = fmt.Errorf("%.80q: %w", e.name, oneErr)
		}
	}
	return left, context.Cause(ctx)
}

// one removes an entry of a directory. It calls full for a directory that is not empty.
func (f *flattener) one(ctx context.Context, fd int, name string, full func(context.Context, string) error) error {
	err := unix.Unlinkat(fd, name, 0)
	if err == unix.EISDIR || err == unix.EPERM { // errors for directories
		if asDir := unix.Unlinkat(fd, name, unix.AT_REMOVEDIR); asDir != unix.ENOTDIR {
			err = asDir
		}
	}
	switch err {
	case nil:
		f.did = true
	case unix.ENOENT:
	case unix.ENOTEMPTY, unix.EEXIST:
		return full(ctx, name)
	default:
		return err
	}
	return nil
}

// hoist removes a directory's entries, and moves nested directories up into the root.
func (f *flattener) hoist(ctx context.Context, name string) error {
	fd, err := openChild(f.root, name)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	for {
		left, err := f.pass(ctx, fd, func(_ context.Context, below string) error { return f.lift(fd, below) })
		if err != nil {
			return err
		}
		if left {
			continue
		}
		if err := unix.Unlinkat(f.root, name, unix.AT_REMOVEDIR); err != nil {
			return err
		}
		f.did = true
		return nil
	}
}

func (f *flattener) lift(from int, name string) error {
	for {
		f.moved++
		err := unix.Renameat(from, name, f.root, ".lifted-"+strconv.FormatUint(f.moved, 36))
		switch err {
		case nil:
			f.did = true
			return nil
		case unix.ENOTEMPTY, unix.EEXIST, unix.ENOTDIR:
			continue
		}
		return err
	}
}
