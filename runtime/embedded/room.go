package embedded

import (
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// roomSize is the space in bytes that each database has beyond its file.
const roomSize = 1 << 20

// takeRoom preallocates blocks for the databases, if the file system can. bbolt only extends a file,
// so that on a full disk a small database could not even commit the removal of an image. It writes no
// data, and it is no error if there is no space.
func takeRoom(root string) {
	files, _ := filepath.Glob(filepath.Join(root, "*", "meta*.db")) // the pattern is valid
	for _, file := range files {
		f, err := os.OpenFile(file, os.O_RDWR, 0)
		if err != nil {
			continue
		}
		var stat unix.Stat_t
		if err := unix.Fstat(int(f.Fd()), &stat); err == nil && stat.Blocks*512 < stat.Size+roomSize {
			_ = unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_KEEP_SIZE, 0, stat.Size+roomSize)
		}
		_ = f.Close()
	}
}
