package container

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	maxDescendants = 1024 // of one process that are looked for

	// maxCommandLine is more than the command lines of shims and runc have, in bytes. A
	// process can show any part of its memory as its own.
	maxCommandLine = 64 << 10
)

// descendants are the processes that a process started, and those these did. Where
// the kernel does not tell, there are none.
func descendants(pid int) (found []int) {
	for queue := []int{pid}; len(queue) > 0 && len(found) < maxDescendants; queue = queue[1:] {
		lists, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", queue[0])) // the pattern is valid
		for _, list := range lists {
			text, _ := os.ReadFile(list) // ended meanwhile
			for field := range strings.FieldsSeq(string(text)) {
				child, err := strconv.Atoi(field)
				if err == nil && child > 0 && len(found) < maxDescendants {
					found, queue = append(found, child), append(queue, child)
				}
			}
		}
	}
	return found
}

// killTree kills a process with all that it started, also what it is just about to
// start: all are stopped until nothing new comes from them. is tells whether the
// number is still that of the process.
func killTree(pid int, is func(pid int) bool) {
	root, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return // it has ended
	}
	defer unix.Close(root)
	if !is(pid) {
		return
	}
	send := func(fd int, signal unix.Signal) { _ = unix.PidfdSendSignal(fd, signal, nil, 0) } // it has ended otherwise
	send(root, unix.SIGSTOP)
	held := make(map[int]int) // by number: what holds it, so that no other process takes the number
	var stopped []int
	for fresh := true; fresh && len(held) < maxDescendants; {
		fresh = false
		for _, child := range descendants(pid) {
			if fd, known := held[child]; known { // found since it is held: it is this one
				send(fd, unix.SIGSTOP)
				stopped = append(stopped, fd)
			} else if fd, err := unix.PidfdOpen(child, 0); err == nil {
				defer unix.Close(fd)
				held[child], fresh = fd, true
			}
		}
	}
	for _, fd := range append(stopped, root) {
		send(fd, unix.SIGKILL)
	}
}

// parentOf is the parent of a process; 0: it has ended.
func parentOf(pid int) int {
	parent, _ := strconv.Atoi(statFields(pid, 4)[0])
	return parent
}

// statFields are fields of /proc/PID/stat by their numbers in proc(5), which follow the
// name of the process; "" if they are missing, or it has ended.
func statFields(pid int, numbers ...int) []string {
	stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return fieldsOf(stat, numbers...)
}

func fieldsOf(stat []byte, numbers ...int) []string {
	const first = 3 // behind the name, which may hold anything
	all := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	fields := make([]string, len(numbers))
	for i, number := range numbers {
		if number -= first; number < len(all) {
			fields[i] = all[number]
		}
	}
	return fields
}

// startTicks is when a process started, in ticks since boot; 0: it has ended.
func startTicks(pid int) uint64 {
	ticks, _ := strconv.ParseUint(statFields(pid, 22)[0], 10, 64)
	return ticks
}

// Started is when a process started, in ticks since boot; 0: it has ended, even if
// nobody has buried it yet.
func Started(pid int) uint64 {
	fields := statFields(pid, 3, 22)
	if fields[0] == "Z" || fields[0] == "X" {
		return 0
	}
	ticks, _ := strconv.ParseUint(fields[1], 10, 64)
	return ticks
}

// processorTime is what processes and those that they started have used of the
// processor, in ticks. One that uses it, or waits for a disk, is busy.
func processorTime(roots []int) (ticks uint64, busy bool) {
	for _, root := range roots {
		for _, pid := range append(descendants(root), root) {
			fields := statFields(pid, 3, 14, 15) // its state, and its time in user mode and in the kernel
			busy = busy || fields[0] == "R" || fields[0] == "D"
			for _, field := range fields[1:] {
				n, _ := strconv.ParseUint(field, 10, 64)
				ticks += n
			}
		}
	}
	return ticks, busy
}

// processesWith are those outside of containers whose command lines match. What a
// process in a container calls itself says nothing; one without a PID namespace of its
// own is trusted with all processes anyway.
func processesWith(matches func(line []byte) bool) (found []int) {
	lines, _ := filepath.Glob("/proc/[0-9]*/cmdline") // the pattern is valid
	for _, path := range lines {
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		if err == nil && matches(commandLine(pid)) && isOutside(pid) {
			found = append(found, pid)
		}
	}
	return found
}

// commandLine is the command line of a process, or the beginning of a longer one;
// none: it has ended.
func commandLine(pid int) []byte {
	f, err := os.Open(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil {
		return nil
	}
	defer f.Close()
	line, _ := io.ReadAll(io.LimitReader(f, maxCommandLine))
	return line
}

// argument is what follows a flag in a command line; "" if nothing does.
func argument(line []byte, flag string) string {
	_, rest, _ := bytes.Cut(line, []byte("\x00"+flag+"\x00"))
	value, _, _ := bytes.Cut(rest, []byte{0})
	return string(value)
}

// isOutside tells whether a process has the agent's PID namespace, as shims and runc do.
func isOutside(pid int) bool {
	own, err := os.Readlink("/proc/self/ns/pid")
	theirs, _ := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", pid))
	return err == nil && own == theirs
}
