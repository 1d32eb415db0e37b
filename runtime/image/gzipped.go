package image

import (
	"bufio"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
)

// maxUnzipped is how many bytes a compressed archive may have at most once it is decompressed.
const maxUnzipped = 64 << 30

// archiveFile is what an archive is read from, without compression.
type archiveFile interface {
	io.ReaderAt
	io.Closer
	size() (int64, error)
}

// openArchive opens a tar file, whatever its name says about compression.
func openArchive(file string) (archiveFile, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	var magic [2]byte
	if _, err := f.ReadAt(magic[:], 0); err == nil && magic == [...]byte{0x1f, 0x8b} {
		return &gzipped{File: f}, nil
	}
	return plainFile{f}, nil
}

type plainFile struct{ *os.File }

func (f plainFile) size() (int64, error) {
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
}

// gzipped reads at any offset of a compressed file, for which it decompresses all that lies before. It is for one
// goroutine.
type gzipped struct {
	*os.File
	r  *gzip.Reader
	at int64 // where r is
}

// size decompresses all of it, which also shows that nothing is missing.
func (z *gzipped) size() (int64, error) {
	if err := z.skip(0); err != nil {
		return 0, err
	}
	n, err := io.Copy(io.Discard, io.LimitReader(z.r, maxUnzipped+1))
	if z.at += n; n > maxUnzipped {
		err = fmt.Errorf("it has more than %d bytes", int64(maxUnzipped))
	}
	return n, err
}

func (z *gzipped) skip(to int64) error {
	if z.r == nil || to < z.at {
		if _, err := z.Seek(0, io.SeekStart); err != nil {
			return err
		}
		r, err := gzip.NewReader(bufio.NewReader(z.File))
		if err != nil {
			return err
		}
		z.r, z.at = r, 0
	}
	n, err := io.CopyN(io.Discard, z.r, to-z.at)
	z.at += n
	return err
}

func (z *gzipped) ReadAt(p []byte, offset int64) (int, error) {
	if err := z.skip(offset); err != nil {
		return 0, err
	}
	n, err := io.ReadFull(z.r, p)
	if z.at += int64(n); errors.Is(err, io.ErrUnexpectedEOF) && n > 0 {
		err = io.EOF
	}
	return n, err
}
