package container

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	tasksapi "github.com/containerd/containerd/api/services/tasks/v1"
	"golang.org/x/sys/unix"

	"github.com/margolite/margolite/runtime/log"
)

const (
	// drainIdle is how long the output of a command that ended may pause before
	// nothing more is expected: somebody it left behind keeps the pipe open.
	drainIdle = time.Second

	// drainMax is more than the pipes between a command and us can hold when it ends.
	drainMax = 1 << 20

	copyBlock = 8 << 10 // bytes
)

func (p *paths) connect(request *tasksapi.CreateTaskRequest, d Details) error {
	if err := os.MkdirAll(p.logDir(), 0o711); err != nil {
		return fmt.Errorf("cannot create log directory: %w", err)
	}
	if d.StdinOpen {
		request.Stdin = p.stdin(request.ContainerID)
		if err := makeFIFO(request.Stdin); err != nil {
			return fmt.Errorf("cannot create standard input: %w", err)
		}
	}
	path, keep := p.LogPath(request.ContainerID), p.logKeep(d.Logging)
	switch {
	case d.Logging.None && d.TTY:
		request.Stdout = os.DevNull // what a terminal shows has to go somewhere
		return nil
	case d.Logging.None:
	case p.o.LogKeeper != "":
		request.Stdout = log.KeeperURI(p.o.LogKeeper, path, keep)
	default:
		request.Stdout = log.URI(path, keep)
	}
	request.Stderr = request.Stdout
	return nil
}

func makeFIFO(path string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	if err := unix.Mkfifo(path, 0o600); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}

// outlet is the end of a FIFO that a command writes into through its shim.
type outlet struct {
	f     *os.File
	to    io.Writer
	ended atomic.Bool // the command has ended
	late  int         // bytes read since
	held  atomic.Bool // the command left somebody behind who has the other end
}

// listen makes a FIFO for what the command writes, and opens it. Until the shim has,
// reading it is the same as reading its end. Nothing is wanted of it where to is nil.
func (x *execution) listen(path string, to io.Writer) error {
	if err := makeFIFO(path); err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	if to == nil {
		to = io.Discard
	}
	x.outlets = append(x.outlets, &outlet{f: f, to: to})
	return nil
}

// copy passes on what the command writes. What cannot be passed on any more is still
// read, so that the command goes on.
func (o *outlet) copy() error {
	block := make([]byte, copyBlock)
	_, err := io.CopyBuffer(struct{ io.Writer }{o.to}, o, block)
	if err != nil {
		_, _ = io.CopyBuffer(struct{ io.Writer }{io.Discard}, o, block) // the first error tells why
	}
	return err
}

// end says that the command has ended: what it wrote is still read, but nobody
// is waited for who has the pipe from it.
func (o *outlet) end() {
	o.ended.Store(true)
	_ = o.f.SetReadDeadline(time.Now().Add(drainIdle)) // every FIFO takes deadlines
}

// Read makes an outlet an io.Reader. Its own type hides that of the file from io.Copy,
// which would splice, and could not be told to stop.
func (o *outlet) Read(p []byte) (int, error) {
	ended := o.ended.Load()
	if ended {
		_ = o.f.SetReadDeadline(time.Now().Add(drainIdle))
	}
	n, err := o.f.Read(p)
	if ended {
		o.late += n
	}
	if o.late > drainMax || errors.Is(err, os.ErrDeadlineExceeded) {
		o.held.Store(true)
		err = io.EOF
	}
	return n, err
}
