package compose

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"github.com/compose-spec/compose-go/v2/types"
	"golang.org/x/sys/unix"
)

// vetted lets compose-go open copies of the files that were checked before, and no others: a
// workload may have changed the files since. It acts as a remote resource loader that claims
// every file, by absolute path, and refuses unchecked ones.
type vetted map[string]*os.File

func (v vetted) Accept(string) bool { return true }

func (v vetted) Load(_ context.Context, path string) (string, error) {
	if f := v[path]; f != nil {
		return "/proc/self/fd/" + strconv.Itoa(int(f.Fd())), nil
	}
	return "", &fs.PathError{Op: "load", Path: path, Err: errors.New("file was not checked")}
}

// Dir is where the relative paths in a file start.
func (v vetted) Dir(path string) string { return filepath.Dir(path) }

func (v vetted) capture(abs string, content []byte) error {
	fd, err := unix.MemfdCreate("extended", unix.MFD_CLOEXEC)
	if err == nil {
		v[abs] = os.NewFile(uintptr(fd), abs)
		_, err = v[abs].Write(content)
	}
	if err != nil {
		return fmt.Errorf("cannot copy %s: %w", abs, err)
	}
	return nil
}

func (v vetted) close() {
	for _, f := range v {
		_ = f.Close() // it was memory
	}
}

// readExtended adds the files that services of the last file extend to guard, for compose-go to open.
func (l *loading) readExtended(env types.Mapping, guard vetted) error {
	for _, abs := range l.extended {
		if _, read := guard[abs]; read {
			continue
		}
		guard[abs] = nil // being read
		_, text, err := l.file(abs, filepath.Dir(abs), env)
		if err == nil {
			err = l.readExtended(env, guard)
		}
		if err == nil {
			err = guard.capture(abs, text)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
