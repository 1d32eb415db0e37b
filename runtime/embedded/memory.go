package embedded

import (
	"runtime/debug"

	"golang.org/x/sys/unix"
)

// memoryLimit is the memory in bytes: the machine's, or GOMEMLIMIT, which heeds control groups.
func memoryLimit() int64 {
	limit := debug.SetMemoryLimit(-1)
	var machine unix.Sysinfo_t
	if err := unix.Sysinfo(&machine); err == nil {
		limit = min(limit, int64(uint64(machine.Totalram)*uint64(machine.Unit)))
	}
	return limit
}
