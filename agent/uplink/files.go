package uplink

import (
	"io/fs"
	"log/slog"
	"os"
	"slices"
	"time"
)

// files are watched for being replaced, by a look at them with each request.
type files struct {
	names  []string
	stamps []stamp
	logged string // why what replaced them is not in use, to log it once
}

// stamp tells whether a file was replaced, or may be read by others than before.
type stamp struct {
	modified time.Time
	size     int64
	mode     fs.FileMode
}

// replaced says whether any of the files is another one than when replaced was
// called the last time.
func (f *files) replaced() bool {
	now := make([]stamp, len(f.names))
	for i, name := range f.names {
		if info, err := os.Stat(name); err == nil {
			now[i] = stamp{info.ModTime(), info.Size(), info.Mode()}
		}
	}
	same := slices.Equal(now, f.stamps)
	f.stamps = now
	return !same
}

// accepted says that what replaced the files is in use.
func (f *files) accepted() { f.logged = "" }

// refused says that it is not: it is looked at again with the next request,
// whatever was in the way.
func (f *files) refused(err error, logger *slog.Logger) {
	f.stamps = nil
	if text := err.Error(); text != f.logged {
		f.logged = text
		logger.Warn("cannot load a replaced file; the previous one stays in use", "error", err)
	}
}
