package log

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"syscall"
)

// chain is a position in a log: in one of its files, each complete once the next exists.
type chain struct {
	path   string
	block  []byte
	file   *os.File
	offset int64
	whole  bool // what was read ends with a complete line
}

// openChain starts before the last tail lines; 0: before all; negative: at the end.
func openChain(path string, tail int) (*chain, error) {
	c := &chain{path: path, block: make([]byte, blockSize), whole: true}
	missing := tail
	err := eachFile(path, func(f *os.File, info fs.FileInfo) (more bool, err error) {
		newest := c.file == nil
		c.close()
		c.file = f
		switch {
		case tail < 0:
			c.offset = info.Size()
			return false, nil
		case tail > 0:
			c.offset, missing, err = lastLines(f, info.Size(), missing, newest)
		}
		return c.offset == 0, err
	})
	if err == nil && c.file == nil {
		err = fs.ErrNotExist
	}
	if err != nil {
		c.close()
		return nil, err
	}
	return c, nil
}

func (c *chain) close() {
	if c.file != nil {
		c.file.Close()
	}
}

// eachFile opens the files of a log, newest first, while visit wants more. visit closes them.
func eachFile(path string, visit func(f *os.File, info fs.FileInfo) (more bool, err error)) error {
	var newer fs.FileInfo
	missing := 0
	for n := 0; n <= maxFiles && missing < 2; n++ { // a killed rotation leaves one gap
		f, err := os.Open(numbered(path, n))
		if errors.Is(err, fs.ErrNotExist) {
			missing++
			continue
		}
		if err != nil {
			return err
		}
		missing = 0
		info, err := f.Stat()
		if err != nil {
			return errors.Join(err, f.Close())
		}
		if newer != nil && os.SameFile(newer, info) { // it was renamed meanwhile
			f.Close()
			continue
		}
		newer = info
		if more, err := visit(f, info); err != nil || !more {
			return err
		}
	}
	return nil
}

// following opens the next file, or the oldest if the present one was dropped; nil: none.
func (c *chain) following() (next *os.File, err error) {
	read, err := c.file.Stat()
	if err != nil {
		return nil, err
	}
	err = eachFile(c.path, func(f *os.File, info fs.FileInfo) (more bool, err error) {
		if os.SameFile(info, read) {
			return false, f.Close()
		}
		if next != nil {
			next.Close()
		}
		next = f
		return true, nil
	})
	return next, err
}

func (c *chain) next() ([]byte, error) {
	for {
		block, err := c.read()
		if len(block) > 0 || err != nil {
			return block, err
		}
		following, err := c.following()
		if following == nil || err != nil {
			return nil, err
		}
		// It may have grown before the next one was made.
		if block, err := c.read(); len(block) > 0 || err != nil {
			following.Close()
			return block, err
		}
		c.file.Close()
		c.file, c.offset = following, 0
		if !c.whole { // a killed shim left an incomplete line
			c.whole = true
			return []byte{'\n'}, nil
		}
	}
}

func (c *chain) read() ([]byte, error) {
	n, err := c.file.ReadAt(c.block, c.offset)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	if n > 0 {
		c.offset += int64(n)
		c.whole = c.block[n-1] == '\n'
	}
	return c.block[:n], err
}

// removed reports the end of a log. A rotation never leaves a log without files.
func (c *chain) removed() bool {
	for n := range 3 { // a killed rotation leaves one gap
		if _, err := os.Stat(numbered(c.path, n)); err == nil {
			return false
		}
	}
	info, err := c.file.Stat()
	return err != nil || info.Sys().(*syscall.Stat_t).Nlink == 0
}
