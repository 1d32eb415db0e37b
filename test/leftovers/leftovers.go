// Package leftovers tells what a test has left on the machine: links, rules,
// namespaces, mounts, control groups, processes, containers, snapshots and files.
package leftovers

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/google/nftables"

	"github.com/margolite/margolite/runtime/containerd"
	"github.com/margolite/margolite/test/expect"
)

// Where says what to look at. Empty fields are not looked at.
type Where struct {
	Client    containerd.Client
	Namespace string // of containerd; its control groups are named after it
	StateDir  string // of the runtime; volumes may stay
	RunDir    string // of the runtime
	Sockets   string // of shims, where it is not in RunDir
}

// Snapshot is what there is at one time, by kind: names, sorted.
type Snapshot map[string][]string

// Take looks at the machine. What cannot be looked at fails the test.
func Take(t testing.TB, w Where) Snapshot {
	t.Helper()
	s := Snapshot{}
	for kind, look := range map[string]func(Where) ([]string, error){
		"link": links, "nftables table": tables, "mount": mounts, "process": processes,
		"control group": groups, "container": containers, "snapshot": layers, "file": files,
	} {
		found, err := look(w)
		expect.Require(t, err == nil, "cannot look for every %s: %v", kind, err)
		slices.Sort(found)
		s[kind] = found
	}
	return s
}

// Compare fails the test for everything that came between before and now, and
// for what has gone.
func Compare(t testing.TB, w Where, before Snapshot) {
	t.Helper()
	for _, difference := range before.Differences(Take(t, w)) {
		t.Error(difference)
	}
}

// Differences says what differs in after, a line for each.
func (s Snapshot) Differences(after Snapshot) []string {
	var lines []string
	for _, kind := range slices.Sorted(maps.Keys(after)) {
		was, is := count(s[kind]), count(after[kind])
		for _, name := range slices.Sorted(maps.Keys(is)) {
			if n := is[name] - was[name]; n > 0 {
				lines = append(lines, fmt.Sprintf("left: %s %s", kind, times(name, n)))
			}
		}
		for _, name := range slices.Sorted(maps.Keys(was)) {
			if n := was[name] - is[name]; n > 0 {
				lines = append(lines, fmt.Sprintf("gone: %s %s", kind, times(name, n)))
			}
		}
	}
	return lines
}

func count(names []string) map[string]int {
	n := make(map[string]int, len(names))
	for _, name := range names {
		n[name]++
	}
	return n
}

func times(name string, n int) string {
	if n == 1 {
		return name
	}
	return fmt.Sprintf("%s (%d times)", name, n)
}

func links(Where) ([]string, error) {
	all, err := net.Interfaces()
	names := make([]string, len(all))
	for i, link := range all {
		names[i] = link.Name
	}
	return names, err
}

func tables(Where) ([]string, error) {
	all, err := new(nftables.Conn).ListTables()
	var names []string
	for _, table := range all {
		family := fmt.Sprintf("family %d", table.Family)
		switch table.Family {
		case nftables.TableFamilyIPv4:
			family = "ip"
		case nftables.TableFamilyIPv6:
			family = "ip6"
		}
		names = append(names, family+" "+table.Name)
	}
	return names, err
}

// mounts are those below the runtime's directories, pins of namespaces among them.
func mounts(w Where) ([]string, error) {
	text, err := os.ReadFile("/proc/self/mountinfo")
	var names []string
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		if len(fields) > 4 && (within(fields[4], w.RunDir) || within(fields[4], w.StateDir)) {
			names = append(names, fields[4])
		}
	}
	return names, err
}

func within(path, dir string) bool { return dir != "" && strings.HasPrefix(path, dir+"/") }

// processes are shims, and what runs in control groups of the namespace.
func processes(w Where) ([]string, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	var names []string
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		dir := filepath.Join("/proc", entry.Name())
		command, err := os.ReadFile(filepath.Join(dir, "cmdline"))
		if err != nil || len(command) == 0 { // it ended, or waits to be buried
			continue
		}
		group, err := os.ReadFile(filepath.Join(dir, "cgroup"))
		if err != nil {
			continue
		}
		ours := w.Namespace != "" && bytes.Contains(group, []byte("/"+w.Namespace+"/"))
		if ours || bytes.Contains(command, []byte("containerd-shim-runc-v2")) {
			names = append(names, fmt.Sprintf("%d %s", pid, strings.ReplaceAll(strings.Trim(string(command), "\x00"), "\x00", " ")))
		}
	}
	return names, nil
}

// groups are the control group of the namespace and those of its projects.
func groups(w Where) ([]string, error) {
	if w.Namespace == "" {
		return nil, nil
	}
	var names []string
	for _, root := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/*"} {
		for _, pattern := range []string{filepath.Join(root, w.Namespace), filepath.Join(root, w.Namespace, "*")} {
			found, err := filepath.Glob(pattern)
			if err != nil {
				return nil, err
			}
			for _, path := range found {
				if info, err := os.Stat(path); err == nil && info.IsDir() {
					names = append(names, path)
				}
			}
		}
	}
	return names, nil
}

func containers(w Where) ([]string, error) {
	if w.Client == nil {
		return nil, nil
	}
	all, err := w.Client.ContainerService().List(namespaces.WithNamespace(context.Background(), w.Namespace))
	var names []string
	for _, c := range all {
		names = append(names, c.ID)
	}
	return names, err
}

// layers are the snapshots that are not of images.
func layers(w Where) ([]string, error) {
	if w.Client == nil {
		return nil, nil
	}
	var names []string
	err := w.Client.SnapshotService("overlayfs").Walk(namespaces.WithNamespace(context.Background(), w.Namespace),
		func(_ context.Context, s snapshots.Info) error {
			names = append(names, s.Name)
			return nil
		}, "kind==active")
	return names, err
}

// files are what lies in the runtime's directories, save volumes and empty
// directories.
func files(w Where) ([]string, error) {
	var names []string
	for _, dir := range []string{w.RunDir, w.StateDir, w.Sockets} {
		if dir == "" {
			continue
		}
		err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			switch {
			case errors.Is(err, fs.ErrNotExist):
				return nil
			case err != nil:
				return err
			case d.IsDir() && path == filepath.Join(w.StateDir, "volumes"):
				return fs.SkipDir
			case !d.IsDir():
				names = append(names, path)
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return names, nil
}
