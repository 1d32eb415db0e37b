// Package tree removes and measures directories that a workload has filled, unmounts what is in
// the way, and syncs names in a directory to the medium.
//
// Such directories are hostile: nested deeper than paths may be long or descriptors available,
// with any number of files, with symlinks to anywhere, changing meanwhile. A call always uses
// a few descriptors and little memory, ends with its context, follows no symlink and crosses
// no mount point.
package tree

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

type entry struct {
	name string
	kind byte  // unix.DT_*
	next int64 // offset after it in the directory
}

type reader struct {
	fd     int
	buffer []byte
	rest   []byte
	size   int // of the next piece
}

const (
	smallPiece = 1 << 10
	largePiece = 32 << 10
)

// seek continues at an offset of an entry, or 0. It reads little before nested directories.
func (r *reader) seek(fd int, offset int64) error {
	r.fd, r.rest, r.size = fd, nil, smallPiece
	if _, err := unix.Seek(fd, offset, unix.SEEK_SET); err != nil {
		return err
	}
	return nil
}

func (r *reader) next() (e entry, ok bool, err error) {
	for {
		if len(r.rest) == 0 {
			if len(r.buffer) < r.size {
				r.buffer = make([]byte, r.size)
			}
			n, err := retried(func() (int, error) { return unix.ReadDirent(r.fd, r.buffer[:r.size]) })
			if err != nil || n == 0 {
				return entry{}, false, err
			}
			r.rest, r.size = r.buffer[:n], min(2*r.size, largePiece)
		}
		// struct linux_dirent64: ino, off (8 bytes each), reclen (2), type (1), name.
		length := int(binary.NativeEndian.Uint16(r.rest[16:]))
		record := r.rest[:length]
		r.rest = r.rest[length:]
		name, _, _ := bytes.Cut(record[19:], []byte{0})
		if string(name) == "." || string(name) == ".." {
			continue
		}
		return entry{string(name), record[18], int64(binary.NativeEndian.Uint64(record[8:]))}, true, nil
	}
}

func retried(call func() (int, error)) (int, error) {
	for {
		n, err := call()
		if err != unix.EINTR {
			return n, err
		}
	}
}

// isDir reports whether an entry is a directory, asking if the file system did not say.
func isDir(fd int, e entry) (bool, error) {
	if e.kind != unix.DT_UNKNOWN {
		return e.kind == unix.DT_DIR, nil
	}
	var stat unix.Stat_t
	err := unix.Fstatat(fd, e.name, &stat, unix.AT_SYMLINK_NOFOLLOW)
	return stat.Mode&unix.S_IFMT == unix.S_IFDIR, err
}

const openFlags = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC | unix.O_NONBLOCK

func openRoot(path string) (int, error) {
	return retried(func() (int, error) { return unix.Open(path, openFlags, 0) })
}

// openChild opens a directory in another. The error is unix.EXDEV if something is mounted there.
func openChild(parent int, name string) (int, error) {
	how := unix.OpenHow{Flags: openFlags, Resolve: unix.RESOLVE_NO_XDEV | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_BENEATH}
	fd, err := retried(func() (int, error) { return unix.Openat2(parent, name, &how) })
	if err != unix.ENOSYS && err != unix.EPERM {
		return fd, err
	}
	// Before Linux 5.6, or if a seccomp filter does not know the call.
	if fd, err = retried(func() (int, error) { return unix.Openat(parent, name, openFlags, 0) }); err != nil {
		return -1, err
	}
	above, err := mountOf(parent)
	if err == nil {
		var below string
		if below, err = mountOf(fd); err == nil && above != below {
			err = unix.EXDEV
		}
	}
	if err != nil {
		_ = unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// mountOf returns the mount that a descriptor is on.
func mountOf(fd int) (string, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/self/fdinfo/%d", fd))
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(text)) {
		if id, ok := strings.CutPrefix(line, "mnt_id:"); ok {
			return strings.TrimSpace(id), nil
		}
	}
	return "", errors.New("the kernel does not tell the mount of a descriptor")
}

// inode identifies a directory while it exists.
type inode struct{ dev, ino uint64 }

func inodeOf(fd int) (inode, int64, error) {
	var stat unix.Stat_t
	if err := unix.Fstat(fd, &stat); err != nil {
		return inode{}, 0, err
	}
	return inode{uint64(stat.Dev), stat.Ino}, stat.Blocks * 512, nil
}
