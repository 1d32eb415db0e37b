package main_test

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/console"
	"golang.org/x/sys/unix"

	"github.com/margolite/margolite/test/expect"
	"github.com/margolite/margolite/test/isolated"
)

func TestMain(m *testing.M) { os.Exit(isolated.Main(m)) }

// program builds the command.
func program(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "docker-init")
	build := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-o", path, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return path
}

func TestEndsAsTheCommandEnds(t *testing.T) {
	docker := program(t)
	dir := t.TempDir()
	for name, text := range map[string]string{"plain": "exit 5\n", "closed": "#!/bin/sh\n"} {
		mode := os.FileMode(0o755)
		if name == "closed" {
			mode = 0o644
		}
		check(t, os.WriteFile(filepath.Join(dir, name), []byte(text), mode))
	}
	tests := []struct {
		name    string
		command []string
		code    int
		says    string
	}{
		{"well", []string{"--", "true"}, 0, ""},
		{"with a code", []string{"--", "sh", "-c", "exit 42"}, 42, ""},
		{"by a signal", []string{"--", "sh", "-c", "kill -9 $$"}, 137, ""},
		{"without the two dashes", []string{"sh", "-c", "exit 3"}, 3, ""},
		{"arguments come through as they are", []string{"--", "sh", "-c", `test "$1" = "a  b" && test "$2" = "" && exit 7`, "--", "a  b", ""}, 7, ""},
		{"a script that names no shell", []string{"--", "plain"}, 5, ""},
		{"a command that is not there", []string{"--", "nowhere-to-be-found"}, 127, "cannot run nowhere-to-be-found"},
		{"a path that is not there", []string{"--", "/no/where"}, 127, "cannot run /no/where"},
		{"a file that is no program", []string{"--", filepath.Join(dir, "closed")}, 126, "permission denied"},
		{"no command", []string{"--"}, 1, "usage"},
		{"with an input that does not end", []string{"-i", "--", "timeout", "0.2", "cat"}, 124, ""},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			var said bytes.Buffer
			cmd := exec.Command(docker, test.command...)
			cmd.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"))
			cmd.Stderr = &said
			_ = cmd.Run() // the code says it
			if got := cmd.ProcessState.ExitCode(); got != test.code || !strings.Contains(said.String(), test.says) {
				t.Errorf("got code %d and %q, want %d and %q", got, said.String(), test.code, test.says)
			}
		})
	}
}

func TestPassesSignalsOn(t *testing.T) {
	docker := program(t)
	for _, sig := range []syscall.Signal{unix.SIGTERM, unix.SIGHUP, unix.SIGUSR1, unix.SIGINT, syscall.Signal(37)} {
		t.Run(fmt.Sprint(sig), func(t *testing.T) {
			cmd := exec.Command(docker, "--", "sh", "-c", fmt.Sprintf("trap 'exit 9' %d; echo ready; while :; do sleep 0.02; done", sig))
			out := expect.Value(cmd.StdoutPipe())(t)
			check(t, cmd.Start())
			if line, err := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
				t.Fatal(line, err)
			}
			check(t, cmd.Process.Signal(sig))
			_ = cmd.Wait()
			expect.Equal(t, cmd.ProcessState.ExitCode(), 9, "got code")
		})
	}
}

// As process 1 it gets the orphans: none stays a zombie, and when the command
// has ended nobody lives on.
func TestBuriesOrphans(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	const script = `test $PPID = 1 || exit 2
for n in 1 2 3 4 5; do (sleep 0.1 & echo $!) & done
wait
n=0
while sleep 0.1; do
	n=$((n + 1))
	grep -qs '^State:.Z' /proc/[0-9]*/status || exit 0
	test $n -lt 50 || exit 3
done`
	cmd := exec.Command("unshare", "--pid", "--fork", "--mount-proc", program(t), "--", "sh", "-c", script)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}

// The command has the terminal: what is typed there, and its Ctrl-C, reach it.
func TestCommandHasTheTerminal(t *testing.T) {
	controller, path, err := console.NewPty()
	if err != nil {
		t.Skip("needs a terminal:", err)
	}
	defer controller.Close()
	terminal := expect.Value(os.OpenFile(path, os.O_RDWR|syscall.O_NOCTTY, 0))(t)
	cmd := exec.Command(program(t), "--", "sh", "-c", "read line; echo got $line; exec sleep 60")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = terminal, terminal, terminal
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	check(t, cmd.Start())
	terminal.Close()
	expect.Value(controller.Write([]byte("hello\n")))(t)
	lines := bufio.NewScanner(controller)
	for lines.Scan() && lines.Text() != "got hello" {
	}
	if lines.Text() != "got hello" {
		t.Fatalf("terminal has %q, error %v", lines.Text(), lines.Err())
	}
	expect.Value(controller.Write([]byte{3}))(t)
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	select {
	case err := <-ended:
		expect.Equal(t, cmd.ProcessState.ExitCode(), 130, "got %v", err)
	case <-time.After(10 * time.Second):
		_ = cmd.Process.Kill()
		t.Error("Ctrl-C did not end the command")
	}
}

var check = expect.Check
