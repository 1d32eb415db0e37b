// Package boards unpacks recorded machines for tests: what their kernels show
// below /proc, /sys, and /etc, as far as somebody asks for it.
//
// A recording is a text file. Lines that begin with # are comments. A line in
// brackets names the directory that the lines below it are in; and these are
//
//	name: text          a file with the text and the end of its line
//	name: "text"        a file with just these bytes, quoted as in Go
//	name: hex 00ff...   the same in hex
//	name: |             a file with the indented lines below
//	name -> target      a link
//	name/               an empty directory
package boards

import (
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/margolite/margolite/test/expect"
)

// Unpack makes the file system of a recording and gives its root.
func Unpack(t testing.TB, recording string) string {
	t.Helper()
	data := expect.Value(os.ReadFile(recording))(t)
	u := unpacker{root: t.TempDir()}
	for i, line := range strings.Split(string(data), "\n") {
		if err := u.line(line); err != nil {
			t.Fatalf("%s:%d: %v", recording, i+1, err)
		}
	}
	if err := u.finish(); err != nil {
		t.Fatalf("%s: %v", recording, err)
	}
	return u.root
}

// unpacker takes the lines of a recording.
type unpacker struct {
	root, dir string
	name      string // of the file that indented lines are of
	text      strings.Builder
}

func (u *unpacker) line(line string) error {
	if text, isIndented := strings.CutPrefix(line, "\t"); isIndented {
		if u.name == "" {
			return fmt.Errorf("%q is of no file", line)
		}
		u.text.WriteString(text + "\n")
		return nil
	}
	if err := u.finish(); err != nil {
		return err
	}
	if line == "" || strings.HasPrefix(line, "#") {
		return nil
	}
	if dir, ok := strings.CutPrefix(line, "["); ok {
		u.dir = strings.TrimSuffix(dir, "]")
		return nil
	}
	if name, target, ok := strings.Cut(line, " -> "); ok {
		path, err := u.path(name)
		if err != nil {
			return err
		}
		return os.Symlink(target, path)
	}
	if name, value, ok := strings.Cut(line, ": "); ok {
		if value == "|" {
			u.name = name
			return nil
		}
		content, err := content(value)
		if err != nil {
			return err
		}
		return u.write(name, content)
	}
	if name, ok := strings.CutSuffix(line, "/"); ok {
		_, err := u.path(name + "/.")
		return err
	}
	return fmt.Errorf("%q says nothing", line)
}

// content is what a file holds whose value is written in one line.
func content(value string) (string, error) {
	if digits, ok := strings.CutPrefix(value, "hex "); ok {
		data, err := hex.DecodeString(digits)
		return string(data), err
	}
	if strings.HasPrefix(value, `"`) {
		return strconv.Unquote(value)
	}
	return value + "\n", nil
}

// finish writes the file that indented lines were of.
func (u *unpacker) finish() error {
	if u.name == "" {
		return nil
	}
	err := u.write(u.name, u.text.String())
	u.name = ""
	u.text.Reset()
	return err
}

// path is where a file is, whose directory it makes.
func (u *unpacker) path(name string) (string, error) {
	path := filepath.Join(u.root, u.dir) + "/" + name
	return path, os.MkdirAll(filepath.Dir(path), 0o755)
}

func (u *unpacker) write(name, content string) error {
	path, err := u.path(name)
	if err != nil {
		return err
	}
	return os.WriteFile(path, []byte(content), 0o644)
}
