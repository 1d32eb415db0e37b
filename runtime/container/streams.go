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

// logURI is where the shim is told to write the output of a container.
func (c *Containers) logURI(id string, d Details) string {
	if d.Logging.None {
		return ""
	}
	return log.URI(c.LogPath(id), c.logKeep(d.Logging))
}

// stdin is the FIFO that a container reads whose standard input stays open. The
// shim holds its other end as well: a reader waits, whether or not an agent runs.
func (c *Containers) stdin(id string) string { return filepath.Join(c.o.RunDir, "stdin", id) }

// connect says where the standard streams of a container lead that is about to start.
func (c *Containers) connect(request *tasksapi.CreateTaskRequest, d Details) error {
	if err := os.MkdirAll(c.logDir(), 0o711); err != nil {
		return fmt.Errorf("cannot create log directory: %w", err)
	}
	if d.StdinOpen {
		request.Stdin = c.stdin(request.ContainerID)
		if err := makeFIFO(request.Stdin); err != nil {
			return fmt.Errorf("cannot create standard input: %w", err)
		}
	}
	uri := c.logURI(request.ContainerID, d)
	if !d.TTY {
		request.Stdout, request.Stderr = uri, uri
		if uri != "" {
			path := c.LogPath(request.ContainerID)
			closeLog(path)
			if c.o.OtherShim {
				request.Stdout, request.Stderr = twice(path)
			}
		}
		return nil
	}
	// A stock shim takes no URI for the output of a terminal, and writes a file
	// from its start. Ours takes it from where no other looks.
	request.Stdout, request.Stderr = os.DevNull, uri
	if uri != "" {
		request.Stdout = c.LogPath(request.ContainerID)
		if err := os.WriteFile(request.Stdout, nil, log.Mode); err != nil {
			return fmt.Errorf("cannot create log: %w", err)
		}
	}
	return nil
}

// twice names a file in two ways. A stock shim opens what has one name once, and closes
// it with the first stream that ends: what comes from the other one is lost.
func twice(path string) (stdout, stderr string) {
	return path, filepath.Dir(path) + "/./" + filepath.Base(path)
}

// closeLog makes the file that another shim than ours appends to, before it does so
// itself and lets everybody read it. Where that cannot be done it cannot do it, either,
// and ours needs no such file.
func closeLog(path string) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY|unix.O_NOFOLLOW, log.Mode)
	if err != nil {
		return
	}
	_ = f.Chmod(log.Mode) // of one that was there
	_ = f.Close()
}

// disconnect removes what connect made.
func (c *Containers) disconnect(id string) error {
	if err := os.Remove(c.stdin(id)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("cannot remove standard input: %w", err)
	}
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
