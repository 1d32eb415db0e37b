package runtime

import (
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/margolite/margolite/runtime/container"
)

// ticksPerSecond is the unit of times in /proc on every Linux.
const ticksPerSecond = 100

// startOf is when pid started, zero if it has ended, whatever the wall clock said at the time.
func startOf(pid int) time.Time {
	ticks := container.Started(pid)
	var boot unix.Timespec
	if ticks == 0 || unix.ClockGettime(unix.CLOCK_BOOTTIME, &boot) != nil {
		return time.Time{}
	}
	since := time.Duration(boot.Nano()) - time.Duration(ticks)*(time.Second/ticksPerSecond)
	return time.Now().Add(-since)
}

// lifeOf identifies process pid among all since the last boot; "" if it has ended.
func lifeOf(pid int) string {
	ticks := container.Started(pid)
	if ticks == 0 {
		return ""
	}
	return strconv.Itoa(pid) + " " + strconv.FormatUint(ticks, 10)
}
