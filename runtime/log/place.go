package log

import (
	"errors"
	"io"
)

const blockSize = 8 << 10 // bytes read at a time

// lastLines is where the last n lines before size begin, and how many of them the
// file does not have. A last line without an end is one. Parts of long lines do not
// count, and from is 0 where the first line may have begun in the file before; endless
// says that a part at the end is a line: no file follows.
func lastLines(f io.ReaderAt, size int64, n int, endless bool) (from int64, missing int, err error) {
	block := make([]byte, blockSize)
	after := size // the end of what is looked at
	for end := size; end > 0; {
		start := max(0, end-blockSize)
		part := block[:end-start]
		if _, err := f.ReadAt(part, start); err != nil && !errors.Is(err, io.EOF) {
			return 0, 0, err
		}
		for i := len(part) - 1; i >= -1; i-- {
			at := start + int64(i) + 1 // where a line of the file begins
			if at == size || i < 0 && at > 0 || i >= 0 && part[i] != '\n' {
				continue
			}
			goesOn := after < size || !endless
			if goesOn {
				if goesOn, err = partAt(f, at, after); err != nil {
					return 0, 0, err
				}
			}
			if !goesOn && n == 0 {
				return after, 0, nil
			}
			if !goesOn {
				n--
			}
			after = at
		}
		end = start
	}
	return 0, n, nil
}

// partAt says whether a part of a line lies between two places of a file.
func partAt(f io.ReaderAt, from, to int64) (bool, error) {
	if to-from < maxText || to-from > maxLine {
		return false, nil
	}
	line := make([]byte, to-from)
	if _, err := f.ReadAt(line, from); err != nil {
		return false, err
	}
	return isPart(parseEntry(line)), nil
}
