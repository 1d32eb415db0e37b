package uplink

import (
	"slices"
	"syscall"
)

// files are watched for being replaced, by a look at them with each request.
type files struct {
	names  []string
	stamps []stamp
}

// stamp tells whether a file was replaced, written, or given another mode or
// owner: who may read it counts, too.
type stamp struct {
	inode, size       int64
	modified, changed syscall.Timespec
}

// replaced says whether any of the files is another one than when replaced was
// called the last time.
func (f *files) replaced() bool {
	now := make([]stamp, len(f.names))
	for i, name := range f.names {
		var s syscall.Stat_t
		if syscall.Stat(name, &s) == nil {
			now[i] = stamp{int64(s.Ino), s.Size, s.Mtim, s.Ctim}
		}
	}
	same := slices.Equal(now, f.stamps)
	f.stamps = now
	return !same
}
