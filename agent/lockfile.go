package agent

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/margolite/margolite/agent/control"
	"github.com/margolite/margolite/agent/margo"
	"github.com/margolite/margolite/runtime/tree"
)

const (
	// maxLockFiles and maxLockEntries bound the files looked at and the entries read of a
	// directory.
	maxLockFiles   = 256
	maxLockEntries = 4096
	// removeLocksWithin bounds one removal.
	removeLocksWithin = 10 * time.Second
	// maxLocksTold bounds how many held files of a directory are listed; one is enough to wait.
	maxLocksTold = 8
	// maxLockTable bounds, in bytes, what is read of the kernel's list of locks.
	maxLockTable = 16 << 20
	// maxLockReason bounds, in bytes, the first line of a lock file.
	maxLockReason = 200
)

const (
	lockTable = "/proc/locks"
	// initialPIDs is the PID namespace with the complete list of locks (PROC_PID_INIT_INO).
	initialPIDs = "pid:[4026531836]"
)

// lockFiles are files that count as update locks while some process holds a flock(2) or fcntl(2)
// lock on them; the kernel releases those of a dead process. Files in dir concern all
// deployments, files in dir/ID one. Workloads write there, so their content is not trusted, no
// link is followed and nothing blocks. A file of which it cannot be told counts as held: whoever
// can write there could hold it anyway.
type lockFiles struct {
	dir    string
	logger *slog.Logger

	mu     sync.Mutex // trying a lock must not meet itself
	unmade bool       // directories could not be made; the error was logged
	probed bool
	device uint64 // the file system whose locks the kernel lists to us in full; 0: none
}

type fileID struct{ device, inode uint64 }

func newLockFiles(dir string, logger *slog.Logger) *lockFiles {
	return &lockFiles{dir: dir, logger: logger}
}

// prepare makes the directories, in which everybody may make files and only their owners remove
// them. Existing ones are left as they are.
func (l *lockFiles) prepare(ids []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	err := makeShared(l.dir)
	if err == nil {
		for _, id := range ids {
			if filepath.Base(id) == id {
				err = errors.Join(err, makeShared(filepath.Join(l.dir, id)))
			}
		}
	}
	if err != nil && !l.unmade {
		l.unmade = true
		l.logger.Warn("cannot create the lock file directories", "error", err)
	}
}

// unfinished is the mode of a directory before its final mode is set.
const unfinished = 0o700 | fs.ModeSticky

// makeShared makes a world-writable directory unless the path exists.
func makeShared(path string) error {
	if err := os.Mkdir(path, unfinished); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	d, err := openDir(path)
	if err != nil {
		return err
	}
	defer d.Close()
	info, err := d.Stat()
	if err != nil || info.Mode()&^fs.ModeDir != unfinished {
		return err
	}
	return d.Chmod(0o777 | fs.ModeSticky)
}

// remove removes the directory of a deployment that is gone. The caller makes sure that no
// container of it is left or started meanwhile.
func (l *lockFiles) remove(ctx context.Context, id string) {
	if err := l.removeEach(ctx, func() ([]string, error) { return []string{id}, nil }); err != nil {
		l.logger.Warn("cannot remove a lock file directory; the next start tries again", "deployment", id, "error", err)
	}
}

// removeOrphans removes what remove has left, as when the process was killed, and the
// directories of deployments that are neither recorded nor running. recorded is called while
// no directory is made: a deployment recorded later has its own made again.
func (l *lockFiles) removeOrphans(ctx context.Context, running []string, recorded func() ([]string, error)) error {
	return l.removeEach(ctx, func() (orphans []string, err error) {
		ids, err := recorded()
		if err != nil {
			return nil, err
		}
		ids = slices.Concat(ids, running)
		dir, err := openDir(l.dir)
		if errors.Is(err, fs.ErrNotExist) {
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
		defer dir.Close()
		entries, err := dir.ReadDir(maxLockEntries)
		if err != nil && err != io.EOF {
			return nil, err
		}
		for _, e := range entries {
			known := func(id string) bool { return margo.SameID(id, e.Name()) }
			if strings.HasPrefix(e.Name(), removedPrefix) || e.IsDir() && margo.IsUUID(e.Name()) && !slices.ContainsFunc(ids, known) {
				orphans = append(orphans, e.Name())
			}
		}
		return orphans, nil
	})
}

// removeEach removes the named directories, which workloads filled, and may go on filling for
// as long as they have them open. They are moved away first: nobody waits for the removal.
func (l *lockFiles) removeEach(ctx context.Context, names func() ([]string, error)) error {
	moved, err := l.moveAway(names)
	for _, dir := range moved {
		bounded, cancel := context.WithTimeout(ctx, removeLocksWithin)
		err = errors.Join(err, tree.Remove(bounded, dir))
		cancel()
	}
	return err
}

// removedPrefix begins the name of a directory with what is being removed. It lies in dir, a
// file system of its own: nothing can be moved out of it.
const removedPrefix = ".removed-"

// moveAway takes what has these names in dir out of reach of those who mount it, and returns
// the directories with nothing else in them.
func (l *lockFiles) moveAway(names func() ([]string, error)) (moved []string, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	all, err := names()
	for _, name := range all {
		from := filepath.Join(l.dir, name)
		if _, err := os.Lstat(from); filepath.Base(name) != name || errors.Is(err, fs.ErrNotExist) {
			continue // it never had one
		}
		if strings.HasPrefix(name, removedPrefix) { // by a process that was killed
			moved = append(moved, from)
			continue
		}
		to, made := os.MkdirTemp(l.dir, removedPrefix)
		if made != nil {
			return moved, errors.Join(err, made)
		}
		moved = append(moved, to)
		err = errors.Join(err, os.Rename(from, filepath.Join(to, "0")))
	}
	return moved, err
}

func openDir(path string) (*os.File, error) {
	return os.OpenFile(path, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
}

// held are the files held now that concern all deployments or the named ones.
func (l *lockFiles) held(ids []string) []control.Lock {
	l.mu.Lock()
	defer l.mu.Unlock()
	held := l.look(control.Lock{File: l.dir, Holder: l.dir})
	for _, id := range ids {
		if filepath.Base(id) == id {
			held = append(held, l.look(control.Lock{File: filepath.Join(l.dir, id), Holder: id, Deployment: id})...)
		}
	}
	return held
}

// problem is a lock that stands for what cannot be looked at.
func problem(f control.Lock, err error) control.Lock {
	f.Reason = fmt.Sprintf("cannot read the lock files: %v", err)
	return f
}

type candidate struct {
	name string
	id   fileID
}

// look finds the held files of the directory that in names. The caller holds mu.
func (l *lockFiles) look(in control.Lock) []control.Lock {
	dir, err := openDir(in.File)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	var candidates []candidate
	if err == nil {
		defer dir.Close()
		candidates, err = regularFiles(dir)
	}
	if err != nil {
		return []control.Lock{problem(in, err)}
	}
	var takers map[fileID]int
	complete := false
	if len(candidates) > 0 {
		wanted := make(map[fileID]bool, len(candidates))
		for _, c := range candidates {
			wanted[c.id] = true
		}
		takers, complete = readLocks(wanted)
	}
	var held []control.Lock
	for _, c := range candidates {
		if len(held) == maxLocksTold {
			break
		}
		f := control.Lock{File: filepath.Join(in.File, c.name), Holder: margo.Shown(c.name, control.MaxHolder), Deployment: in.Deployment}
		pid, taken := takers[c.id]
		if !taken && !(complete && c.id.device == l.listed()) {
			if taken, pid, err = try(dir, c); err != nil {
				held = append(held, problem(f, err))
				continue
			}
		}
		if taken {
			f.Reason = firstLine(dir, c)
			f.Holder += processOf(pid)
			held = append(held, f)
		}
	}
	return held
}

func regularFiles(dir *os.File) ([]candidate, error) {
	var found []candidate
	for read := 0; ; {
		entries, err := dir.ReadDir(maxLockFiles)
		for _, e := range entries {
			var st unix.Stat_t
			if e.IsDir() || unix.Fstatat(int(dir.Fd()), e.Name(), &st, unix.AT_SYMLINK_NOFOLLOW) != nil {
				continue
			}
			if st.Mode&unix.S_IFMT == unix.S_IFREG {
				found = append(found, candidate{e.Name(), idOf(&st)})
			}
		}
		read += len(entries)
		switch {
		case len(found) > maxLockFiles:
			return nil, fmt.Errorf("more than %d files", maxLockFiles)
		case read > maxLockEntries:
			return nil, fmt.Errorf("more than %d entries", maxLockEntries)
		case err == io.EOF:
			return found, nil
		case err != nil:
			return nil, err
		}
	}
}

func idOf(st *unix.Stat_t) fileID { return fileID{uint64(st.Dev), st.Ino} }

// listed is the file system, by the number that stat gives, whose locks the kernel lists to us in
// full: that of dir, if a lock taken there is listed and no PID namespace hides those of others.
// 0: none. The caller holds mu.
func (l *lockFiles) listed() uint64 {
	if l.probed {
		return l.device
	}
	l.probed = true
	if pids, err := os.Readlink("/proc/self/ns/pid"); err != nil || pids != initialPIDs {
		return 0
	}
	fd, err := unix.Open(l.dir, unix.O_RDWR|unix.O_TMPFILE|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return 0
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if unix.Fstat(fd, &st) != nil || unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB) != nil {
		return 0
	}
	if takers, _ := readLocks(map[fileID]bool{idOf(&st): true}); len(takers) == 1 {
		l.device = uint64(st.Dev)
	}
	return l.device
}

// readLocks reads the holders of wanted files from the kernel's list, which may be incomplete.
func readLocks(wanted map[fileID]bool) (takers map[fileID]int, complete bool) {
	f, err := os.Open(lockTable)
	if err != nil {
		return nil, false
	}
	defer f.Close()
	return parseLocks(f, wanted)
}

func parseLocks(table io.Reader, wanted map[fileID]bool) (takers map[fileID]int, complete bool) {
	takers = map[fileID]int{}
	limited := &io.LimitedReader{R: table, N: maxLockTable}
	lines := bufio.NewScanner(limited)
	for lines.Scan() {
		if id, pid, ok := parseLock(lines.Text()); ok && wanted[id] {
			takers[id] = pid
		}
	}
	return takers, lines.Err() == nil && limited.N > 0
}

// parseLock reads one line, as
//
//	3: FLOCK  ADVISORY  WRITE 407 fe:00:10503365 0 EOF
//
// A line may also tell of a waiter ("3: -> FLOCK ...") or of a lease, which is no lock. The PID
// is the holder's in our namespace; 0: not known.
func parseLock(line string) (id fileID, pid int, ok bool) {
	fields := strings.Fields(line)
	if len(fields) < 6 {
		return fileID{}, 0, false
	}
	switch fields[1] {
	case "FLOCK", "POSIX", "OFDLCK":
	default:
		return fileID{}, 0, false
	}
	major, rest, _ := strings.Cut(fields[5], ":")
	minor, inode, _ := strings.Cut(rest, ":")
	ma, majorErr := strconv.ParseUint(major, 16, 32)
	mi, minorErr := strconv.ParseUint(minor, 16, 32)
	ino, inodeErr := strconv.ParseUint(inode, 10, 64)
	if majorErr != nil || minorErr != nil || inodeErr != nil {
		return fileID{}, 0, false
	}
	pid, err := strconv.Atoi(fields[4])
	if err != nil || pid < 0 {
		pid = 0
	}
	return fileID{unix.Mkdev(uint32(ma), uint32(mi)), ino}, pid, true
}

// try takes the lock and releases it at once: for that instant others that do not wait are
// refused it. fcntl locks can be queried without that.
func try(dir *os.File, c candidate) (held bool, pid int, err error) {
	f, err := c.open(dir)
	if f == nil {
		return false, 0, err
	}
	defer f.Close()
	lock := unix.Flock_t{Type: unix.F_WRLCK}
	if err := unix.FcntlFlock(f.Fd(), unix.F_OFD_GETLK, &lock); err != nil {
		return false, 0, os.NewSyscallError("fcntl", err)
	}
	if lock.Type != unix.F_UNLCK {
		return true, max(int(lock.Pid), 0), nil
	}
	switch err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); {
	case errors.Is(err, unix.EWOULDBLOCK):
		return true, 0, nil
	case err != nil:
		return false, 0, os.NewSyscallError("flock", err)
	}
	return false, 0, nil // closing releases it: the descriptor is not shared
}

// open opens the file for reading without blocking. Without an error, nil: gone or replaced.
func (c candidate) open(dir *os.File) (*os.File, error) {
	fd, err := unix.Openat(int(dir.Fd()), c.name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ELOOP), errors.Is(err, unix.ENXIO):
		return nil, nil
	case err != nil:
		return nil, os.NewSyscallError("open", err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFREG || idOf(&st) != c.id {
		unix.Close(fd)
		return nil, err
	}
	return os.NewFile(uintptr(fd), c.name), nil
}

func firstLine(dir *os.File, c candidate) string {
	f, err := c.open(dir)
	if f == nil || err != nil {
		return ""
	}
	defer f.Close()
	buf := make([]byte, maxLockReason)
	n, _ := f.Read(buf)
	line, _, _ := strings.Cut(string(buf[:n]), "\n")
	return margo.Shown(line, maxLockReason)
}

func processOf(pid int) string {
	if pid <= 0 {
		return ""
	}
	name, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/comm")
	if program := margo.Shown(string(name), 64); program != "" {
		return fmt.Sprintf(" (process %d, %s)", pid, program)
	}
	return fmt.Sprintf(" (process %d)", pid)
}
