package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/margolite/margolite/test/expect"
	"github.com/margolite/margolite/test/servicemanager"
)

func TestTheServiceManagerHearsOfIt(t *testing.T) {
	address, heard := servicemanager.Listen(t)
	t.Setenv("NOTIFY_SOCKET", address)
	t.Setenv("WATCHDOG_USEC", "30000000")
	t.Setenv("WATCHDOG_PID", fmt.Sprint(os.Getpid()))
	s := openService(os.Environ())
	defer s.close()
	expect.Equal(t, s.watchdog, 30*time.Second, "the watchdog waits")
	for _, name := range []string{"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"} {
		if _, there := os.LookupEnv(name); there {
			t.Errorf("%s is passed on to shims", name)
		}
	}
	s.ready("runs")
	s.reloading()
	s.alive()
	s.stopping()
	for _, want := range [][]string{{"READY=1", "STATUS=runs"}, {"RELOADING=1", "MONOTONIC_USEC="}, {"WATCHDOG=1"}, {"STOPPING=1", "STATUS=stopping"}} {
		got := <-heard
		lines := strings.Split(got, "\n")
		for _, line := range want {
			if !slices.ContainsFunc(lines, func(l string) bool { return strings.HasPrefix(l, line) }) {
				t.Errorf("it heard %q, want %q", got, want)
			}
		}
	}
}

// Nobody, somebody who has gone, and somebody else's watchdog.
func TestWithoutAServiceManagerNothingIsMissing(t *testing.T) {
	for name, env := range map[string][]string{
		"nobody":                  nil,
		"one that has gone":       {"NOTIFY_SOCKET=/nowhere/notify", "WATCHDOG_USEC=1000000"},
		"a watchdog of another":   {"WATCHDOG_USEC=1000000", "WATCHDOG_PID=1"},
		"numbers that are none":   {"WATCHDOG_USEC=soon"},
		"an address that is none": {"NOTIFY_SOCKET=" + strings.Repeat("x", 200)},
	} {
		t.Run(name, func(t *testing.T) {
			s := openService(env)
			defer s.close()
			s.ready("runs")
			s.stopping()
			expect.Equal(t, s.watchdog, 0, "the watchdog waits")
		})
	}
}

func TestTheWatchdogEndsWhatIsStuck(t *testing.T) {
	for name, check := range map[string]func() error{
		"that says so":           func() error { return errors.New("the poller has not got on") },
		"that answers no longer": func() error { select {} },
	} {
		t.Run(name, func(t *testing.T) {
			address, heard := servicemanager.Listen(t)
			s := openService([]string{"NOTIFY_SOCKET=" + address})
			defer s.close()
			log := &strings.Builder{}
			w := newWatchdog(check, s, slog.New(slog.NewTextHandler(log, nil)))
			w.every, w.answer = time.Millisecond, 10*time.Millisecond
			expect.ErrorWith(t, w.run(t.Context()), "stuck", "error")
			expect.Contains(t, log.String(), "goroutine ", "where it is stuck")
			select {
			case said := <-heard:
				t.Errorf("the service manager heard %q", said)
			default:
			}
		})
	}
}

func TestTheWatchdogIsFedAsLongAsTheAgentGetsOn(t *testing.T) {
	address, heard := servicemanager.Listen(t)
	s := openService([]string{"NOTIFY_SOCKET=" + address, "WATCHDOG_USEC=40000"})
	defer s.close()
	looks := 0
	check := func() error { // a hiccup now and then is none
		if looks++; looks%3 == 0 {
			return errors.New("hiccup")
		}
		return nil
	}
	w := newWatchdog(check, s, slog.New(slog.DiscardHandler))
	expect.True(t, w.every <= s.watchdog/2, "it looks each %v, and has to within %v", w.every, s.watchdog)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- w.run(ctx) }()
	for range 10 {
		expect.Equal(t, <-heard, "WATCHDOG=1", "it heard")
	}
	cancel()
	expect.OK(t, <-ended)
}

// Ready is said when workloads are back and the socket answers, not before.
func TestReadyOnceWorkloadsAreBackAndTheSocketAnswers(t *testing.T) {
	address, heard := servicemanager.Listen(t)
	s := openService([]string{"NOTIFY_SOCKET=" + address})
	defer s.close()
	file := serve(t, &fakeAgent{})
	back := make(chan struct{})
	ended := make(chan error)
	go func() { ended <- announce(t.Context(), s, back, filepath.Join(filepath.Dir(file), "control.sock")) }()
	select {
	case said := <-heard:
		t.Errorf("it heard %q before workloads were back", said)
	case <-time.After(50 * time.Millisecond):
	}
	close(back)
	expect.Contains(t, <-heard, "READY=1\n", "it heard")
	expect.OK(t, <-ended)
}
