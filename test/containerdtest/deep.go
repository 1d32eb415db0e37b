package containerdtest

import (
	"testing"

	"golang.org/x/sys/unix"
)

// Deepen makes directories in one another below dir, as a container can.
func Deepen(t testing.TB, dir string, levels int) {
	t.Helper()
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	for n := 0; n < levels && err == nil; n++ {
		below := -1
		if err = unix.Mkdirat(fd, "directory", 0o755); err == nil {
			below, err = unix.Openat(fd, "directory", unix.O_RDONLY|unix.O_DIRECTORY, 0)
		}
		_ = unix.Close(fd)
		fd = below
	}
	check(t, err)
	_ = unix.Close(fd)
}
