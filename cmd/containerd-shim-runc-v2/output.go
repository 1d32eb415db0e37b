package main

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/margolite/margolite/runtime/log"
)

// output is the output of one container: a named pipe per stream, for the task service to write to.
type output struct {
	bundle string
	pipes  map[string]*os.File // read ends, by stream
	log    *log.Writer
	whole  chan struct{} // closed when the log is complete
}

// newOutput creates the pipes in the container's bundle. A terminal has one stream.
func newOutput(bundle string, terminal bool) (*output, error) {
	o := &output{bundle: bundle, pipes: make(map[string]*os.File), whole: make(chan struct{})}
	streams := []string{log.Stdout, log.Stderr}
	if terminal {
		streams = streams[:1]
	}
	for _, stream := range streams {
		err := unix.Mkfifo(o.path(stream), 0o600)
		if err == nil || err == unix.EEXIST {
			// Nonblocking, so that neither this open nor a read waits for a writer.
			o.pipes[stream], err = os.OpenFile(o.path(stream), os.O_RDONLY|unix.O_NONBLOCK, 0)
		}
		if err != nil {
			o.close()
			o.unlink()
			return nil, fmt.Errorf("cannot make pipe for %s: %w", stream, err)
		}
	}
	return o, nil
}

func (o *output) path(stream string) string { return filepath.Join(o.bundle, "margolite-"+stream) }

func (o *output) paths() (stdout, stderr string) {
	if o.pipes[log.Stderr] != nil {
		stderr = o.path(log.Stderr)
	}
	return o.path(log.Stdout), stderr
}

// keep reads the pipes until no writer is left, or this process ends.
func (o *output) keep(w *log.Writer) {
	o.log = w
	var reading sync.WaitGroup
	for stream, pipe := range o.pipes {
		reading.Go(func() {
			w.Copy(stream, pipe)
			_ = pipe.Close()
		})
	}
	go func() {
		reading.Wait()
		_ = w.Close() // all lines were written
		close(o.whole)
	}()
}

func (o *output) close() {
	for _, pipe := range o.pipes {
		_ = pipe.Close()
	}
}

// unlink removes the names: both ends are open, or never will be.
func (o *output) unlink() {
	for stream := range o.pipes {
		_ = os.Remove(o.path(stream))
	}
}
