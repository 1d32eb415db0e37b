//go:build !slim

package embedded

import (
	"bufio"
	"bytes"
	"math"
	"os"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// memoryLimit is how many bytes of memory this process may have: those of the machine, or what GOMEMLIMIT or the control
// groups that it is in leave it.
func memoryLimit() int64 {
	limit := int64(math.MaxInt64)
	var machine unix.Sysinfo_t
	if err := unix.Sysinfo(&machine); err == nil {
		limit = int64(uint64(machine.Totalram) * uint64(machine.Unit))
	}
	limit = min(limit, debug.SetMemoryLimit(-1))
	for _, file := range limitFiles("/proc/self/cgroup", "/sys/fs/cgroup") {
		text, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		// "max", or of version 1 a number that no machine has: none.
		if n, err := strconv.ParseInt(string(bytes.TrimSpace(text)), 10, 64); err == nil && n > 0 {
			limit = min(limit, n)
		}
	}
	return limit
}

// limitFiles are the files with the memory limits of the control groups of a process, up to the root.
func limitFiles(groups, root string) (files []string) {
	f, err := os.Open(groups)
	if err != nil {
		return nil
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		_, rest, _ := strings.Cut(lines.Text(), ":")
		controllers, group, _ := strings.Cut(rest, ":")
		below, file := root, "memory.max"
		if controllers != "" {
			if !strings.Contains(","+controllers+",", ",memory,") {
				continue
			}
			below, file = filepath.Join(root, "memory"), "memory.limit_in_bytes"
		}
		for ; ; group = filepath.Dir(group) {
			files = append(files, filepath.Join(below, group, file))
			if group == "/" || group == "." {
				break
			}
		}
	}
	return files
}
