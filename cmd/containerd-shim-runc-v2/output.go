package main

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/margolite/margolite/runtime/log"
)

// output is what one container prints: a pipe with a name for each of its streams, for the task service to write to.
type output struct {
	pipes []pipe
	log   *log.Writer
	whole chan struct{} // closed when the log is
}

type pipe struct {
	stream string
	path   string
	reader *os.File
}

// newOutput makes the pipes in the bundle of the container. What a terminal shows is one stream.
func newOutput(bundle string, terminal bool) (*output, error) {
	o := &output{whole: make(chan struct{})}
	streams := []string{log.Stdout, log.Stderr}
	if terminal {
		streams = streams[:1]
	}
	for _, stream := range streams {
		p := pipe{stream: stream, path: filepath.Join(bundle, "margolite-"+stream)}
		if err := p.open(); err != nil {
			o.close()
			o.unlink()
			return nil, fmt.Errorf("cannot make pipe for %s: %w", stream, err)
		}
		o.pipes = append(o.pipes, p)
	}
	return o, nil
}

func (p *pipe) open() (err error) {
	if err := unix.Mkfifo(p.path, 0o600); err != nil && err != unix.EEXIST {
		return err
	}
	// Not to wait for whoever opens the other end, now or at a read.
	p.reader, err = os.OpenFile(p.path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	return err
}

func (o *output) paths() (stdout, stderr string) {
	if len(o.pipes) > 1 {
		stderr = o.pipes[1].path
	}
	return o.pipes[0].path, stderr
}

// keep reads the pipes until nobody can write to them any more. The goroutines
// end with the container's last process, or with this one.
func (o *output) keep(w *log.Writer) {
	o.log = w
	var reading sync.WaitGroup
	for _, p := range o.pipes {
		reading.Go(func() {
			w.Copy(p.stream, p.reader)
			_ = p.reader.Close()
		})
	}
	go func() {
		reading.Wait()
		_ = w.Close() // written is written
		close(o.whole)
	}()
}

func (o *output) close() {
	for _, p := range o.pipes {
		_ = p.reader.Close()
	}
}

// unlink removes the names: both ends are open, or nobody will open them.
func (o *output) unlink() {
	for _, p := range o.pipes {
		_ = os.Remove(p.path)
	}
}
