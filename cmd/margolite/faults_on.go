//go:build faults

package main

import (
	"fmt"
	"os"
	"strconv"
	"sync/atomic"
	"syscall"
)

// Builds with the tag faults kill themselves, as a power cut would, right after
// the n-th durable commit of the store (MARGOLITE_KILL_AFTER_COMMIT=n) or at
// the n-th mark of a step of the runtime (MARGOLITE_KILL_AT_STEP=n), and append
// each commit and mark to MARGOLITE_TRACE before that, so that a test can
// enumerate them all.

func killAfterCommit() func(string) { return killAt("commit", "MARGOLITE_KILL_AFTER_COMMIT") }

func killAtStep() func(string) { return killAt("step", "MARGOLITE_KILL_AT_STEP") }

func killAt(kind, variable string) func(string) {
	at, _ := strconv.Atoi(os.Getenv(variable)) // 0: never
	var count atomic.Int64
	return func(name string) {
		n := count.Add(1)
		if trace := os.Getenv("MARGOLITE_TRACE"); trace != "" {
			if f, err := os.OpenFile(trace, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600); err == nil {
				fmt.Fprintf(f, "%s %d %s\n", kind, n, name)
				f.Close()
			}
		}
		if int64(at) == n {
			syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {}
		}
	}
}
