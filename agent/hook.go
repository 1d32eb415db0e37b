package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/margolite/margolite/agent/margo"
	"github.com/margolite/margolite/policy"
)

const (
	hookAgain = time.Minute
	// hookDelay is how long to wait for output held open by a process that the hook left behind.
	hookDelay = time.Second
	// exitLater is the exit status of an undecided hook (EX_TEMPFAIL of sysexits.h).
	exitLater = 75
	// maxSaid bounds, in bytes, what is kept of a hook's output: its beginning and its end.
	maxSaid = 2 << 10
)

const hookPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// consult asks the site's program about a change: nil if it agrees, *waiting if it wants to be
// asked again or gave no answer, a *fault of codeVetoed if it refuses. Any other error is ctx's.
func (r *reconciler) consult(ctx context.Context, w *worker, h policy.Hook, id string, c proposal) error {
	l := changing
	if c.kind == policy.Remove {
		l = returning
	}
	slot, err := w.take(ctx, r.asking[l], "", nil, func(owners []string) string {
		return fmt.Sprintf("waits for the hook, which is busy with %s", named(owners))
	})
	if err != nil {
		return err
	}
	defer slot.Release()
	defer yieldLater(slot)()
	said, err := runHook(ctx, h, []string{
		"PATH=" + hookPath,
		"LC_ALL=C",
		"MARGOLITE_DEPLOYMENT=" + id,
		"MARGOLITE_NAME=" + margo.Shown(r.headOf(c.revision).name, maxSaid),
		"MARGOLITE_CHANGE=" + string(c.kind),
		"MARGOLITE_REVISION=" + c.revision.String(),
	})
	var exit *exec.ExitError
	var text string
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return ctx.Err()
	case !errors.As(err, &exit) || !exit.Exited(): // a crash is no refusal
		text = fmt.Sprintf("hook %s failed: %v", h.Command[0], err)
	case exit.ExitCode() == exitLater:
		text = fmt.Sprintf("hook %s asked to wait", h.Command[0])
	default:
		return &fault{code: codeVetoed, err: errors.New(withReason(fmt.Sprintf("hook %s refused the change with exit code %d", h.Command[0], exit.ExitCode()), said))}
	}
	return &waiting{policy.Verdict{
		Reasons: []policy.Reason{{Code: policy.WaitsForHook, Text: withReason(text, said)}},
		Until:   r.now().Add(hookAgain),
	}}
}

// runHook runs a program until it ends, times out, or ctx is done, and returns its output.
// Nothing of its process group is left.
func runHook(ctx context.Context, h policy.Hook, environment []string) (said string, err error) {
	path := h.Command[0]
	if err := trusted(path); err != nil {
		return "", fmt.Errorf("cannot start it: %w", err)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, h.Timeout, fmt.Errorf("it took longer than %v", h.Timeout))
	defer cancel()
	out := &excerpt{}
	cmd := exec.Command(path, h.Command[1:]...)
	cmd.Dir = "/"
	cmd.Env = environment
	cmd.Stdout, cmd.Stderr = out, out
	cmd.WaitDelay = hookDelay
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return "", fmt.Errorf("cannot start it: %w", err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for errors.Is(unix.Waitid(unix.P_PID, cmd.Process.Pid, nil, unix.WEXITED|unix.WNOWAIT, nil), unix.EINTR) {
		}
	}()
	select {
	case <-ended:
	case <-ctx.Done():
	}
	cut := context.Cause(ctx)
	// The PID is not reused before Wait. The whole process group is killed.
	_ = unix.Kill(-cmd.Process.Pid, unix.SIGKILL)
	<-ended
	err = cmd.Wait()
	if errors.Is(err, exec.ErrWaitDelay) { // a process outside the group holds the output; the program itself agreed
		err = nil
	}
	if cut != nil {
		err = cut
	}
	return out.String(), err
}

// trusted refuses a program that others could have put there: hooks have the agent's rights.
func trusted(path string) error {
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return err
	}
	info, err := os.Stat(real)
	switch {
	case err != nil:
		return err
	case !info.Mode().IsRegular():
		return errors.New("not a regular file")
	}
	err = ownOnly(real, info)
	for _, at := range []string{filepath.Clean(path), real} {
		for at != "/" && err == nil {
			at = filepath.Dir(at)
			if info, err = os.Stat(at); err == nil && info.Mode()&fs.ModeSticky == 0 { // with the sticky bit others cannot replace it
				err = ownOnly(at, info)
			}
		}
	}
	return err
}

// ownOnly returns an error if others than root and the agent's user may change a file.
func ownOnly(path string, info fs.FileInfo) error {
	st, ok := info.Sys().(*syscall.Stat_t)
	switch {
	case !ok || st.Uid != 0 && int(st.Uid) != os.Geteuid():
		return fmt.Errorf("%s belongs to a user other than root", path)
	case info.Mode().Perm()&0o022 != 0:
		return fmt.Errorf("users other than its owner can write %s", path)
	}
	return nil
}

type excerpt struct {
	text []byte
	cut  bool // text is left out between the halves
}

const halfExcerpt = maxSaid/2 - 4

func (e *excerpt) Write(p []byte) (int, error) {
	e.text = append(e.text, p...)
	if over := len(e.text) - 2*halfExcerpt; over > 0 {
		e.text, e.cut = slices.Delete(e.text, halfExcerpt, halfExcerpt+over), true
	}
	return len(p), nil
}

func (e *excerpt) String() string {
	if !e.cut {
		return margo.Shown(string(e.text), maxSaid)
	}
	return margo.Shown(string(e.text[:halfExcerpt])+" ... "+string(e.text[halfExcerpt:]), maxSaid)
}
