package log

import (
	"errors"
	"io/fs"
	"os"
	"syscall"
)

// chain has a place up to which a log was read: in one of its files, each of which is
// whole once the next exists.
type chain struct {
	path   string
	block  []byte
	file   *os.File
	offset int64
	whole  bool // what was read ends with a line
}

// maxOpens is how often a file is looked for that is renamed meanwhile.
const maxOpens = 10

func openChain(path string, tail int) (*chain, error) {
	current, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	c := &chain{path: path, file: current, block: make([]byte, blockSize), whole: true}
	if err := c.seekTail(tail); err != nil {
		c.close()
		return nil, err
	}
	return c, nil
}

func (c *chain) close() { c.file.Close() }

// seekTail goes back from the current file for as long as lines are missing.
func (c *chain) seekTail(tail int) error {
	for missing, newest := tail, true; ; newest = false {
		size, err := sizeOf(c.file)
		if err != nil {
			return err
		}
		if tail < 0 {
			c.offset = size
			return nil
		}
		if tail > 0 {
			if c.offset, missing, err = lastLines(c.file, size, missing, newest); err != nil || c.offset > 0 {
				return err
			}
		}
		before, err := c.neighbour(1)
		if before == nil || err != nil {
			return err
		}
		c.file.Close()
		c.file = before
	}
}

// neighbour opens the file after (-1) or before (1) the one that is read; nil
// where there is none.
func (c *chain) neighbour(step int) (*os.File, error) {
	for range maxOpens {
		at, err := c.number()
		if err != nil {
			return nil, err
		}
		missing := 0
		for n := at + step; n >= 0 && missing < 2; n += step { // a killed rotation leaves one gap
			next, err := os.Open(numbered(c.path, n))
			if errors.Is(err, fs.ErrNotExist) {
				missing++
				continue
			}
			if err != nil {
				return nil, err
			}
			if again, err := c.number(); err != nil || again == at {
				return next, err
			}
			next.Close()
			break
		}
		if again, err := c.number(); err != nil || again == at {
			return nil, err
		}
	}
	return nil, nil
}

// number is how many rotations ago the file that is read was the current one. One
// that was dropped comes before all that are left.
func (c *chain) number() (int, error) {
	read, err := c.file.Stat()
	if err != nil {
		return 0, err
	}
	last, missing := -1, 0
	for n := 0; n <= maxFiles && missing < 2; n++ {
		info, err := os.Stat(numbered(c.path, n))
		if errors.Is(err, fs.ErrNotExist) {
			missing++
			continue
		}
		if err != nil {
			return 0, err
		}
		if os.SameFile(info, read) {
			return n, nil
		}
		last, missing = n, 0
	}
	return last + 1, nil
}

// isCurrent tells whether the file that is read is still written to, as far as
// its name says.
func (c *chain) isCurrent() (bool, error) {
	named, err := os.Stat(c.path)
	if errors.Is(err, fs.ErrNotExist) {
		return true, nil // between two files
	}
	if err != nil {
		return false, err
	}
	read, err := c.file.Stat()
	return err == nil && os.SameFile(named, read), err
}

func (c *chain) next() ([]byte, error) {
	for {
		// Whoever no longer has the name when there is nothing more to be read
		// gets nothing more.
		current, err := c.isCurrent()
		if err != nil {
			return nil, err
		}
		n, err := readAt(c.file, c.block, c.offset)
		if n > 0 || err != nil {
			c.offset += int64(n)
			if n > 0 {
				c.whole = c.block[n-1] == '\n'
			}
			return c.block[:n], err
		}
		if current {
			return nil, nil
		}
		following, err := c.neighbour(-1)
		if following == nil || err != nil {
			return nil, err
		}
		c.file.Close()
		c.file, c.offset = following, 0
		if !c.whole { // a killed shim was in the midst of a line
			c.whole = true
			return []byte{'\n'}, nil
		}
	}
}

// removed looks whether the file has no name left, and no other of the log has
// one: between two files there is the one before.
func (c *chain) removed() bool {
	for n := range 3 { // a killed rotation leaves one gap
		if _, err := os.Stat(numbered(c.path, n)); err == nil {
			return false
		}
	}
	info, err := c.file.Stat()
	return err != nil || info.Sys().(*syscall.Stat_t).Nlink == 0
}
