package control

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
)

// Exec runs a command in a container and returns its exit code. A blocked read of Stdin may outlive
// it.
func (c *Client) Exec(ctx context.Context, r ExecRequest, s ExecStreams) (int, error) {
	path := within(r.Project) + "/exec"
	if r.Detach {
		return 0, c.call(ctx, http.MethodPost, path, r, nil)
	}
	res, err := c.do(ctx, http.MethodPost, path, r, ExecProtocol)
	if err != nil {
		return 0, err
	}
	defer res.Body.Close()
	conn, ok := res.Body.(io.ReadWriteCloser)
	if !ok || res.StatusCode != http.StatusSwitchingProtocols {
		return 0, failureOf(res)
	}
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	code, err := attach(conn, s)
	if ctx.Err() != nil {
		err = ctx.Err()
	}
	return code, err
}

func attach(conn io.ReadWriter, s ExecStreams) (int, error) {
	out := &frameWriter{w: conn}
	done := make(chan struct{})
	room, more := new(atomic.Int64), make(chan struct{}, 1) // for input; signalled when it grows
	room.Store(inputWindow)
	var resizing sync.WaitGroup
	defer resizing.Wait()
	defer close(done)
	resizing.Go(func() { // a nil channel never delivers
		for {
			select {
			case size, ok := <-s.Resize:
				if !ok || out.write(frameResize, encodeSize(size)) != nil {
					return
				}
			case <-done:
				return
			}
		}
	})
	go send(s.Stdin, out, room, more, done) // goes on until the next read of standard input ends

	buf := make([]byte, maxFrame)
	for {
		kind, payload, err := readFrame(conn, buf)
		if err != nil {
			return 0, fmt.Errorf("lost the connection to the command: %w", err)
		}
		switch kind {
		case frameStdout:
			err = writeTo(s.Stdout, payload)
		case frameStderr:
			err = writeTo(s.Stderr, payload)
		case frameCredit:
			room.Add(int64(binary.BigEndian.Uint32(payload)))
			select {
			case more <- struct{}{}:
			default: // the sender was woken already
			}
		case frameExit:
			return int(int32(binary.BigEndian.Uint32(payload))), nil
		case frameError:
			return 0, errors.New(string(payload))
		}
		if err != nil {
			return 0, fmt.Errorf("cannot write the output of the command: %w", err)
		}
	}
}

func writeTo(w io.Writer, p []byte) error {
	if w == nil {
		return nil
	}
	_, err := w.Write(p)
	return err
}

// send sends the input as frames, no more than the other side has room for.
func send(in io.Reader, out *frameWriter, room *atomic.Int64, more, done <-chan struct{}) {
	buf := make([]byte, maxFrame)
	for in != nil {
		most := min(room.Load(), maxFrame)
		if most == 0 {
			select {
			case <-more:
				continue
			case <-done:
				return
			}
		}
		n, err := in.Read(buf[:most])
		if n > 0 {
			room.Add(-int64(n))
			if out.write(frameStdin, buf[:n]) != nil {
				return
			}
		}
		if err != nil {
			break
		}
	}
	_ = out.write(frameStdin, nil)
}
