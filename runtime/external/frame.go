package external

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

const (
	// frameHeader is what stands before each message: whether it is compressed, and its length (gRPC over HTTP2,
	// Length-Prefixed-Message).
	frameHeader = 5

	// maxMessage is how many bytes a message may have, as in containerd's own client.
	maxMessage = 16 << 20

	// firstBytes is what is taken for a message before any of it has come.
	firstBytes = 64 << 10
)

// errFrame says that what came is not gRPC as containerd speaks it.
var errFrame = errors.New("containerd does not keep to the protocol")

// frame is a message as it is sent.
func frame(m message) ([]byte, error) {
	framed, err := encode(make([]byte, frameHeader), m)
	if err != nil {
		return nil, fmt.Errorf("cannot write message: %w", err)
	}
	size := len(framed) - frameHeader
	if size > maxMessage {
		return nil, fmt.Errorf("a message of %d bytes is too long for containerd", size)
	}
	binary.BigEndian.PutUint32(framed[1:], uint32(size))
	return framed, nil
}

// readFrame is the next message. io.EOF says that none begins any more.
func readFrame(r io.Reader) ([]byte, error) {
	var header [frameHeader]byte
	if _, err := io.ReadFull(r, header[:]); err != nil {
		return nil, err
	}
	size := binary.BigEndian.Uint32(header[1:])
	if header[0] != 0 {
		return nil, fmt.Errorf("%w: a message is compressed", errFrame)
	}
	if size > maxMessage {
		return nil, fmt.Errorf("%w: a message has %d bytes, the most is %d", errFrame, size, maxMessage)
	}
	if size <= firstBytes {
		message := make([]byte, size)
		_, err := io.ReadFull(r, message)
		return message, whole(err)
	}
	// No more memory than has really come, or twice that.
	message, err := io.ReadAll(io.LimitReader(r, int64(size)))
	if err == nil && len(message) < int(size) {
		err = io.ErrUnexpectedEOF
	}
	return message, err
}

// whole makes the end of what comes an error within a message.
func whole(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
