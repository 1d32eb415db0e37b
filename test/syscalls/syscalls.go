// Package syscalls counts the system calls of a process with all its threads
// and what it starts: those that bring something to a medium, above all.
//
// It counts as the kernel does, by the tracepoints at their entry, and neither
// stops nor slows down who makes them. That needs root, and a kernel that has
// tracepoints of system calls; where either is missing there is an error, and a
// test does without.
package syscalls

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Syncs are the calls that wait for a medium.
func Syncs() []string { return []string{"fsync", "fdatasync", "syncfs", "sync", "sync_file_range"} }

// Counter counts some system calls from its making on.
type Counter struct {
	names  []string
	events [][]int // descriptors, by name
}

// OfProcess counts the calls that all threads of a process make, those that it
// starts later, and the processes that these start.
func OfProcess(pid int, names ...string) (*Counter, error) {
	c := &Counter{names: names, events: make([][]int, len(names))}
	// A thread that is started meanwhile is found by the next look, or counted
	// with the one that started it.
	known := map[int]bool{}
	for {
		threads, err := threadsOf(pid)
		if err != nil {
			return nil, errors.Join(err, c.Close())
		}
		more := false
		for _, thread := range threads {
			if known[thread] {
				continue
			}
			known[thread], more = true, true
			if err := c.follow(thread); err != nil && !errors.Is(err, unix.ESRCH) {
				return nil, errors.Join(err, c.Close())
			}
		}
		if !more {
			return c, nil
		}
	}
}

// OfThread counts the calls of the calling thread, which has to be locked to its
// goroutine, and of no other.
func OfThread(names ...string) (*Counter, error) {
	c := &Counter{names: names, events: make([][]int, len(names))}
	if err := c.count(0, 0); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// Count gives the counts up to now, in the order of the names.
func (c *Counter) Count() ([]int64, error) {
	counts := make([]int64, len(c.events))
	for i, events := range c.events {
		for _, event := range events {
			var buffer [8]byte
			if n, err := unix.Read(event, buffer[:]); err != nil || n != len(buffer) {
				return nil, fmt.Errorf("cannot read the count of %s: %w", c.names[i], err)
			}
			counts[i] += int64(binary.NativeEndian.Uint64(buffer[:]))
		}
	}
	return counts, nil
}

// Close ends counting.
func (c *Counter) Close() (err error) {
	for _, events := range c.events {
		for _, event := range events {
			err = errors.Join(err, unix.Close(event))
		}
	}
	c.events = nil
	return err
}

func (c *Counter) follow(thread int) error { return c.count(thread, unix.PerfBitInherit) }

// count opens an event for each name; flags are those of the kernel.
func (c *Counter) count(thread int, flags uint64) error {
	for i, name := range c.names {
		id, err := tracepoint(name)
		if err != nil {
			return err
		}
		event, err := unix.PerfEventOpen(&unix.PerfEventAttr{
			Type: unix.PERF_TYPE_TRACEPOINT, Size: unix.PERF_ATTR_SIZE_VER0, Config: id, Bits: flags,
		}, thread, -1, -1, unix.PERF_FLAG_FD_CLOEXEC)
		if err != nil {
			return fmt.Errorf("cannot count calls of %s: %w", name, err)
		}
		c.events[i] = append(c.events[i], event)
	}
	return nil
}

// tracepoint is the number of the tracepoint at the entry of a system call.
func tracepoint(name string) (id uint64, err error) {
	const usual = "/sys/kernel/tracing"
	file := filepath.Join("events", "syscalls", "sys_enter_"+name, "id")
	text, err := os.ReadFile(filepath.Join(usual, file))
	if errors.Is(err, fs.ErrNotExist) {
		text, err = readMounted(file)
	}
	if err != nil {
		return 0, fmt.Errorf("cannot find the tracepoint of %s: %w", name, err)
	}
	return strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64)
}

// readMounted reads a file of a tracefs that is mounted for that alone.
func readMounted(file string) (text []byte, err error) {
	dir, err := os.MkdirTemp("", "tracefs-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.Remove(dir)) }()
	if err := unix.Mount("tracefs", dir, "tracefs", unix.MS_NODEV|unix.MS_NOEXEC|unix.MS_NOSUID, ""); err != nil {
		return nil, fmt.Errorf("cannot mount tracefs: %w", err)
	}
	defer func() { err = errors.Join(err, unix.Unmount(dir, unix.MNT_DETACH)) }()
	return os.ReadFile(filepath.Join(dir, file))
}

func threadsOf(pid int) ([]int, error) {
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	if err != nil {
		return nil, err
	}
	var threads []int
	for _, e := range entries {
		if thread, err := strconv.Atoi(e.Name()); err == nil {
			threads = append(threads, thread)
		}
	}
	return threads, nil
}
