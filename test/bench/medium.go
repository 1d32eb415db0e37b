package main

import (
	"context"
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
	own      wear   // what measuring costs: flushes, which count as writes of nothing, too
}

const (
	imageBytes  = 512 << 20 // sparse
	sectorBytes = 512       // of the counters, whatever the device has
)

// newMedium makes a medium below dir.
func newMedium(ctx context.Context, dir string) (*medium, error) {
	m := &medium{dir: filepath.Join(dir, "medium")}
	if err := os.MkdirAll(m.dir, 0o755); err != nil {
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
	defer dir.Close()
	if err := unix.Syncfs(int(dir.Fd())); err != nil {
		return err
	}
	before, err := m.written()
	if err != nil {
		return err
	}
	// With nothing on its way this is what it costs by itself.
	if err := unix.Syncfs(int(dir.Fd())); err != nil {
		return err
	}
	after, err := m.written()
	m.own.Flushes += 2 * (after.Flushes - before.Flushes)
	m.own.Writes += 2 * (after.Writes - before.Writes)
	return err
}

// written is what the device has been given; nothing where that is not known.
func (m *medium) written() (w wear, err error) {
	if m.counters == "" {
		return w, nil
	}
	text, err := os.ReadFile(m.counters)
	if err != nil {
		return w, err
	}
	fields := strings.Fields(string(text))
	if len(fields) < 16 {
		return w, fmt.Errorf("%s has no counts of written sectors and flushes", m.counters)
	}
	for _, f := range []struct {
		number int
		to     *int64
	}{{4, &w.Writes}, {6, &w.Device}, {15, &w.Flushes}} {
		if *f.to, err = strconv.ParseInt(fields[f.number], 10, 64); err != nil {
			return w, err
		}
	}
	w.Device *= sectorBytes
	w.Flushes -= m.own.Flushes
	w.Writes -= m.own.Writes
	return w, nil
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
