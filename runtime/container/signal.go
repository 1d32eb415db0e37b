package container

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/moby/sys/signal"
	"golang.org/x/sys/unix"
)

const lastSignal = 64

// parseSignal reads a signal as images and Compose files spell it: SIGTERM,
// TERM, 15, SIGRTMIN+3. "" is SIGTERM.
func parseSignal(s string) (unix.Signal, error) {
	n, err := signal.ParseSignal(cmp.Or(strings.TrimSpace(s), "SIGTERM"))
	if err != nil || n < 1 || n > lastSignal { // the library takes any number
		return 0, fmt.Errorf("%.40q is not a signal", s)
	}
	return n, nil
}
