package uplink

import (
	"os"
	"slices"
	"time"
)

// files are watched for being replaced, by a look at them with each request.
type files struct {
	names  []string
	stamps []stamp
}

// stamp tells whether a file was replaced.
type stamp struct {
	modified time.Time
	size     int64
}

// replaced says whether any of the files is another one than when replaced was
// called the last time.
func (f *files) replaced() bool {
	now := make([]stamp, len(f.names))
	for i, name := range f.names {
		if info, err := os.Stat(name); err == nil {
			now[i] = stamp{info.ModTime(), info.Size()}
		}
	}
	same := slices.Equal(now, f.stamps)
	f.stamps = now
	return !same
}
