package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"

	"github.com/margolite/margolite/agent/margo"
	"github.com/margolite/margolite/policy"
	"github.com/margolite/margolite/runtime/limit"
	"github.com/margolite/margolite/store"
	"github.com/margolite/margolite/test/expect"
)

// script is a hook with this body.
func script(t *testing.T, body string) policy.Hook {
	t.Helper()
	path := filepath.Join(t.TempDir(), "hook")
	check(t, os.WriteFile(path, []byte("#!/bin/sh\n"+body+"\n"), 0o700))
	return policy.Hook{Command: []string{path, "two words", "$PATH"}, Timeout: patienceWithHooks}
}

// patienceWithHooks is more than any hook of the tests takes on a busy machine.
const patienceWithHooks = 20 * time.Second

// asker is what consults hooks, with a clock that stands still.
func asker(t *testing.T) *reconciler {
	t.Helper()
	s := expect.Value(store.Open(filepath.Join(t.TempDir(), "margolite.db"), store.Options{}))(t)
	t.Cleanup(func() { s.Close() })
	now := time.Date(2026, 6, 1, 12, 0, 0, 0, time.UTC)
	return &reconciler{base: &base{store: s, now: func() time.Time { return now }}, asking: newLanes(mostBegun)}
}

var change = proposal{policy.Update, digest.FromString("revision")}

// answer tells what came of asking: go, wait or veto, and the text of it.
func answer(t *testing.T, r *reconciler, h policy.Hook) (verdict, text string) {
	t.Helper()
	err := r.consult(t.Context(), newWorker(lockedID), h, lockedID, change)
	var later *waiting
	var f *fault
	switch {
	case err == nil:
		return "go", ""
	case errors.As(err, &later):
		expect.Equal(t, len(later.Reasons), 1, "reasons")
		expect.Equal(t, later.Reasons[0].Code, policy.WaitsForHook, "reason")
		expect.Equal(t, later.Until, r.now().Add(time.Minute), "when it is asked again")
		return "wait", err.Error()
	case errors.As(err, &f) && f.code == codeVetoed && f.component == "":
		return "veto", err.Error()
	}
	t.Errorf("the error is %v", err)
	return "", ""
}

func TestAHookDecides(t *testing.T) {
	for name, c := range map[string]struct {
		body    string
		verdict string
		text    string // is part of what is told
	}{
		"yes":                          {"exit 0", "go", ""},
		"no":                           {"echo the press is hot; echo wait for Eva >&2; exit 1", "veto", "exit code 1: the press is hot wait for Eva"},
		"not yet":                      {"echo the press is hot; exit 75", "wait", "asked to wait: the press is hot"},
		"a program that is not there":  {"/no/such/program", "veto", "exit code 127"},
		"one that crashed":             {"kill -SEGV $$", "wait", "failed: signal: segmentation fault"},
		"output of no characters":      {`printf 'a\033[2J\377b\n\nc'; exit 1`, "veto", ": a [2J\uFFFDb c"},
		"output without end":           {"echo first; dd if=/dev/zero bs=4096 count=2000 2>/dev/null | tr '\\0' x; echo last; exit 1", "veto", ": first xxx"},
		"an answer, and output stays":  {"sleep 1000 & exit 0", "go", ""},
		"one that knows its arguments": {`test "$1/$2/$#" = 'two words/$PATH/2'`, "go", ""},
		"one that knows where it is":   {`test "$PWD" = / && ! read -r line`, "go", ""},
	} {
		t.Run(name, func(t *testing.T) {
			verdict, text := answer(t, asker(t), script(t, c.body))
			expect.Equal(t, verdict, c.verdict, "answer")
			expect.Contains(t, text, c.text, "reason")
			expect.Equal(t, len(text) <= maxSaid+200, true, "the reason is bounded: %d bytes", len(text))
			if strings.Contains(c.body, "last") {
				expect.Contains(t, text, "xxlast", "reason")
			}
		})
	}
}

func TestAHookKnowsTheChangeAndNothingElse(t *testing.T) {
	t.Setenv("SECRET", "of the agent")
	r := asker(t)
	body := []byte("id: " + lockedID + "\nmetadata: {name: \"press\\nline\", namespace: n, deviceId: d}\n")
	revision := digest.FromBytes(body)
	check(t, r.store.Commit("test", store.Change{Artifacts: map[digest.Digest][]byte{revision: body}}))
	err := r.consult(t.Context(), newWorker(lockedID), script(t, "/usr/bin/env | sort; exit 1"), lockedID, proposal{policy.Update, revision})
	expect.ErrorWith(t, err, "exit code 1", "answer")
	_, said, _ := strings.Cut(err.Error(), "exit code 1: ")
	want := fmt.Sprintf("LC_ALL=C MARGOLITE_CHANGE=update MARGOLITE_DEPLOYMENT=%s MARGOLITE_NAME=%s MARGOLITE_REVISION=%s PATH=%s PWD=/",
		lockedID, margo.Shown(r.headOf(revision).name, maxSaid), revision, hookPath)
	expect.Equal(t, strings.ReplaceAll(said, " _=/usr/bin/env", ""), want, "environment")
}

// A hook that takes too long goes with all that it started.
func TestAHookThatTakesTooLongIsAskedAgain(t *testing.T) {
	pids := filepath.Join(t.TempDir(), "pids")
	h := script(t, "trap '' TERM INT HUP; sleep 1000 & echo $! >"+pids+"; (trap '' TERM; echo thinking; sleep 1000) & echo $! >>"+pids+"; echo $$ >>"+pids+"; wait")
	h.Timeout = time.Second
	verdict, text := answer(t, asker(t), h)
	expect.Equal(t, verdict, "wait", "answer")
	expect.Contains(t, text, "longer than 1s: thinking", "reason")
	allGone(t, pids)
}

func TestAHookEndsWithWhoAsked(t *testing.T) {
	pids := filepath.Join(t.TempDir(), "pids")
	ready := filepath.Join(t.TempDir(), "ready")
	check(t, unix.Mkfifo(ready, 0o600))
	ctx, cancel := context.WithCancelCause(t.Context())
	go func() {
		_, _ = os.ReadFile(ready) // once the hook opens it
		cancel(errSuperseded)
	}()
	r := asker(t)
	h := script(t, "sleep 1000 & echo $! >"+pids+"; echo $$ >>"+pids+"; : >"+ready+"; wait")
	err := r.consult(ctx, newWorker(lockedID), h, lockedID, change)
	expect.Error(t, err, context.Canceled, "consult")
	allGone(t, pids)
	for range slotsOfLane {
		expect.Equal(t, r.asking[changing].Try(limit.Key{}, nil) != nil, true, "its place is free")
	}
}

// allGone fails the test unless none of the processes runs whose numbers are in
// the file. Who killed them may not have collected all of them yet.
func allGone(t *testing.T, pids string) {
	t.Helper()
	text := expect.Value(os.ReadFile(pids))(t)
	expect.Equal(t, len(text) > 0, true, "the hook has begun")
	for _, field := range strings.Fields(string(text)) {
		pid := expect.Value(strconv.Atoi(field))(t)
		fd, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			continue // it is gone
		}
		ends := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, _ := unix.Poll(ends, int(patienceWithHooks.Milliseconds()))
		expect.Equal(t, n, 1, "process %d has ended", pid)
		unix.Close(fd)
	}
}

// A process that leaves the group keeps the output open: that is not waited for.
func TestWhatAHookLeavesBehindIsNotWaitedFor(t *testing.T) {
	pids := filepath.Join(t.TempDir(), "pids")
	h := script(t, "setsid sh -c 'echo $$ >"+pids+"; exec sleep 1000' & while ! test -s "+pids+"; do :; done; exit 0")
	verdict, _ := answer(t, asker(t), h)
	expect.Equal(t, verdict, "go", "answer")
	text, _ := os.ReadFile(pids)
	if pid, err := strconv.Atoi(strings.TrimSpace(string(text))); err == nil {
		_ = unix.Kill(pid, unix.SIGKILL)
	}
}

func TestAHookThatOthersCouldReplaceIsNotStarted(t *testing.T) {
	for name, c := range map[string]struct {
		spoil func(path string) error
		text  string
	}{
		"others may write it":             {func(path string) error { return os.Chmod(path, 0o757) }, "can write"},
		"its group may write it":          {func(path string) error { return os.Chmod(path, 0o770) }, "can write"},
		"others may replace it":           {func(path string) error { return os.Chmod(filepath.Dir(path), 0o777) }, "can write"},
		"it is another user's":            {func(path string) error { return os.Chown(path, 12345, 12345) }, "other than root"},
		"its directory is another user's": {func(path string) error { return os.Chown(filepath.Dir(path), 12345, 12345) }, "other than root"},
		"it is no program":                {func(path string) error { return os.Chmod(path, 0o600) }, "cannot start it"},
		"it is not there":                 {os.Remove, "cannot start it"},
		"it is a directory": {func(path string) error {
			return errors.Join(os.Remove(path), os.Mkdir(path, 0o700))
		}, "not a regular file"},
		"it is a link to another user's": {func(path string) error {
			own := path + ".own"
			return errors.Join(os.Rename(path, own), os.Chown(own, 12345, 12345), os.Symlink(own, path))
		}, "other than root"},
	} {
		t.Run(name, func(t *testing.T) {
			if os.Geteuid() != 0 && strings.Contains(name, "other than root") {
				t.Skip("needs root")
			}
			h := script(t, "exit 0")
			check(t, c.spoil(h.Command[0]))
			verdict, text := answer(t, asker(t), h)
			expect.Equal(t, verdict, "wait", "answer")
			expect.Contains(t, text, c.text, "reason")
		})
	}
	h := script(t, "exit 0")
	link := h.Command[0] + ".link"
	check(t, os.Symlink(h.Command[0], link))
	h.Command[0] = link
	verdict, _ := answer(t, asker(t), h)
	expect.Equal(t, verdict, "go", "answer of a link")
}

func TestOnlySomeHooksRunAtOnce(t *testing.T) {
	r := asker(t)
	var slow []*limit.Slot
	for range slotsOfLane {
		slow = append(slow, r.asking[changing].Try(limit.Key{}, nil))
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	marker := filepath.Join(t.TempDir(), "ran")
	err := r.consult(ctx, newWorker(lockedID), script(t, ": >"+marker), lockedID, change)
	expect.Error(t, err, context.Canceled, "consult")
	expect.Error(t, expect.ErrorOf(os.Stat(marker)), os.ErrNotExist, "one more hook ran")
	removal := change
	removal.kind = policy.Remove
	expect.OK(t, r.consult(t.Context(), newWorker(lockedID), script(t, "exit 0"), lockedID, removal))
	slow[0].Become(yielded)
	verdict, _ := answer(t, r, script(t, "exit 0"))
	expect.Equal(t, verdict, "go", "answer")
}
