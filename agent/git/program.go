package git

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/margolite/margolite/agent/margo"
)

const (
	maxOutput = 64 << 10  // of a command with a short answer
	maxStderr = 8 << 10   // kept of stderr
	maxMemory = 512 << 20 // of its data
	// grace is how long git may remove its temporary files once told to end.
	grace = 3 * time.Second
)

// The oldest git that takes configuration from the environment and refs to fetch from its input.
const minMajor, minMinor = 2, 31

type program struct {
	path string // empty: not found yet
	home string // an empty folder; the programs run in it
}

func (p *program) find(ctx context.Context) error {
	path, err := exec.LookPath("git")
	if err == nil {
		path, err = filepath.Abs(path)
	}
	if err != nil {
		return &Error{NoProgram, "find git", err}
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	found := program{path, p.home}
	text, err := found.ask(ctx, command{args: []string{"version"}}, "")
	if err != nil {
		return &Error{NoProgram, "ask " + path + " for its version", err}
	}
	var major, minor int // of "2.39.5", "2.50.1 (Apple Git-155)", "2.47.GIT"
	if _, err := fmt.Sscanf(text, "git version %d.%d", &major, &minor); err != nil {
		return &Error{TooOld, "use " + path, fmt.Errorf("it reports the version as %q", margo.Shown(text, 80))}
	}
	if major < minMajor || major == minMajor && minor < minMinor {
		err := fmt.Errorf("it is git %d.%d, at least %d.%d is required", major, minor, minMajor, minMinor)
		return &Error{TooOld, "use " + path, err}
	}
	*p = found
	return nil
}

// environment is the complete environment of git, apart from its configuration.
func environment(path, home string) []string {
	return []string{
		"PATH=" + filepath.Dir(path) + ":/usr/local/bin:/usr/bin:/bin",
		"HOME=" + home,
		"LC_ALL=C",
		"GIT_CONFIG_NOSYSTEM=1",
		"GIT_CONFIG_GLOBAL=" + os.DevNull,
		"GIT_ATTR_NOSYSTEM=1",
		"GIT_TERMINAL_PROMPT=0",
		"GIT_ALLOW_PROTOCOL=https",
		"GIT_PROTOCOL_FROM_USER=0",
		"GIT_CEILING_DIRECTORIES=" + filepath.Dir(home),
		"GIT_OPTIONAL_LOCKS=0",
		"GIT_LITERAL_PATHSPECS=1",
		"GIT_NO_REPLACE_OBJECTS=1",
		"GIT_DEFAULT_REF_FORMAT=files",
		"GIT_ADVICE=0",
	}
}

// setting is given in the environment: it overrides a repository's, and shows in no process list.
type setting struct{ key, value string }

// settings apply to every command.
var settings = []setting{
	{"core.hooksPath", os.DevNull},
	{"core.bigFileThreshold", "1m"}, // larger files are streamed
	{"core.deltaBaseCacheLimit", "8m"},
	{"credential.helper", ""},
	{"fetch.fsckObjects", "true"},
	{"transfer.fsckObjects", "true"},
	{"fetch.unpackLimit", "1"}, // a fetch adds one pack, not many small files
	{"transfer.unpackLimit", "1"},
	{"transfer.bundleURI", "false"},
	{"fetch.writeCommitGraph", "false"},
	{"fetch.recurseSubmodules", "false"},
	{"submodule.recurse", "false"},
	{"gc.auto", "0"},
	{"maintenance.auto", "false"},
	{"pack.threads", "1"},
	{"protocol.version", "2"}, // the server lists only the wanted branch
	{"http.followRedirects", "false"},
	{"http.proxy", ""},
	{"http.sslVerify", "true"},
	{"http.sslVersion", "tlsv1.2"}, // or newer
}

// access is git's configuration for a server.
type access struct {
	settings []setting
	secret   []string // parts to hide in errors
}

type command struct {
	args      []string
	dir       string // of the repository; empty: none is needed
	access    access // to the server, if it uses one
	fileBytes int64  // most that it may write to one file; 0: none
}

// run starts git, lets talk use its input and output, and waits for its end. Git reads no input
// before its bounds are in force. When talk or ctx gives up, git and all processes it started are
// killed. The error is talk's, or an *exitError.
func (p *program) run(ctx context.Context, c command, talk func(in io.WriteCloser, out *bufio.Reader) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	cmd := exec.CommandContext(ctx, p.path, c.args...)
	cmd.Dir = p.home
	cmd.Env = environment(p.path, p.home)
	if c.dir != "" {
		cmd.Env = append(cmd.Env, "GIT_DIR="+c.dir)
	}
	all := append(settings[:len(settings):len(settings)], c.access.settings...)
	for i, s := range all {
		n := strconv.Itoa(i)
		cmd.Env = append(cmd.Env, "GIT_CONFIG_KEY_"+n+"="+s.key, "GIT_CONFIG_VALUE_"+n+"="+s.value)
	}
	cmd.Env = append(cmd.Env, "GIT_CONFIG_COUNT="+strconv.Itoa(len(all)))

	// Its own process group, so that its helpers end with it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	var last *time.Timer
	cmd.Cancel = func() error {
		group := -cmd.Process.Pid
		last = time.AfterFunc(grace, func() { _ = unix.Kill(group, unix.SIGKILL) })
		return unix.Kill(group, unix.SIGTERM)
	}
	cmd.WaitDelay = 2 * grace
	stderr := &ending{}
	cmd.Stderr = stderr
	in, inErr := cmd.StdinPipe()
	out, outErr := cmd.StdoutPipe()
	err := errors.Join(inErr, outErr)
	if err == nil {
		err = cmd.Start()
	}
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, fs.ErrPermission):
		return &Error{NoProgram, "start " + p.path, err}
	case err != nil:
		return fmt.Errorf("cannot start git: %w", err)
	}

	err = limit(cmd.Process.Pid, c.fileBytes)
	if err == nil {
		err = talk(in, bufio.NewReaderSize(out, maxEntry))
	}
	in.Close()
	given := ctx.Err() // before cancel below
	ended := errors.Is(err, errShort) || errors.Is(err, syscall.EPIPE)
	if err != nil && !ended {
		cancel()
	}
	waited := cmd.Wait()
	if last != nil {
		last.Stop()
		_ = unix.Kill(-cmd.Process.Pid, unix.SIGKILL) // the rest of the group
	}
	var exit *exec.ExitError
	switch {
	case given != nil:
		return context.Cause(ctx)
	case err != nil && !ended:
		return err
	case errors.As(waited, &exit):
		return &exitError{status: exit.String(), stderr: stderr.String(), secret: c.access.secret}
	case waited != nil:
		return fmt.Errorf("cannot run git: %w", waited)
	}
	return err
}

// limit bounds what a process and its children may write and hold.
func limit(pid int, fileBytes int64) error {
	for resource, most := range map[int]uint64{
		unix.RLIMIT_FSIZE: uint64(fileBytes),
		unix.RLIMIT_DATA:  maxMemory,
		unix.RLIMIT_CORE:  0,
	} {
		err := unix.Prlimit(pid, resource, &unix.Rlimit{Cur: most, Max: most}, nil)
		if err != nil && !errors.Is(err, unix.ESRCH) { // it has ended already
			return fmt.Errorf("cannot limit the resources of git: %w", err)
		}
	}
	return nil
}

// errShort: git's answer ended too early; its messages have the reason.
var errShort = errors.New("git wrote less than expected")

func (p *program) ask(ctx context.Context, c command, input string) (answer string, err error) {
	err = p.run(ctx, c, func(in io.WriteCloser, out *bufio.Reader) error {
		if _, err := io.WriteString(in, input); err != nil && !errors.Is(err, syscall.EPIPE) {
			return fmt.Errorf("cannot write to git: %w", err)
		}
		in.Close()
		body, err := io.ReadAll(io.LimitReader(out, maxOutput+1))
		switch {
		case err != nil:
			return fmt.Errorf("cannot read the output of git: %w", err)
		case len(body) > maxOutput:
			return fmt.Errorf("git wrote more than %d bytes", maxOutput)
		}
		answer = string(body)
		return nil
	})
	return answer, err
}

// ending keeps the end of what is written to it.
type ending struct{ kept []byte }

func (e *ending) Write(p []byte) (int, error) {
	e.kept = append(e.kept, p[max(0, len(p)-maxStderr):]...)
	if over := len(e.kept) - maxStderr; over > 0 {
		e.kept = append(e.kept[:0], e.kept[over:]...)
	}
	return len(p), nil
}

func (e *ending) String() string { return string(bytes.TrimSpace(e.kept)) }
