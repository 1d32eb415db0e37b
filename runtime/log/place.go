package log

import (
	"errors"
	"io"
)

const blockSize = 8 << 10 // bytes read at a time

// lastLines returns where the last n lines before size begin, and how many of them the file
// lacks. A last line without an end counts, parts of long lines do not. from is 0 if the
// first line may begin in the previous file. endless: a part at the end is a line, because
// no file follows.
func lastLines(f io.ReaderAt, size int64, n int, endless bool) (from int64, missing int, err error) {
	block := make([]byte, blockSize)
	after := size // end of the part to search
	for end := size; end > 0; {
		start := max(0, end-blockSize)
		part := block[:end-start]
		if _, err := f.ReadAt(part, start); err != nil && !errors.Is(err, io.EOF) {
			return 0, 0, err
		}
		for i := len(part) - 1; i >= -1; i-- {
			at := start + int64(i) + 1 // start of a line
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
