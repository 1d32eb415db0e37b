//go:build faults

package main

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

// Builds with the tag faults kill themselves, like a power cut, after the n-th durable commit of
// the store (MARGOLITE_KILL_AFTER_COMMIT=n) or at the n-th step of the runtime
// (MARGOLITE_KILL_AT_STEP=n). Before that they append each commit and step to MARGOLITE_TRACE, so
// that a test can enumerate them. At the step named by MARGOLITE_PANIC_AT_STEP they panic, once.

func killAfterCommit() func(string) { return killAt("commit", "MARGOLITE_KILL_AFTER_COMMIT") }

func killAtStep() func(string) { return killAt("step", "MARGOLITE_KILL_AT_STEP") }

func killAt(kind, variable string) func(string) {
	at, _ := strconv.Atoi(os.Getenv(variable)) // 0: never
	var count atomic.Int64
	var panicked atomic.Bool
	return func(name string) {
		n := count.Add(1)
		if trace := os.Getenv("MARGOLITE_TRACE"); trace != "" {
			if f, err := os.OpenFile(trace, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600); err == nil {
				fmt.Fprintf(f, "%s %d %s\n", kind, n, name)
				f.Close()
			}
		}
		if name == os.Getenv("MARGOLITE_PANIC_AT_STEP") && panicked.CompareAndSwap(false, true) {
			panic("at step: " + name)
		}
		if int64(at) == n {
			syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {}
		}
	}
}

// systemClock is off by the duration in the file MARGOLITE_CLOCK, which may change at any time. It
// has no monotonic readings: they would be off as well, unlike those of a clock that was set.
func systemClock() func() time.Time {
	file := os.Getenv("MARGOLITE_CLOCK")
	if file == "" {
		return time.Now
	}
	return func() time.Time {
		text, _ := os.ReadFile(file) // none: not off
		off, _ := time.ParseDuration(strings.TrimSpace(string(text)))
		return time.Now().Round(0).Add(off)
	}
}
