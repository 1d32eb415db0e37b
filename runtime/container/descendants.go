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

// maxDescendants bounds how many processes of one command are looked for.
const maxDescendants = 1024

// family are processes, held so that no other can take their numbers' place.
type family []relative

type relative struct{ pid, fd int }

// descendants are the processes that the process pid started, and those these
// did. Where the kernel does not tell, there are none.
func descendants(pid int) family {
	var f family
	for queue := []int{pid}; len(queue) > 0 && len(f) < maxDescendants; queue = queue[1:] {
		parent := queue[0]
		if parent <= 0 {
			continue
		}
		lists, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", parent))
		if err != nil {
			continue
		}
		for _, list := range lists {
			text, err := os.ReadFile(list)
			if err != nil {
				continue // ended meanwhile
			}
			for field := range strings.FieldsSeq(string(text)) {
				child, err := strconv.Atoi(field)
				if err != nil {
					continue
				}
				fd, err := unix.PidfdOpen(child, 0)
				if err != nil {
					continue
				}
				if parentOf(child) != parent { // the number went to another process
					_ = unix.Close(fd)
					continue
				}
				f = append(f, relative{child, fd})
				queue = append(queue, child)
			}
		}
	}
	return f
}

// parentOf is the parent of a process; 0: it has ended.
func parentOf(pid int) int {
	parent, _ := strconv.Atoi(statField(statFields(pid), 4))
	return parent
}

// statFields are the fields of /proc/PID/stat that follow the name of a process,
// which may hold anything; nil: it has ended.
func statFields(pid int) []string {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return nil
	}
	return strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
}

// statField returns one of statFields by its number in proc(5), or "" if it is missing.
func statField(fields []string, number int) string {
	const first = 3 // behind the name
	if number -= first; number >= len(fields) {
		return ""
	}
	return fields[number]
}

func (f family) kill() {
	for _, r := range f {
		r.kill()
	}
}

func (r relative) kill() {
	_ = unix.PidfdSendSignal(r.fd, unix.SIGKILL, nil, 0) // has ended by itself otherwise
}

// maxCommandLine is more than the command lines of shims and runc have, in bytes. A
// process can show any part of its memory as its own.
const maxCommandLine = 64 << 10

// commandLine is the command line of a process, or the beginning of a longer one.
func commandLine(pid int) ([]byte, error) {
	f, err := os.Open(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, maxCommandLine))
}

// named are those whose command line has a text in it.
func (f family) named(text string) (found []relative) {
	for _, r := range f {
		line, err := commandLine(r.pid)
		if err == nil && bytes.Contains(line, []byte(text)) {
			found = append(found, r)
		}
	}
	return found
}

// killWhole kills a process with all that it started, also what it is just about to
// start: it is stopped until nothing new comes from its children.
func (r relative) killWhole() {
	_ = unix.PidfdSendSignal(r.fd, unix.SIGSTOP, nil, 0) // has ended by itself otherwise
	defer r.kill()
	known := make(map[int]bool)
	for fresh := true; fresh && len(known) < maxDescendants; {
		fresh = false
		f := descendants(r.pid)
		for _, child := range f {
			fresh = fresh || !known[child.pid]
			known[child.pid] = true
			child.kill()
		}
		f.close()
	}
}

func (f family) close() {
	for _, r := range f {
		_ = unix.Close(r.fd)
	}
}
