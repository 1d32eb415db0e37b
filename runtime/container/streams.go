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
	// drainIdle ends the wait for output if a process left behind keeps the pipe open.
	drainIdle = time.Second

	// drainMax is more than the pipes between an ended command and us can hold.
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
		request.Stdout = os.DevNull // a terminal's output has to go somewhere
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

// outlet is our end of a FIFO that a command writes to through its shim.
type outlet struct {
	f     *os.File
	to    io.Writer
	ended atomic.Bool // the command has ended
	late  int         // bytes read since
	held  atomic.Bool // a process the command left behind has the other end
}

// listen makes and opens a FIFO for what the command writes. Until the shim has opened it,
// reading it returns EOF. to may be nil: the output is discarded.
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

// copy passes on output. It reads even if it cannot, so that the command goes on.
func (o *outlet) copy() error {
	block := make([]byte, copyBlock)
	_, err := io.CopyBuffer(struct{ io.Writer }{o.to}, o, block)
	if err != nil {
		_, _ = io.CopyBuffer(struct{ io.Writer }{io.Discard}, o, block) // the first error is the cause
	}
	return err
}

// end does not wait for processes that the ended command left behind with the pipe.
func (o *outlet) end() {
	o.ended.Store(true)
	_ = o.f.SetReadDeadline(time.Now().Add(drainIdle)) // FIFOs support deadlines
}

// Read hides the file's type from io.Copy, which would splice and could not be stopped.
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
