package netlink

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// patience is how long an answer may take. The kernel answers while it is
	// asked, so that this is only for what should not be.
	patience = 10 * time.Second

	maxAttempts = 10      // at a list that changes meanwhile
	maxListed   = 1 << 21 // objects; the routes of the whole internet are half of it
	maxDatagram = 4 << 20 // bytes received at once; the kernel writes lists in pieces of 32 KiB
	maxSent     = 16 << 20
)

// Conn is a connection to a part of the kernel, in the network namespace that
// its maker's thread was in. It is for one goroutine at a time, save Close,
// which also ends Receive.
type Conn struct {
	file     *os.File
	raw      syscall.RawConn
	sequence uint32
	buffer   []byte
}

// Open connects to the part with this number, such as unix.NETLINK_ROUTE, and
// joins its groups: a bit for each, as in bind(2).
func Open(protocol int, groups uint32) (*Conn, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, protocol)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: groups}); err != nil {
		_ = unix.Close(fd)
		return nil, os.NewSyscallError("bind", err)
	}
	// Words with errors, and not the whole request: where a kernel has neither,
	// answers are longer and say less.
	for _, option := range []int{unix.NETLINK_EXT_ACK, unix.NETLINK_CAP_ACK} {
		_ = unix.SetsockoptInt(fd, unix.SOL_NETLINK, option, 1)
	}
	c := &Conn{file: os.NewFile(uintptr(fd), "netlink")}
	if c.raw, err = c.file.SyscallConn(); err != nil {
		return nil, errors.Join(err, c.file.Close())
	}
	return c, nil
}

// Close ends the connection, and whatever the kernel keeps for as long as it
// lasts.
func (c *Conn) Close() error { return c.file.Close() }

// Do has the kernel do something.
func (c *Conn) Do(m *Message) error {
	return c.Get(m, func([]byte) error { return nil })
}

// Get asks for an object and calls read with what the kernel says about it,
// from the header of the family on.
func (c *Conn) Get(m *Message, read func(data []byte) error) error {
	sequence, err := c.send(unix.NLM_F_ACK, m)
	if err != nil {
		return err
	}
	var unread error
	err = c.answered(func(a answer) (bool, error) {
		switch {
		case a.sequence != sequence:
		case a.kind == unix.NLMSG_ERROR:
			return false, a.outcome()
		case unread == nil:
			unread = read(a.data)
		}
		return true, nil
	})
	return cmp.Or(err, unread)
}

// ErrInterrupted says that a list changed each time while the kernel wrote it.
var ErrInterrupted = errors.New("the list changes all the time")

// List asks for all objects that the message is about. read makes one of what
// the kernel says, from the header of the family on, and says whether it is
// wanted; what it gets does not last.
func List[T any](c *Conn, m *Message, read func(data []byte) (T, bool, error)) ([]T, error) {
	for range maxAttempts {
		var all []T
		err := c.dump(m, func(data []byte) error {
			item, wanted, err := read(data)
			if err != nil || !wanted {
				return err
			}
			if len(all) == maxListed {
				return fmt.Errorf("cannot take more than %d of a list", maxListed)
			}
			all = append(all, item)
			return nil
		})
		if !errors.Is(err, ErrInterrupted) {
			return all, err
		}
	}
	return nil, ErrInterrupted
}

func (c *Conn) dump(m *Message, read func(data []byte) error) error {
	sequence, err := c.send(unix.NLM_F_DUMP, m)
	if err != nil {
		return err
	}
	interrupted := false
	var unread error
	err = c.answered(func(a answer) (bool, error) {
		if a.sequence != sequence {
			return true, nil
		}
		interrupted = interrupted || a.flags&unix.NLM_F_DUMP_INTR != 0
		switch {
		case a.kind == unix.NLMSG_DONE || a.kind == unix.NLMSG_ERROR:
			return false, a.outcome()
		case unread == nil:
			// The rest has to be read all the same: the kernel writes one
			// list at a time for a socket.
			unread = read(a.data)
		}
		return true, nil
	})
	if interrupted || errors.Is(err, unix.EINTR) {
		return ErrInterrupted
	}
	return cmp.Or(err, unread)
}

// Send sends the messages at once and returns the number of the first; those
// of the others follow. It is for what is answered in a way of its own, which
// [Conn.Outcomes] reads.
func (c *Conn) Send(messages ...*Message) (first uint32, err error) { return c.send(0, messages...) }

func (c *Conn) send(flags uint16, messages ...*Message) (first uint32, err error) {
	var b []byte
	first = c.sequence + 1
	for _, m := range messages {
		c.sequence++
		if b, err = m.appendTo(b, flags, c.sequence); err != nil {
			return 0, err
		}
	}
	if len(b) > maxSent {
		return 0, fmt.Errorf("cannot send %d bytes at once: %w", len(b), unix.EMSGSIZE)
	}
	err = c.sendBytes(b)
	if errors.Is(err, unix.EMSGSIZE) {
		// The kernel takes as much as the socket's buffer has room for.
		if err = c.makeRoom(len(b)); err == nil {
			err = c.sendBytes(b)
		}
	}
	if err != nil {
		return 0, fmt.Errorf("cannot send to the kernel: %w", err)
	}
	return first, nil
}

func (c *Conn) sendBytes(b []byte) (err error) {
	kernel := &unix.SockaddrNetlink{Family: unix.AF_NETLINK}
	failed := c.raw.Write(func(fd uintptr) bool {
		for err = unix.EINTR; err == unix.EINTR; {
			err = unix.Sendto(int(fd), b, 0, kernel)
		}
		return err != unix.EAGAIN
	})
	return errors.Join(failed, err)
}

func (c *Conn) makeRoom(size int) (err error) {
	failed := c.raw.Control(func(fd uintptr) {
		// Whoever may not go beyond what the distribution allows goes there.
		if err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, size); err != nil {
			err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_SNDBUF, size)
		}
	})
	return errors.Join(failed, err)
}

// Outcomes calls f with what became of messages that were sent, each with its
// number, until f returns false or an error: nil is success.
func (c *Conn) Outcomes(f func(sequence uint32, outcome error) (bool, error)) error {
	return c.answered(func(a answer) (bool, error) {
		if a.kind != unix.NLMSG_ERROR {
			return true, nil
		}
		return f(a.sequence, a.outcome())
	})
}

// answered reads answers until f returns false or an error.
func (c *Conn) answered(f func(answer) (bool, error)) error {
	if err := c.file.SetReadDeadline(time.Now().Add(patience)); err != nil {
		return fmt.Errorf("cannot wait for the kernel: %w", orClosed(err))
	}
	for more := true; more; {
		b, err := c.receive()
		if err != nil {
			return fmt.Errorf("cannot hear from the kernel: %w", err)
		}
		if more, err = answers(b, f); err != nil {
			return err
		}
	}
	return nil
}

// Receive waits for what the groups are told, and calls f with the type and
// the data of each message. It fails with unix.ENOBUFS where there was more
// than could be kept, and with os.ErrClosed after Close.
func (c *Conn) Receive(f func(kind uint16, data []byte)) error {
	if err := c.file.SetReadDeadline(time.Time{}); err != nil {
		return fmt.Errorf("cannot wait for the kernel: %w", orClosed(err))
	}
	b, err := c.receive()
	if err != nil {
		return fmt.Errorf("cannot hear from the kernel: %w", err)
	}
	_, err = answers(b, func(a answer) (bool, error) {
		f(a.kind, a.data)
		return true, nil
	})
	return err
}

// receive returns what the kernel wrote at once. It is good until the next call.
func (c *Conn) receive() ([]byte, error) {
	for {
		size, _, err := c.read(nil, unix.MSG_PEEK|unix.MSG_TRUNC)
		if err != nil {
			return nil, err
		}
		if size > maxDatagram {
			return nil, fmt.Errorf("%d bytes at once are too many", size)
		}
		if size > len(c.buffer) {
			c.buffer = make([]byte, max(size, 8<<10))
		}
		n, from, err := c.read(c.buffer, 0)
		if err != nil {
			return nil, err
		}
		if sender, ok := from.(*syscall.SockaddrNetlink); ok && sender.Pid == 0 {
			return c.buffer[:n], nil
		}
	}
}

// read waits until there is something. It uses package syscall because package
// net does: the same of package unix would be linked for this alone.
func (c *Conn) read(b []byte, flags int) (n int, from syscall.Sockaddr, err error) {
	failed := c.raw.Read(func(fd uintptr) bool {
		for err = unix.EINTR; err == unix.EINTR; {
			n, from, err = syscall.Recvfrom(int(fd), b, flags)
		}
		return err != unix.EAGAIN
	})
	if failed != nil {
		return 0, nil, orClosed(failed)
	}
	return n, from, err
}

// orClosed gives the end of a file its public name, which package os keeps to
// itself here.
func orClosed(err error) error {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return err
	}
	return os.ErrClosed
}
