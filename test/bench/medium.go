package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// medium is where a device keeps its state: a file system of its own in an
// image file, so that the block layer counts what really gets there, with the
// journal and without what others write. Where that cannot be had it is a plain
// directory, and only the kernel's account of each process is left.
type medium struct {
	dir      string
	counters string // of the block device; empty: a plain directory
}

const (
	imageBytes  = 512 << 20 // sparse
	sectorBytes = 512       // of the counters, whatever the device has
)

// newMedium makes a medium below dir.
func newMedium(ctx context.Context, dir string) (*medium, error) {
	m := &medium{dir: filepath.Join(dir, "medium")}
	if err := os.Mkdir(m.dir, 0o755); err != nil {
		return nil, err
	}
	if err := m.mount(ctx, filepath.Join(dir, "image")); err != nil {
		say("no file system of its own, bytes on the device are not counted: %v", err)
	}
	return m, nil
}

func (m *medium) mount(ctx context.Context, image string) error {
	if err := os.WriteFile(image, nil, 0o600); err != nil {
		return err
	}
	if err := os.Truncate(image, imageBytes); err != nil {
		return err
	}
	for _, command := range [][]string{
		{"mkfs.ext4", "-q", "-b", "4096", "-E", "lazy_itable_init=0,lazy_journal_init=0", image}, // lazily is later, in the background
		{"mount", "-o", "loop", image, m.dir},
	} {
		if out, err := exec.CommandContext(ctx, command[0], command[1:]...).CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w: %s", command[0], err, out)
		}
	}
	var s unix.Stat_t
	if err := unix.Stat(m.dir, &s); err != nil {
		return err
	}
	m.counters = fmt.Sprintf("/sys/dev/block/%d:%d/stat", unix.Major(uint64(s.Dev)), unix.Minor(uint64(s.Dev)))
	_, err := m.written()
	return err
}

// flush brings to the device whatever is still on its way.
func (m *medium) flush() error {
	dir, err := os.Open(m.dir)
	if err != nil {
		return err
	}
	return errors.Join(unix.Syncfs(int(dir.Fd())), dir.Close())
}

// written is how many bytes the device has been given, or 0 when that is not
// known.
func (m *medium) written() (int64, error) {
	if m.counters == "" {
		return 0, nil
	}
	text, err := os.ReadFile(m.counters)
	if err != nil {
		return 0, err
	}
	fields := strings.Fields(string(text))
	if len(fields) < 7 {
		return 0, fmt.Errorf("%s has no count of written sectors", m.counters)
	}
	n, err := strconv.ParseInt(fields[6], 10, 64)
	return n * sectorBytes, err
}

// close takes the file system away, and the loop device with it.
func (m *medium) close() error {
	if m.counters == "" {
		return nil
	}
	if err := unix.Unmount(m.dir, 0); err != nil {
		return fmt.Errorf("cannot unmount %s: %w", m.dir, err)
	}
	return nil
}
