package container

import (
	"fmt"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

const lastSignal = 64

// parseSignal reads a signal as images and Compose files spell it: SIGTERM,
// TERM, 15, SIGRTMIN+3. "" is SIGTERM.
func parseSignal(s string) (unix.Signal, error) {
	name := strings.ToUpper(strings.TrimSpace(s))
	if name == "" {
		return unix.SIGTERM, nil
	}
	if n, err := strconv.ParseUint(name, 10, 8); err == nil && n > 0 && n <= lastSignal {
		return unix.Signal(n), nil
	}
	if !strings.HasPrefix(name, "SIG") {
		name = "SIG" + name
	}
	if sig := unix.SignalNum(name); sig != 0 {
		return sig, nil
	}
	// glibc and musl keep the first two real-time signals for themselves.
	for prefix, base := range map[string]int{"SIGRTMIN": 34, "SIGRTMAX": lastSignal} {
		if rest, ok := strings.CutPrefix(name, prefix); ok {
			offset := 0
			if rest != "" {
				n, err := strconv.ParseInt(rest, 10, 8) // with its sign
				if err != nil {
					break
				}
				offset = int(n)
			}
			if n := base + offset; n >= 34 && n <= lastSignal {
				return unix.Signal(n), nil
			}
		}
	}
	return 0, fmt.Errorf("%.40q is no signal", s)
}
