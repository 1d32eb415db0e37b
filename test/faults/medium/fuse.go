package medium

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// What the kernel asks of a file system in user space, as linux/fuse.h numbers it.
const (
	opForget      = 2
	opGetattr     = 3
	opSetattr     = 4
	opOpen        = 14
	opRead        = 15
	opWrite       = 16
	opStatfs      = 17
	opRelease     = 18
	opFsync       = 20
	opFlush       = 25
	opInit        = 26
	opInterrupt   = 36
	opDestroy     = 38
	opBatchForget = 42
	opFallocate   = 43
)

const (
	fuseMajor, fuseMinor = 7, 31

	requestHeader = 40 // bytes
	answerHeader  = 16
	writeHeader   = 40 // of a write, after that of the request

	maxWrite    = 256 << 10
	openDirect  = 1 << 0 // nothing of the file is cached
	initAsync   = 1 << 0 // several reads at once
	initBig     = 1 << 5
	initDirect  = 1 << 15 // several at once without a cache, too
	initPages   = 1 << 22 // as many as maxWrite has
	rootID      = 1
	servers     = 4 // requests that are answered at the same time
	punchedHole = unix.FALLOC_FL_PUNCH_HOLE | unix.FALLOC_FL_ZERO_RANGE
)

// usedFor is for how long who was killed may still have files open.
const usedFor = 30 * time.Second

// file shows a disk as a file in the place of another one.
type file struct {
	disk *Disk
	path string
	done sync.WaitGroup
}

// show mounts the disk over an existing file.
func show(d *Disk, path string) (*file, error) {
	fd, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("cannot open /dev/fuse: %w", err)
	}
	defer unix.Close(fd)
	f := &file{disk: d, path: path}
	options := fmt.Sprintf("fd=%d,rootmode=%o,user_id=0,group_id=0", fd, unix.S_IFREG|0o600)
	if err := unix.Mount("disk", path, "fuse", unix.MS_NOSUID|unix.MS_NODEV, options); err != nil {
		return nil, fmt.Errorf("cannot mount %s: %w", path, err)
	}
	ready := make(chan error)
	for range servers {
		f.done.Go(func() { f.serve(fd, ready) })
	}
	for range servers {
		err = errors.Join(err, <-ready)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("cannot serve %s: %w", path, err), f.close())
	}
	return f, nil
}

// keepOnly gives this thread a table of descriptors of its own, with fd and those that
// the Go runtime works with. The kernel answers for a server that is gone once nobody
// holds its descriptor. In the table of the process, a thread that waits for the disk
// itself would hold it after a kill, and keep each sync on the machine waiting.
func keepOnly(fd int) error {
	if err := unix.Unshare(unix.CLONE_FILES); err != nil {
		return err
	}
	const table = "/proc/thread-self/fd"
	entries, err := os.ReadDir(table)
	if err != nil {
		return err
	}
	for _, e := range entries {
		target, err := os.Readlink(filepath.Join(table, e.Name())) // not of the one that listed the table
		n, _ := strconv.Atoi(e.Name())
		if err == nil && n != fd && !strings.HasPrefix(target, "anon_inode:[event") {
			_ = unix.Close(n)
		}
	}
	return nil
}

// close takes the file away, and waits until nobody has it open any more.
func (f *file) close() error {
	err := unix.Unmount(f.path, unix.MNT_DETACH)
	if errors.Is(err, unix.EINVAL) {
		err = nil // somebody did before
	}
	ended := make(chan struct{})
	go func() {
		f.done.Wait() // the kernel ends it with the last user
		close(ended)
	}()
	select {
	case <-ended:
		return err
	case <-time.After(usedFor):
		return errors.Join(err, fmt.Errorf("cannot close %s: somebody still uses what is on it", f.path))
	}
}

// serve answers requests until the kernel has no more. The descriptor is read as
// it is: the poller of the Go runtime would need it to be non-blocking.
func (f *file) serve(fd int, ready chan<- error) {
	runtime.LockOSThread() // for good: the thread ends with this, and so does its table
	if unix.Gettid() == os.Getpid() {
		defer runtime.UnlockOSThread() // what /proc shows of a process is what its first thread has
		var other sync.WaitGroup
		other.Go(func() { f.serve(fd, ready) })
		other.Wait()
		return
	}
	ready <- keepOnly(fd)
	request := make([]byte, maxWrite+requestHeader+writeHeader+4096)
	for {
		n, err := unix.Read(fd, request)
		switch {
		case errors.Is(err, unix.EINTR), errors.Is(err, unix.EAGAIN), errors.Is(err, unix.ENOENT):
			continue // ENOENT: whoever asked has gone
		case err != nil, n < requestHeader:
			return // unmounted
		}
		answer, wanted := f.answer(binary.NativeEndian.Uint32(request[4:]), request[requestHeader:n])
		if !wanted {
			continue
		}
		copy(answer[8:16], request[8:16]) // which request it is about
		binary.NativeEndian.PutUint32(answer, uint32(len(answer)))
		_, _ = unix.Write(fd, answer) // who does not want it any more is not told
	}
}

// answer is that to a request, with room for the header where the error is.
func (f *file) answer(op uint32, in []byte) (out []byte, wanted bool) {
	order := binary.NativeEndian
	out = make([]byte, answerHeader, answerHeader+128)
	body := func(n int) []byte { out = out[:answerHeader+n]; return out[answerHeader:] }
	var err error
	switch op {
	case opForget, opBatchForget, opInterrupt:
		return nil, false
	case opInit:
		b := body(64)
		order.PutUint32(b, fuseMajor)
		order.PutUint32(b[4:], fuseMinor)
		order.PutUint32(b[8:], maxWrite) // read ahead
		order.PutUint32(b[12:], order.Uint32(in[12:])&(initAsync|initBig|initDirect|initPages))
		order.PutUint16(b[16:], 64) // requests in the background
		order.PutUint16(b[18:], 48)
		order.PutUint32(b[20:], maxWrite)
		order.PutUint32(b[24:], 1) // ns, of times
		order.PutUint16(b[28:], maxWrite/BlockBytes)
	case opGetattr, opSetattr:
		b := body(16 + 88)
		order.PutUint64(b[16:], rootID)
		order.PutUint64(b[24:], uint64(f.disk.Bytes()))
		order.PutUint64(b[32:], uint64(f.disk.Bytes()/sectorBytes))
		order.PutUint32(b[76:], unix.S_IFREG|0o600)
		order.PutUint32(b[80:], 1) // link
		order.PutUint32(b[96:], BlockBytes)
	case opOpen:
		order.PutUint32(body(16)[8:], openDirect)
	case opRead:
		size := min(int(order.Uint32(in[16:])), maxWrite)
		out = make([]byte, answerHeader+size)
		out = out[:answerHeader+f.disk.readAt(out[answerHeader:], int64(order.Uint64(in[8:])))]
	case opWrite:
		data := in[writeHeader:]
		if err = f.disk.writeAt(data, int64(order.Uint64(in[8:]))); err == nil {
			order.PutUint32(body(8), uint32(len(data)))
		}
	case opFallocate:
		err = unix.EOPNOTSUPP
		if order.Uint32(in[24:])&punchedHole != 0 {
			err = f.disk.zero(int64(order.Uint64(in[8:])), int64(order.Uint64(in[16:])))
		}
	case opFsync:
		err = f.disk.sync()
	case opStatfs:
		order.PutUint32(body(80)[40:], BlockBytes)
	case opFlush, opRelease, opDestroy:
	default:
		err = unix.ENOSYS
	}
	if err != nil {
		number := unix.EIO
		errors.As(err, &number)
		out = out[:answerHeader]
		order.PutUint32(out[4:], uint32(-int32(number)))
	}
	return out, true
}

// zero writes zeros.
func (d *Disk) zero(at, length int64) error {
	for length > 0 {
		n := min(length, maxWrite)
		if err := d.writeAt(make([]byte, n), at); err != nil {
			return err
		}
		at, length = at+n, length-n
	}
	return nil
}
