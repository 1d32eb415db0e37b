package capability

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unicode"

	"golang.org/x/sys/unix"
)

// machine reads the files of one machine and remembers what could not be read.
type machine struct {
	root string
	errs []error
}

const (
	maxFile    = 64 << 10 // bytes read of a file
	maxEntries = 512      // entries read of a directory
	maxTexts   = 32       // of a list in the device tree
)

func (m *machine) fail(format string, args ...any) {
	m.errs = append(m.errs, fmt.Errorf(format, args...))
}

func (m *machine) path(elements ...string) string {
	return filepath.Join(append([]string{m.root}, elements...)...)
}

// read gives the start of a file, and "" for one that does not exist. Some
// files of sysfs exist but have nothing behind them at the moment: reading them
// fails with an error of the driver, which is as good as not existing.
func (m *machine) read(elements ...string) string {
	file, err := os.OpenFile(m.path(elements...), os.O_RDONLY|unix.O_NONBLOCK, 0) // a pipe has nothing to tell, and must not hold us up
	if err != nil {
		if !absent(err) {
			m.fail("cannot read machine facts: %w", err)
		}
		return ""
	}
	defer func() { _ = file.Close() }() // only read
	if info, err := file.Stat(); err != nil || !info.Mode().IsRegular() {
		return ""
	}
	data, err := io.ReadAll(io.LimitReader(file, maxFile))
	if err != nil {
		return ""
	}
	return string(data)
}

// line is the content of a file that holds one short text, fit to be shown.
// Files of the device tree end with a NUL, or are lists that NUL separates.
func (m *machine) line(elements ...string) string {
	text, _, _ := strings.Cut(m.read(elements...), "\x00")
	return shown(text)
}

// texts are those of a list in the device tree.
func (m *machine) texts(elements ...string) []string {
	var list []string
	for text := range strings.SplitSeq(m.read(elements...), "\x00") {
		if text = shown(text); text != "" && len(list) < maxTexts {
			list = append(list, text)
		}
	}
	return list
}

// shown makes one line of a text, fit to be shown; what is too long for a name
// is none.
func shown(text string) string {
	text = strings.Map(func(c rune) rune {
		if !unicode.IsGraphic(c) {
			return ' '
		}
		return c
	}, strings.ToValidUTF8(text, ""))
	text = strings.Join(strings.Fields(text), " ")
	if len(text) > 256 {
		return ""
	}
	return text
}

// absent says that there is no such file or directory. What comes and goes with
// a device may be in the middle of either.
func absent(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ENODEV) || errors.Is(err, unix.ENXIO)
}

// list gives the names in a directory in their order, none if there is no such
// directory.
func (m *machine) list(elements ...string) []string {
	dir, err := os.OpenFile(m.path(elements...), os.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		if !absent(err) {
			m.fail("cannot list machine facts: %w", err)
		}
		return nil
	}
	defer func() { _ = dir.Close() }() // only read
	names, err := dir.Readdirnames(maxEntries)
	if err != nil && !errors.Is(err, io.EOF) {
		m.fail("cannot list machine facts: %w", err)
	}
	slices.Sort(names)
	return names
}

// below is a path that links led to, as it is below the root; "" if they led out.
func (m *machine) below(path string) string {
	root, err := filepath.EvalSymlinks(m.root)
	if err != nil {
		return ""
	}
	rel, err := filepath.Rel(root, path)
	if err != nil || !filepath.IsLocal(rel) {
		return ""
	}
	return rel
}

// exists reports whether there is such a file, following links.
func (m *machine) exists(elements ...string) bool {
	_, err := os.Stat(m.path(elements...))
	return err == nil
}

// link is the last element of what a link points to, as sysfs names drivers; "" for
// what is no link.
func (m *machine) link(elements ...string) string {
	target, err := os.Readlink(m.path(elements...))
	if err != nil {
		return ""
	}
	return filepath.Base(target)
}

// property is the value of a line "name separator value".
func property(text, name, separator string) string {
	for line := range strings.Lines(text) {
		key, value, ok := strings.Cut(line, separator)
		if ok && strings.TrimSpace(key) == name {
			return strings.TrimSpace(value)
		}
	}
	return ""
}
