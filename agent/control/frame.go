package control

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"
)

// ExecProtocol is the upgraded protocol of a connection that runs a command: frames in both
// directions. A frame is its kind (one byte), the length of its payload (four bytes, big-endian)
// and the payload.
const ExecProtocol = "margolite-exec/1"

const (
	maxFrame    = 32 << 10 // bytes of a payload
	inputWindow = 64 << 10 // bytes of input that may be sent before they are credited
	frameHeader = 5
)

type frameKind byte

// The kinds of frames. Readers skip unknown ones.
const (
	frameStdin  frameKind = 0 // to the command; empty: end of input
	frameStdout frameKind = 1
	frameStderr frameKind = 2
	frameResize frameKind = 3 // to the command: columns and rows of the terminal, two bytes each
	frameExit   frameKind = 4 // the last one: the exit code in four bytes
	frameError  frameKind = 5 // the last one: why the command could not be run, as text
	frameCredit frameKind = 6 // from the command: consumed bytes of input, four bytes
)

var errFrame = errors.New("malformed frame")

// readFrame reads one frame into buf, which holds the largest.
func readFrame(r io.Reader, buf []byte) (frameKind, []byte, error) {
	var header [frameHeader]byte
	if _, err := io.ReadFull(r, header[:]); err != nil {
		return 0, nil, err
	}
	kind, size := frameKind(header[0]), binary.BigEndian.Uint32(header[1:])
	if size > maxFrame {
		return 0, nil, fmt.Errorf("%w: %d bytes; the limit is %d", errFrame, size, maxFrame)
	}
	payload := buf[:size]
	if _, err := io.ReadFull(r, payload); err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return 0, nil, err
	}
	switch kind {
	case frameResize, frameExit, frameCredit:
		if len(payload) != 4 {
			return 0, nil, fmt.Errorf("%w: one of kind %d has %d bytes", errFrame, kind, len(payload))
		}
	}
	return kind, payload, nil
}

// frameWriter writes whole frames; several goroutines may share it.
type frameWriter struct {
	mu  sync.Mutex
	w   io.Writer
	buf [frameHeader + maxFrame]byte
}

func (f *frameWriter) write(kind frameKind, payload []byte) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.buf[0] = byte(kind)
	binary.BigEndian.PutUint32(f.buf[1:], uint32(len(payload)))
	n := copy(f.buf[frameHeader:], payload)
	if n < len(payload) {
		return fmt.Errorf("%w: %d bytes", errFrame, len(payload))
	}
	_, err := f.w.Write(f.buf[:frameHeader+n])
	return err
}

func (f *frameWriter) number(kind frameKind, n uint32) error {
	return f.write(kind, binary.BigEndian.AppendUint32(nil, n))
}

func (f *frameWriter) stream(kind frameKind) io.Writer { return frameStream{f, kind} }

type frameStream struct {
	f    *frameWriter
	kind frameKind
}

func (s frameStream) Write(p []byte) (int, error) {
	written := 0
	for written < len(p) {
		n := min(len(p)-written, maxFrame)
		if err := s.f.write(s.kind, p[written:written+n]); err != nil {
			return written, err
		}
		written += n
	}
	return written, nil
}

func encodeSize(s Size) []byte {
	return binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(nil, s.Columns), s.Rows)
}

func decodeSize(payload []byte) Size {
	return Size{binary.BigEndian.Uint16(payload), binary.BigEndian.Uint16(payload[2:])}
}
