package agent

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/margolite/margolite/agent/control"
	"github.com/margolite/margolite/test/expect"
)

// playHolder and playLooker make this program another process: one that holds a
// file, and one that looks at a directory in which others do.
const (
	playHolder = "MARGOLITE_TEST_HOLD"
	playLooker = "MARGOLITE_TEST_LOOK"
)

// TestMain plays other processes for the tests.
func TestMain(m *testing.M) {
	switch {
	case os.Getenv(playHolder) != "":
		os.Exit(holdFile(os.Getenv(playHolder)))
	case os.Getenv(playLooker) != "":
		os.Exit(lookAtFiles(os.Getenv(playLooker)))
	}
	os.Exit(m.Run())
}

// holdFile takes a lock, says so, and keeps it until its input ends. what is the
// kind of the lock and the path.
func holdFile(what string) int {
	kind, path, _ := strings.Cut(what, " ")
	flags := os.O_RDWR
	if kind == "shared" {
		flags = os.O_RDONLY
	}
	f, err := os.OpenFile(path, flags|os.O_CREATE, 0o600)
	if err == nil {
		whole := unix.Flock_t{Type: unix.F_WRLCK}
		switch kind {
		case "flock":
			err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		case "shared":
			err = unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB)
		case "posix":
			err = unix.FcntlFlock(f.Fd(), unix.F_SETLK, &whole)
		case "ofd":
			err = unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &whole)
		case "byte":
			whole.Start, whole.Len = 1<<40, 1
			err = unix.FcntlFlock(f.Fd(), unix.F_SETLK, &whole)
		}
	}
	if err != nil {
		fmt.Println(err)
		return 1
	}
	fmt.Println("held")
	_, _ = io.Copy(io.Discard, os.Stdin)
	return 0
}

// lookAtFiles prints how many files are held.
func lookAtFiles(dir string) int {
	if err := unix.Mount("proc", "/proc", "proc", 0, ""); err != nil {
		fmt.Println(err)
		return 1
	}
	fmt.Print(len(newLockFiles(dir, slog.New(slog.DiscardHandler)).held(nil)))
	return 0
}

// self is a command that runs this program as another process.
func self(t *testing.T, environment string) *exec.Cmd {
	t.Helper()
	program := expect.Value(os.Executable())(t)
	cmd := exec.CommandContext(t.Context(), program)
	cmd.Env = append(os.Environ(), environment)
	cmd.Stderr = os.Stderr
	return cmd
}

// holdBy has another process hold a file, and returns how to kill it.
func holdBy(t *testing.T, kind, path string) (kill func()) {
	t.Helper()
	cmd := self(t, playHolder+"="+kind+" "+path)
	in := expect.Value(cmd.StdinPipe())(t)
	out := expect.Value(cmd.StdoutPipe())(t)
	check(t, cmd.Start())
	kill = func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		in.Close()
	}
	t.Cleanup(kill)
	line, err := bufio.NewReader(out).ReadString('\n')
	expect.Require(t, line == "held\n", "the holder says %q, %v", line, err)
	return kill
}

const lockedID = "ad9b614e-8912-45f4-a523-372358765def"

// newLockDir makes the directories of a device with one deployment.
func newLockDir(t *testing.T) (*lockFiles, *bytes.Buffer) {
	t.Helper()
	log := &bytes.Buffer{}
	l := newLockFiles(filepath.Join(t.TempDir(), "locks"), slog.New(slog.NewTextHandler(log, nil)))
	l.prepare([]string{lockedID})
	return l, log
}

// namesOf are the files that are held, by path below the directory.
func (l *lockFiles) namesOf(t *testing.T, ids ...string) string {
	t.Helper()
	var names []string
	for _, f := range l.held(ids) {
		name := expect.Value(filepath.Rel(l.dir, f.File))(t)
		names = append(names, name)
	}
	return strings.Join(names, " ")
}

// one is the only file that is held.
func (l *lockFiles) one(t *testing.T, ids ...string) control.Lock {
	t.Helper()
	held := l.held(ids)
	expect.Require(t, len(held) == 1, "held are %+v, want one", held)
	return held[0]
}

// inBothWays runs a test as where the kernel's list tells everything, if it does
// here, and as where it cannot be relied upon.
func inBothWays(t *testing.T, test func(t *testing.T, l *lockFiles, log *bytes.Buffer)) {
	t.Run("by the kernel's list", func(t *testing.T) {
		l, log := newLockDir(t)
		if l.listed() == 0 {
			t.Skip("needs the complete list of the kernel's locks")
		}
		test(t, l, log)
	})
	t.Run("by trying", func(t *testing.T) {
		l, log := newLockDir(t)
		l.probed = true
		test(t, l, log)
	})
}

func TestAFileIsALockWhileAProcessHoldsIt(t *testing.T) {
	for _, kind := range []string{"flock", "shared", "posix", "ofd", "byte"} {
		t.Run(kind, func(t *testing.T) {
			inBothWays(t, func(t *testing.T, l *lockFiles, _ *bytes.Buffer) {
				path := filepath.Join(l.dir, "mixer")
				check(t, os.WriteFile(path, []byte("mixing \x1b[31ma batch\nof 40 t\n"), 0o600))
				expect.Equal(t, l.namesOf(t), "", "held before")
				kill := holdBy(t, kind, path)
				held := l.one(t, lockedID)
				expect.Equal(t, []string{held.File, held.Deployment, held.Reason}, []string{path, "", "mixing [31ma batch"}, "held")
				if kind == "flock" && l.device != 0 {
					expect.Contains(t, held.Holder, "mixer (process ", "holder")
				}
				kill() // as kill -9 does
				expect.Equal(t, l.namesOf(t), "", "held by a dead process")
			})
		})
	}
}

func TestALockFileOfADeploymentIsAboutThatOne(t *testing.T) {
	inBothWays(t, func(t *testing.T, l *lockFiles, _ *bytes.Buffer) {
		holdBy(t, "flock", filepath.Join(l.dir, lockedID, "press"))
		expect.Equal(t, l.namesOf(t, lockedID), lockedID+"/press", "held")
		expect.Equal(t, l.one(t, lockedID).Deployment, lockedID, "deployment")
		for _, other := range []string{"ad9b614e-8912-45f4-a523-372358765dee", "..", ".", "", "../locks", lockedID + "/press"} {
			expect.Equal(t, l.namesOf(t, other), "", "held of %q", other)
		}
	})
}

// A process that looks, in another PID namespace than those that hold, as an
// agent that is itself in a container.
func TestALockIsSeenFromAnotherPIDNamespace(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	l, _ := newLockDir(t)
	for _, kind := range []string{"flock", "shared", "posix", "ofd"} {
		holdBy(t, kind, filepath.Join(l.dir, kind))
	}
	check(t, os.WriteFile(filepath.Join(l.dir, "nobody's"), nil, 0o600))
	cmd := self(t, playLooker+"="+l.dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS, Unshareflags: syscall.CLONE_NEWNS}
	expect.Equal(t, string(expect.Value(cmd.Output())(t)), "4", "files held")
}

func TestWhatWorkloadsPutIntoTheDirectoryHarmsNobody(t *testing.T) {
	inBothWays(t, func(t *testing.T, l *lockFiles, log *bytes.Buffer) {
		outside := filepath.Join(t.TempDir(), "secret")
		huge := filepath.Join(l.dir, "huge")
		deep := filepath.Join(append([]string{l.dir}, strings.Split(strings.Repeat("d/", 100), "/")...)...)
		err := errors.Join(
			os.WriteFile(outside, []byte("secret"), 0o600),
			os.Symlink(outside, filepath.Join(l.dir, "link")),
			unix.Mkfifo(filepath.Join(l.dir, "fifo"), 0o666),
			os.MkdirAll(deep, 0o777),
			os.WriteFile(huge, nil, 0o666),
			os.Truncate(huge, 1<<40),
			os.WriteFile(filepath.Join(l.dir, strings.Repeat("\x1b", 255)), nil, 0),
		)
		check(t, err)
		holdBy(t, "flock", outside)
		holdBy(t, "flock", filepath.Join(deep, "file"))
		expect.Equal(t, l.namesOf(t, lockedID), "", "held")
		holdBy(t, "flock", huge)
		held := l.one(t)
		expect.Equal(t, []string{filepath.Base(held.File), held.Reason}, []string{"huge", ""}, "held")
		expect.Equal(t, log.String(), "", "log")
	})
}

// Too much to look at counts as held: it could hide what is.
func TestADirectoryThatIsFullCountsAsHeld(t *testing.T) {
	t.Parallel()
	for name, fill := range map[string]struct {
		n    int
		make func(path string) error
	}{
		"files":       {maxLockFiles + 1, func(path string) error { return os.WriteFile(path, nil, 0o600) }},
		"directories": {maxLockEntries + 1, func(path string) error { return os.Mkdir(path, 0o700) }},
	} {
		t.Run(name, func(t *testing.T) {
			l, _ := newLockDir(t)
			dir := filepath.Join(l.dir, lockedID)
			for i := range fill.n {
				check(t, fill.make(filepath.Join(dir, fmt.Sprint(i))))
			}
			held := l.one(t, lockedID)
			expect.Equal(t, held.Deployment, lockedID, "deployment")
			expect.Contains(t, held.Reason, "more than", "reason")
			check(t, errors.Join(os.RemoveAll(dir), os.Mkdir(dir, 0o700)))
			expect.Equal(t, l.namesOf(t, lockedID), "", "held")
		})
	}
}

func TestADirectoryThatIsSomethingElseCountsAsHeld(t *testing.T) {
	l, log := newLockDir(t)
	dir, elsewhere := filepath.Join(l.dir, lockedID), t.TempDir()
	check(t, errors.Join(os.Remove(dir), os.Symlink(elsewhere, dir)))
	l.prepare([]string{lockedID})
	expect.Equal(t, l.one(t, lockedID).Deployment, lockedID, "deployment")
	expect.Equal(t, l.one(t, lockedID).Reason != "", true, "there is a reason")
	expect.Equal(t, expect.Value(os.Stat(elsewhere))(t).Mode()&fs.ModeSticky, 0, "sticky bit of what the link points to")
	expect.Equal(t, log.Len() > 0, true, "something is logged")
}

func TestLockDirectoriesAreForEverybody(t *testing.T) {
	defer unix.Umask(unix.Umask(0o077))
	l, _ := newLockDir(t)
	dir := filepath.Join(l.dir, lockedID)
	// An agent that was killed before it had set the mode, and an operator who set another.
	other := filepath.Join(l.dir, "other")
	check(t, errors.Join(os.Chmod(dir, 0o700|fs.ModeSticky), os.Mkdir(other, 0o750)))
	l.prepare([]string{lockedID, "other"})
	for path, want := range map[string]fs.FileMode{
		l.dir: 0o777 | fs.ModeSticky, dir: 0o777 | fs.ModeSticky, other: 0o700,
	} {
		expect.Equal(t, expect.Value(os.Stat(path))(t).Mode(), want|fs.ModeDir, "mode of %s", path)
	}
	check(t, os.RemoveAll(l.dir)) // as a reboot does
	expect.Equal(t, l.namesOf(t, lockedID), "", "held")
}

const lockLines = `1: FLOCK  ADVISORY  WRITE 11654 fe:00:10421562 0 EOF
2: FLOCK  ADVISORY  READ  407 fe:00:10503120 0 EOF
2: -> FLOCK  ADVISORY  WRITE 500 fe:00:10503121 0 EOF
3: OFDLCK ADVISORY  WRITE -1 00:1a:42 0 EOF
4: POSIX  ADVISORY  READ 12 103:00:7 1073741824 1073742335
5: LEASE  ACTIVE    READ 13 fe:00:8 0 EOF
6: DELEG  ACTIVE    READ 13 fe:00:9 0 EOF
7: POSIX  ADVISORY  WRITE 14 <none>:0 0 EOF
8: POSIX  *NOINODE* WRITE 14
`

func TestTheKernelsListOfLocks(t *testing.T) {
	wanted := map[fileID]bool{}
	for inode := range uint64(100) {
		wanted[fileID{unix.Mkdev(0xfe, 0), inode}] = true
		wanted[fileID{unix.Mkdev(0, 0x1a), inode}] = true
		wanted[fileID{unix.Mkdev(0x103, 0), inode}] = true
	}
	wanted[fileID{unix.Mkdev(0xfe, 0), 10421562}] = true
	wanted[fileID{unix.Mkdev(0xfe, 0), 10503121}] = true
	got, complete := parseLocks(strings.NewReader(lockLines), wanted)
	want := map[fileID]int{
		{unix.Mkdev(0xfe, 0), 10421562}: 11654,
		{unix.Mkdev(0, 0x1a), 42}:       0,
		{unix.Mkdev(0x103, 0), 7}:       12,
	}
	expect.Equal(t, got, want, "locks")
	expect.Equal(t, complete, true, "list is complete")
	_, complete = parseLocks(strings.NewReader(strings.Repeat(lockLines, maxLockTable/len(lockLines)+1)), wanted)
	expect.Equal(t, complete, false, "an endless list is complete")
}

func FuzzLockTable(f *testing.F) {
	f.Add(lockLines)
	f.Add("1: FLOCK  ADVISORY  WRITE 1 fe:00:1:2 0 EOF\n\n-> -> ->\n")
	f.Add(strings.Repeat("x", 1<<17))
	f.Fuzz(func(t *testing.T, table string) {
		id := fileID{unix.Mkdev(0xfe, 0), 1}
		takers, _ := parseLocks(strings.NewReader(table), map[fileID]bool{id: true})
		for got, pid := range takers {
			if got != id || pid < 0 || !strings.Contains(table, ":1") && !strings.Contains(table, ":0") {
				t.Errorf("%q tells of %v, %d", table, got, pid)
			}
		}
	})
}

// At the start what is left of former deployments goes; what is recorded, runs, or
// is no deployment's stays.
func TestOrphanedDirectoriesOfLockFilesAreRemoved(t *testing.T) {
	const gone, kept, alive = "ad9b614e-8912-45f4-a523-372358765d01", "ad9b614e-8912-45f4-a523-372358765d02", "ad9b614e-8912-45f4-a523-372358765d03"
	l := newLockFiles(filepath.Join(t.TempDir(), "locks"), slog.New(slog.NewTextHandler(t.Output(), nil)))
	l.prepare([]string{gone, kept, alive, "mixers"})
	check(t, os.MkdirAll(filepath.Join(l.dir, removedPrefix+"7", "0", "a", "b"), 0o700)) // the process was killed
	left := func() (names []string) {
		for _, e := range expect.Value(os.ReadDir(l.dir))(t) {
			names = append(names, e.Name())
		}
		return names
	}
	unreadable := errors.New("a record cannot be read")
	expect.Error(t, l.removeOrphans(t.Context(), nil, func() ([]string, error) { return nil, unreadable }), unreadable, "removal of orphans")
	expect.Equal(t, len(left()), 5, "directories while it is not known who is gone")
	check(t, l.removeOrphans(t.Context(), []string{"", alive}, func() ([]string, error) { return []string{kept}, nil }))
	expect.Equal(t, left(), []string{kept, alive, "mixers"}, "directories")
}
