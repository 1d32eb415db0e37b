package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// processes are those whose command line holds all words.
func (p *plant) processes(words ...string) []int {
	entries, _ := os.ReadDir("/proc")
	var pids []int
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		line, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		matches := func(word string) bool { return strings.Contains(string(line), word) }
		if !slices.ContainsFunc(words, func(w string) bool { return !matches(w) }) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// descendants are the children of a process, and theirs.
func (p *plant) descendants(pid int) []int {
	parents := map[int][]int{}
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		child, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		stat, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "stat"))
		_, rest, _ := strings.Cut(string(stat), ") ")
		if fields := strings.Fields(rest); len(fields) > 1 {
			parent, _ := strconv.Atoi(fields[1])
			parents[parent] = append(parents[parent], child)
		}
	}
	var all []int
	var walk func(int)
	walk = func(pid int) {
		for _, child := range parents[pid] {
			all = append(all, child)
			walk(child)
		}
	}
	walk(pid)
	return all
}

// unmountBelow unmounts everything below dir, the innermost first.
func unmountBelow(dir string) {
	mounts, _ := os.ReadFile("/proc/self/mountinfo")
	var points []string
	for line := range strings.Lines(string(mounts)) {
		if f := strings.Fields(line); len(f) > 4 && strings.HasPrefix(f[4], dir+"/") {
			points = append(points, f[4])
		}
	}
	for _, point := range slices.Backward(points) {
		unix.Unmount(point, unix.MNT_DETACH)
	}
}

// networkLeft names the links and rules that are not the machine's own.
func networkLeft() []error {
	var left []error
	links, _ := netlink.LinkList()
	for _, l := range links {
		if l.Type() == "bridge" || l.Type() == "veth" {
			left = append(left, fmt.Errorf("link %s", l.Attrs().Name))
		}
	}
	for _, table := range tables() {
		left = append(left, fmt.Errorf("table %s", table.Name))
	}
	return left
}

func tables() []*nftables.Table {
	c, err := nftables.New()
	if err != nil {
		return nil
	}
	all, _ := c.ListTables()
	return slices.DeleteFunc(all, func(t *nftables.Table) bool { return !strings.HasPrefix(t.Name, "margolite") })
}

// removeNetwork forgets links and rules, as a reboot does.
func removeNetwork(t *testing.T) {
	t.Helper()
	links, _ := netlink.LinkList()
	for _, l := range links {
		if l.Type() == "bridge" || l.Type() == "veth" {
			netlink.LinkDel(l)
		}
	}
	c, err := nftables.New()
	check(t, err)
	for _, table := range tables() {
		c.DelTable(table)
	}
	check(t, c.Flush())
}
