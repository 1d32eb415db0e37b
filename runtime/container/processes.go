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
	maxDescendants = 1024 // of one process

	// maxCommandLine, in bytes, suffices for shims and runc. Processes can show any memory there.
	maxCommandLine = 64 << 10
)

// descendants is empty if the kernel does not tell.
func descendants(pid int) (found []int) {
	for queue := []int{pid}; len(queue) > 0 && len(found) < maxDescendants; queue = queue[1:] {
		lists, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", queue[0])) // the pattern is valid
		for _, list := range lists {
			text, _ := os.ReadFile(list) // ended in the meantime
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

// killTree kills a process and all its descendants, including those being started: it stops
// all of them until no new ones appear. is checks that the pid is still the right process.
func killTree(pid int, is func(pid int) bool) {
	root, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return // it has ended
	}
	defer unix.Close(root)
	if !is(pid) {
		return
	}
	send := func(fd int, signal unix.Signal) { _ = unix.PidfdSendSignal(fd, signal, nil, 0) } // fails if it has ended
	send(root, unix.SIGSTOP)
	held := make(map[int]int) // handles by pid, which keep pids from being reused
	var stopped []int
	for fresh := true; fresh && len(held) < maxDescendants; {
		fresh = false
		for _, child := range descendants(pid) {
			if fd, known := held[child]; known { // found while held: the same process
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

// parentOf returns the parent of a process; 0: it has ended.
func parentOf(pid int) int {
	parent, _ := strconv.Atoi(statFields(pid, 4)[0])
	return parent
}

// statFields returns fields of /proc/PID/stat after the name, see proc(5); "": missing.
func statFields(pid int, numbers ...int) []string {
	stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return fieldsOf(stat, numbers...)
}

func fieldsOf(stat []byte, numbers ...int) []string {
	const first = 3 // after the name, which may contain anything
	all := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	fields := make([]string, len(numbers))
	for i, number := range numbers {
		if number -= first; number < len(all) {
			fields[i] = all[number]
		}
	}
	return fields
}

// startTicks returns when a process started, in ticks since boot; 0: it has ended.
func startTicks(pid int) uint64 {
	ticks, _ := strconv.ParseUint(statFields(pid, 22)[0], 10, 64)
	return ticks
}

// Started is in ticks since boot; 0: the process has ended, even if it is still a zombie.
func Started(pid int) uint64 {
	fields := statFields(pid, 3, 22)
	if fields[0] == "Z" || fields[0] == "X" {
		return 0
	}
	ticks, _ := strconv.ParseUint(fields[1], 10, 64)
	return ticks
}

// processorTime includes descendants, in ticks. busy: one uses a processor or waits for a disk.
func processorTime(roots []int) (ticks uint64, busy bool) {
	for _, root := range roots {
		for _, pid := range append(descendants(root), root) {
			fields := statFields(pid, 3, 14, 15) // state, user and kernel time
			busy = busy || fields[0] == "R" || fields[0] == "D"
			for _, field := range fields[1:] {
				n, _ := strconv.ParseUint(field, 10, 64)
				ticks += n
			}
		}
	}
	return ticks, busy
}

// processesWith returns matching processes outside containers, which could fake their command
// lines; one without a PID namespace of its own is trusted with all processes anyway.
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

// commandLine returns a process's command line, up to maxCommandLine; none: it has ended.
func commandLine(pid int) []byte {
	f, err := os.Open(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil {
		return nil
	}
	defer f.Close()
	line, _ := io.ReadAll(io.LimitReader(f, maxCommandLine))
	return line
}

// argument returns the value of a flag in a command line; "": none.
func argument(line []byte, flag string) string {
	_, rest, _ := bytes.Cut(line, []byte("\x00"+flag+"\x00"))
	value, _, _ := bytes.Cut(rest, []byte{0})
	return string(value)
}

// isOutside reports whether a process is in the agent's PID namespace, as shims and runc are.
func isOutside(pid int) bool {
	own, err := os.Readlink("/proc/self/ns/pid")
	theirs, _ := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", pid))
	return err == nil && own == theirs
}
