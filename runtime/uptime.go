package runtime

import (
	"bytes"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// ticksPerSecond is the unit of times in /proc on every Linux.
const ticksPerSecond = 100

// startOf is when the process pid started; zero when it has ended. It survives
// this process, and does not depend on the wall clock having been right.
func startOf(pid int) time.Time {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return time.Time{}
	}
	ticks, ok := startTicks(stat)
	var boot unix.Timespec
	if !ok || unix.ClockGettime(unix.CLOCK_BOOTTIME, &boot) != nil {
		return time.Time{}
	}
	since := time.Duration(boot.Nano()) - time.Duration(ticks)*(time.Second/ticksPerSecond)
	return time.Now().Add(-since)
}

// lifeOf tells the process pid from all others since the last boot; "" when it
// has ended.
func lifeOf(pid int) string {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return ""
	}
	ticks, ok := startTicks(stat)
	if !ok {
		return ""
	}
	return strconv.Itoa(pid) + " " + strconv.FormatInt(ticks, 10)
}

// startTicks reads the 22nd field of /proc/<pid>/stat; not ok when the third
// says that the process has ended and only waits to be buried. The second one
// is a name in parentheses that may hold anything.
func startTicks(stat []byte) (int64, bool) {
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	const startTime = 22 - 3 // fields starts with the third
	if len(fields) <= startTime || fields[0][0] == 'Z' || fields[0][0] == 'X' {
		return 0, false
	}
	ticks, err := strconv.ParseInt(string(fields[startTime]), 10, 64)
	return ticks, err == nil
}
