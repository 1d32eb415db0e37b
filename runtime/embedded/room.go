package embedded

import (
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// roomSize is what each database has of the medium beyond its file.
const roomSize = 1 << 20

// takeRoom gives the databases of containerd their blocks ahead, as far as the file system can. bbolt only makes a file
// longer, so that a small database could commit nothing on a full disk: not even that an image goes, which would make
// space. Room that is there costs a look; taking it writes no data. That there is none to take is no error.
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
