package container

import (
	"errors"
	"fmt"
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
	ended atomic.Bool // the command has ended
	late  int         // bytes read since
}

// openOutlet makes a FIFO and opens it. Until the shim has, reading it is the
// same as reading its end.
func openOutlet(path string) (*outlet, error) {
	if err := makeFIFO(path); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	return &outlet{f: f}, nil
}

// end says that the command has ended: what it wrote is still read, but nobody
// is waited for who has the pipe from it.
func (o *outlet) end() {
	o.ended.Store(true)
	_ = o.f.SetReadDeadline(time.Now().Add(drainIdle)) // every FIFO takes deadlines
}

// Read makes an outlet an io.Reader. It is the end of it that hides the type of
// the file from io.Copy, which would splice, and could not be told to stop.
func (o *outlet) Read(p []byte) (int, error) {
	ended := o.ended.Load()
	if ended {
		if o.late > drainMax {
			return 0, os.ErrDeadlineExceeded
		}
		_ = o.f.SetReadDeadline(time.Now().Add(drainIdle))
	}
	n, err := o.f.Read(p)
	if ended {
		o.late += n
	}
	return n, err
}
