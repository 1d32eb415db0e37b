package runtime

import (
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/margolite/margolite/runtime/container"
)

// ticksPerSecond is the unit of times in /proc on every Linux.
const ticksPerSecond = 100

// startOf is when the process pid started; zero when it has ended. It survives
// this process, and does not depend on the wall clock having been right.
func startOf(pid int) time.Time {
	ticks := container.Started(pid)
	var boot unix.Timespec
	if ticks == 0 || unix.ClockGettime(unix.CLOCK_BOOTTIME, &boot) != nil {
		return time.Time{}
	}
	since := time.Duration(boot.Nano()) - time.Duration(ticks)*(time.Second/ticksPerSecond)
	return time.Now().Add(-since)
}

// lifeOf tells the process pid from all others since the last boot; "" when it
// has ended.
func lifeOf(pid int) string {
	ticks := container.Started(pid)
	if ticks == 0 {
		return ""
	}
	return strconv.Itoa(pid) + " " + strconv.FormatUint(ticks, 10)
}
