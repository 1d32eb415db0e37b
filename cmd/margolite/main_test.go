package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/margolite/margolite/cmd/command"
	"github.com/margolite/margolite/store"
	"github.com/margolite/margolite/test/expect"
)

// TestMain makes the test binary the program itself, for tests of the process.
func TestMain(m *testing.M) {
	if raceDetected() && len(os.Args) > 1 && os.Args[1] == apartName {
		if err := store.Work(os.Stdout, os.Args[2:]...); err != nil { // the race detector takes more memory than there may be
			fmt.Fprintln(os.Stderr, err)
			os.Exit(command.Failed)
		}
		return
	}
	if os.Getenv("MARGOLITE_TEST_MAIN") != "" || len(os.Args) > 1 && os.Args[1] == apartName {
		main()
		return
	}
	if scene := os.Getenv(claimScene); scene != "" {
		playClaim(scene)
		return
	}
	os.Exit(m.Run())
}

// A first signal asks, a second one ends the process, whatever hangs: here a
// configuration that never comes.
func TestASecondSignalEndsTheProcess(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "config.yaml")
	check(t, unix.Mkfifo(pipe, 0o600))
	program := exec.Command(os.Args[0], "status", "--config", pipe)
	program.Env = append(os.Environ(), "MARGOLITE_TEST_MAIN=1")
	var out bytes.Buffer
	program.Stderr = &out
	check(t, program.Start())
	done := make(chan error, 1)
	go func() { done <- program.Wait() }()
	patience := time.After(10 * time.Second)
	for {
		select {
		case err := <-done:
			var exit *exec.ExitError
			if !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGTERM {
				t.Errorf("it ended with %v, want by the signal: %s", err, out.String())
			}
			return
		case <-time.After(50 * time.Millisecond):
			// The first may come before it is heeded, which ends the process, too.
			_ = program.Process.Signal(syscall.SIGTERM)
		case <-patience:
			_ = program.Process.Kill()
			t.Fatal("signals did not end the process")
		}
	}
}

var check = expect.Check
