package network

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/margolite/margolite/runtime/tree"
)

// Containers can write the files of their sandbox, so these are hostile input: a container
// may make them huge, hold a lease on them, or fill their file system. So each sandbox has a
// small tmpfs for them, and the agent never reads them: it keeps what they should contain.
const (
	// filesSize, in bytes, has room for three pages even of 64 KiB. It grows with what we write.
	filesSize   = 256 << 10
	filesInodes = 16 // the directory and three files; the kernel keeps some for itself

	// maxPadding limits how many bytes of former content are blanked out.
	maxPadding = 64 << 10

	// writeDeadline limits the wait for a write, which a container can delay for itself alone.
	writeDeadline = time.Second
)

const (
	hostsName      = "hosts"
	resolvConfName = "resolv.conf"
	hostnameName   = "hostname"
)

var errHeld = errors.New("a container blocks writes to its file")

// sandboxFiles writes the files of one sandbox, one write at a time.
type sandboxFiles struct {
	dir     string
	sandbox *Sandbox // as made since the start; under the lock of Networks

	mu      sync.Mutex        // never held over a system call on the files
	wanted  map[string][]byte // by name
	written map[string][]byte // by name, as far as known
	idle    chan struct{}     // closed when the running writer ends; nil: none runs
	stuck   bool              // a wait for that writer has timed out
	err     error             // of the last attempt
	warned  bool              // the failure was logged
}

// filesOf returns the files of a sandbox by the name of its directory.
func (n *Networks) filesOf(name string) *sandboxFiles {
	n.filesMu.Lock()
	defer n.filesMu.Unlock()
	f := n.files[name]
	if f == nil {
		f = n.newFiles(name)
		n.files[name] = f
	}
	return f
}

func (n *Networks) newFiles(name string) *sandboxFiles {
	return &sandboxFiles{dir: filepath.Join(n.hostsDir(), name), wanted: make(map[string][]byte), written: make(map[string][]byte)}
}

// ensure mounts the file system with this owner's mark, and creates the files.
func (f *sandboxFiles) ensure(at *survey, by owner) error {
	mounted, _, err := mountinfo.MountedFast(f.dir) // a tmpfs has a device number of its own
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("cannot inspect directory %s: %w", f.dir, err)
	}
	if !mounted {
		if err := at.change("nothing is mounted at "+f.dir, "mount file system for files at "+f.dir, func() error {
			if err := os.MkdirAll(f.dir, 0o755); err != nil {
				return err
			}
			options := fmt.Sprintf("size=%d,nr_inodes=%d,mode=755", filesSize, filesInodes)
			return unix.Mount(by.source(), f.dir, "tmpfs", filesFlags, options)
		}); err != nil {
			return err
		}
	}
	for _, name := range []string{hostsName, resolvConfName, hostnameName} {
		path := filepath.Join(f.dir, name)
		if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err := at.change(path+" is gone", "create "+path, func() error {
			// Exclusively, so that nothing existing is opened.
			fd, err := unix.Open(path, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC, 0o644)
			if err != nil {
				return err
			}
			_ = unix.Close(fd)
			f.mu.Lock()
			defer f.mu.Unlock()
			delete(f.written, name) // it is empty
			return nil
		}); err != nil {
			return err
		}
	}
	return nil
}

const filesFlags = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC

func (f *sandboxFiles) set(name string, content []byte) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.wanted[name] = content
}

func (f *sandboxFiles) content(name string) []byte {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.wanted[name]
}

// begin starts a writer if there is something to write and none runs.
func (f *sandboxFiles) begin() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.idle != nil || len(f.differing()) == 0 {
		return
	}
	idle := make(chan struct{})
	f.idle = idle
	// A container can delay its last system call, and so its end, but only for its own files.
	go func() {
		defer close(idle)
		for {
			err := f.write()
			f.mu.Lock()
			if f.err = err; err != nil || len(f.differing()) == 0 {
				f.idle, f.stuck = nil, false
				f.mu.Unlock()
				return
			}
			f.mu.Unlock()
		}
	}()
}

// wait waits until everything is written or cannot be, or until the given time. It waits
// only once for a writer that takes longer.
func (f *sandboxFiles) wait(until time.Time) error {
	f.mu.Lock()
	idle, stuck := f.idle, f.stuck
	f.mu.Unlock()
	if idle != nil {
		late := time.NewTimer(time.Until(until))
		defer late.Stop()
		if stuck {
			late.Reset(0)
		}
		select {
		case <-idle:
		case <-late.C:
			f.mu.Lock()
			defer f.mu.Unlock()
			if f.idle == idle {
				f.stuck = true
				return errHeld
			}
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.differing()) == 0 {
		return nil
	}
	return cmp.Or(f.err, errHeld)
}

// differing lists the files that need to be written. The caller holds the lock.
func (f *sandboxFiles) differing() []string {
	var names []string
	for name, content := range f.wanted {
		if now, known := f.written[name]; !known || !bytes.Equal(now, content) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

func (f *sandboxFiles) write() error {
	f.mu.Lock()
	names, contents := f.differing(), maps.Clone(f.wanted)
	f.mu.Unlock()
	need := 0
	for _, content := range contents {
		need += len(content)
	}
	if err := f.ensureRoom(need); err != nil {
		return err
	}
	err := f.writeEach(names, contents)
	if errors.Is(err, unix.ENOSPC) {
		// A container filled one file: rewrite all of them.
		for name := range contents {
			_ = replaceContent(filepath.Join(f.dir, name), nil)
		}
		err = f.writeEach(slices.Sorted(maps.Keys(contents)), contents)
	}
	return err
}

func (f *sandboxFiles) writeEach(names []string, contents map[string][]byte) (err error) {
	for _, name := range names {
		failed := replaceContent(filepath.Join(f.dir, name), contents[name])
		f.mu.Lock()
		if failed == nil {
			f.written[name] = contents[name]
		} else {
			delete(f.written, name)
		}
		f.mu.Unlock()
		err = errors.Join(err, failed)
	}
	return err
}

// ensureRoom makes room for need bytes, and as many to blank out before rewriting.
func (f *sandboxFiles) ensureRoom(need int) error {
	if need <= filesSize/4 {
		return nil
	}
	if mounted, _, err := mountinfo.MountedFast(f.dir); err != nil || !mounted {
		return err
	}
	options := "size=" + strconv.Itoa(filesSize+2*need)
	if err := unix.Mount("", f.dir, "tmpfs", unix.MS_REMOUNT|filesFlags, options); err != nil {
		return fmt.Errorf("cannot enlarge file system at %s: %w", f.dir, err)
	}
	return nil
}

// replaceContent keeps the inode of a mounted file, and waits for no lease. It first pads a file
// that becomes shorter, so that no reader finds the old end behind the new content.
func replaceContent(path string, content []byte) error {
	fd, err := unix.Open(path, unix.O_WRONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("cannot open %s: %w", path, err)
	}
	err = replaceIn(fd, content)
	if err := errors.Join(err, unix.Close(fd)); err != nil {
		return fmt.Errorf("cannot write %s: %w", path, err)
	}
	return nil
}

func replaceIn(fd int, content []byte) error {
	var stat unix.Stat_t
	if err := unix.Fstat(fd, &stat); err != nil {
		return err
	}
	if stat.Mode&unix.S_IFMT != unix.S_IFREG {
		return errors.New("it is not a regular file")
	}
	padded := content
	switch surplus := stat.Size - int64(len(content)); {
	case surplus > maxPadding || len(content) == 0:
		if err := unix.Ftruncate(fd, int64(len(content))); err != nil {
			return err
		}
	case surplus > 0:
		padded = append(bytes.Clone(content), bytes.Repeat([]byte("\n"), int(surplus))...)
	}
	for at := 0; at < len(padded); {
		written, err := unix.Pwrite(fd, padded[at:], int64(at))
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return err
		}
		at += written
	}
	return unix.Ftruncate(fd, int64(len(content)))
}

// beginFiles starts writing, and returns a function that waits for it until writeDeadline from
// now. Files that a container blocks are written later and are no error.
func (n *Networks) beginFiles(s Sandbox) (wait func() error) {
	name := s.file()
	f := n.filesOf(name)
	f.begin()
	until := time.Now().Add(writeDeadline) // shared by all sandboxes begun together
	return func() error {
		err := f.wait(until)
		held := errors.Is(err, errHeld) || errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EPERM)
		f.mu.Lock()
		warn := held && !f.warned
		f.warned = held
		f.mu.Unlock()
		if !held {
			return err
		}
		if warn {
			n.logger.Warn("cannot write the files of a sandbox now; retrying later", "sandbox", name, "error", err)
		}
		return nil
	}
}

// removeHosts removes the files of a sandbox. A container that still has them keeps them.
func (n *Networks) removeHosts(name string) error {
	n.filesMu.Lock()
	delete(n.files, name)
	n.filesMu.Unlock()
	dir := filepath.Join(n.hostsDir(), name)
	err := tree.Detach(dir)
	if err == nil {
		err = os.RemoveAll(dir)
	}
	if err != nil {
		return fmt.Errorf("cannot remove files of sandbox %s: %w", name, err)
	}
	return nil
}
