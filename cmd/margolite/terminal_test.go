package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/console"
	"golang.org/x/sys/unix"

	"github.com/margolite/margolite/agent/control"
	"github.com/margolite/margolite/cmd/command"
	"github.com/margolite/margolite/test/expect"
)

// pty is a terminal, and a margolite that runs on it.
type pty struct {
	t       *testing.T
	master  console.Console
	slave   *os.File
	program *exec.Cmd
	before  unix.Termios // its mode before the program came

	mu     sync.Mutex
	shown  bytes.Buffer
	change chan struct{} // closed with each output
}

// onTerminal runs margolite on a terminal of its own.
func onTerminal(t *testing.T, size control.Size, args ...string) *pty {
	t.Helper()
	master, path, err := console.NewPty()
	if err != nil {
		t.Skip("needs a terminal:", err)
	}
	t.Cleanup(func() { master.Close() })
	p := &pty{t: t, master: master, change: make(chan struct{})}
	p.slave = expect.Value(os.OpenFile(path, os.O_RDWR|syscall.O_NOCTTY, 0))(t)
	t.Cleanup(func() { p.slave.Close() })
	p.resize(size)
	p.before = p.mode()
	p.program = exec.Command(os.Args[0], args...)
	p.program.Env = append(os.Environ(), "MARGOLITE_TEST_MAIN=1", "TERM=test")
	p.program.Stdin, p.program.Stdout, p.program.Stderr = p.slave, p.slave, p.slave
	p.program.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true, Pdeathsig: syscall.SIGKILL}
	check(t, p.program.Start())
	t.Cleanup(func() { _ = p.program.Process.Kill() })
	go func() {
		buf := make([]byte, 4096)
		for {
			n, err := master.Read(buf)
			p.mu.Lock()
			p.shown.Write(buf[:n])
			close(p.change)
			p.change = make(chan struct{})
			p.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	return p
}

func (p *pty) resize(size control.Size) {
	p.t.Helper()
	check(p.t, p.master.Resize(console.WinSize{Width: size.Columns, Height: size.Rows}))
}

func (p *pty) mode() unix.Termios {
	p.t.Helper()
	return *expect.Value(unix.IoctlGetTermios(int(p.slave.Fd()), unix.TCGETS))(p.t)
}

func (p *pty) typed(keys string) {
	p.t.Helper()
	expect.Value(io.WriteString(p.master, keys))(p.t)
}

// await waits until text is on the terminal.
func (p *pty) await(text string) {
	p.t.Helper()
	patience := time.After(20 * time.Second)
	for {
		p.mu.Lock()
		shown, change := p.shown.String(), p.change
		p.mu.Unlock()
		if strings.Contains(shown, text) {
			return
		}
		select {
		case <-change:
		case <-patience:
			p.t.Fatalf("%q is not shown, but %q", text, shown)
		}
	}
}

// ended waits for the program and returns its exit code.
func (p *pty) ended() int {
	p.t.Helper()
	err := p.program.Wait()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		p.t.Fatal(err)
	}
	return p.program.ProcessState.ExitCode()
}

// A command on a terminal gets every key, the sizes of the terminal, and its
// exit code is that of margolite; the terminal is as before.
func TestExecOnATerminal(t *testing.T) {
	a := &fakeAgent{exec: func(ctx context.Context, r control.ExecRequest, s control.ExecStreams) (int, error) {
		size := func() (control.Size, error) {
			select {
			case size := <-s.Resize:
				return size, nil
			case <-ctx.Done():
				return control.Size{}, ctx.Err()
			}
		}
		got, err := size()
		fmt.Fprintf(s.Stdout, "%v %q %q size %v\r\n", r.TTY, r.Env, r.Args, got)
		for key := make([]byte, 1); err == nil; {
			if _, err = io.ReadFull(s.Stdin, key); err != nil {
				break
			}
			switch key[0] {
			case 'q':
				return 42, nil
			case 'w':
				got, err = size()
				fmt.Fprintf(s.Stdout, "size %v\r\n", got)
			default:
				fmt.Fprintf(s.Stdout, "key %d\r\n", key[0])
			}
		}
		return 0, err
	}}
	p := onTerminal(t, control.Size{Columns: 100, Rows: 40}, "compose", "--config", serve(t, a), "-p", "shop", "exec", "-it", "web", "sh", "-T")
	p.await(`true ["TERM=test"] ["sh" "-T"] size {100 40}`)
	expect.Equal(t, p.mode().Lflag&unix.ECHO, 0, "the terminal still echoes")
	p.typed("\x03")
	p.await("key 3")
	p.typed("\r")
	p.await("key 13")
	p.typed("w")
	p.resize(control.Size{Columns: 120, Rows: 30})
	p.await("size {120 30}")
	p.typed("q")
	expect.Equal(t, p.ended(), 42, "exit code")
	expect.Equal(t, p.mode(), p.before, "the terminal is left in mode")
}

// Who interrupts what is attached removes the project, and nothing else.
func TestInterruptRemovesWhatIsAttached(t *testing.T) {
	a := &fakeAgent{endless: true}
	compose := write(t, filepath.Join(t.TempDir(), "app.yaml"), shop)
	p := onTerminal(t, control.Size{Columns: 80, Rows: 24}, "compose", "--config", serve(t, a), "-f", compose, "up", "--attach", "-t", "3")
	p.await("shop [] follow true tail all")
	expect.Equal(t, a.said(), []string{"up shop app.yaml TAG="}, "the agent was asked")
	p.typed("\x03")
	p.await("removing project shop")
	code := p.ended()
	a.mu.Lock()
	defer a.mu.Unlock()
	if code != command.Done || len(a.told) != 2 || a.down.Project != "shop" || a.down.Volumes || *a.down.Timeout != 3 {
		t.Errorf("it ended with %d, the agent was asked %q, %+v", code, a.told, a.down)
	}
}

// On a terminal each object has one line that changes in place.
func TestProgressOnATerminal(t *testing.T) {
	compose := write(t, filepath.Join(t.TempDir(), "app.yaml"), shop)
	p := onTerminal(t, control.Size{Columns: 60, Rows: 20}, "compose", "--config", serve(t, &fakeAgent{}), "-f", compose, "up")
	p.await("shop-web-1")
	expect.Equal(t, p.ended(), command.Done, "exit code")
	p.mu.Lock()
	shown := p.shown.String()
	p.mu.Unlock()
	for _, want := range []string{
		"warning: doubtful\r\n",
		" Image      registry/app:1.0  Pulling",
		"\x1b[1A Image      registry/app:1.0  Pulled\x1b[K\r\n Container  web-1             Creating\x1b[K\r\n",
		"\x1b[2A Image      registry/app:1.0  Pulled\x1b[K\r\n Container  web-1             Running\x1b[K\r\n",
		"NAME ",
	} {
		expect.Contains(t, shown, want, "the terminal")
	}
}

// A terminal too small for all lines shows the last ones, none of them broken.
func TestProgressOnASmallTerminal(t *testing.T) {
	var out bytes.Buffer
	p := &progress{out: &out, terminal: true}
	p.event(control.Event{Kind: control.ServiceChanged, Text: "delete container old-1"})
	expect.Contains(t, out.String(), " Container  old-1  Removed", "the picture")
	for i := range 40 {
		p.event(control.Event{Kind: control.ServiceChanged, Text: fmt.Sprintf("create container %s-%d", strings.Repeat("x", 100), i)})
	}
	p.finish(nil)
	last := out.String()[strings.LastIndex(out.String(), "A "):]
	expect.Equal(t, strings.Count(last, "\n"), 23, "lines of the picture")
	for line := range strings.Lines(last) {
		if n := len(strings.TrimSuffix(strings.TrimPrefix(line, "A"), "\x1b[K\n")); n > 79 {
			t.Errorf("a line has %d columns: %q", n, line)
		}
	}
}
