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

// read returns the start of a file, and "" for one that does not exist. Reading a sysfs file
// without a device behind it fails with a driver error, which counts as not existing.
func (m *machine) read(elements ...string) string {
	file, err := os.OpenFile(m.path(elements...), os.O_RDONLY|unix.O_NONBLOCK, 0) // a pipe must not block
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

// line returns a file's short text in printable form, up to the NUL that ends device tree texts.
func (m *machine) line(elements ...string) string {
	text, _, _ := strings.Cut(m.read(elements...), "\x00")
	return shown(text)
}

func (m *machine) texts(elements ...string) []string {
	var list []string
	for text := range strings.SplitSeq(m.read(elements...), "\x00") {
		if text = shown(text); text != "" && len(list) < maxTexts {
			list = append(list, text)
		}
	}
	return list
}

// shown makes a text one printable line; "" if it is too long for a name.
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

// absent reports that a file or directory does not exist, or vanished with its device.
func absent(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ENODEV) || errors.Is(err, unix.ENXIO)
}

// list returns the sorted names in a directory; none if it does not exist.
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

// below returns a resolved path relative to the root; "" if it leads outside.
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

func (m *machine) exists(elements ...string) bool {
	_, err := os.Stat(m.path(elements...))
	return err == nil
}

// link returns the last element of a link's target, as sysfs names drivers; "" if it is no link.
func (m *machine) link(elements ...string) string {
	target, err := os.Readlink(m.path(elements...))
	if err != nil {
		return ""
	}
	return filepath.Base(target)
}

// property returns the value of a line "name separator value".
func property(text, name, separator string) string {
	for line := range strings.Lines(text) {
		key, value, ok := strings.Cut(line, separator)
		if ok && strings.TrimSpace(key) == name {
			return strings.TrimSpace(value)
		}
	}
	return ""
}
