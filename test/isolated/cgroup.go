package isolated

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/moby/sys/mountinfo"
)

// cgroupRoot is where control groups are mounted. Those of v1 are isolated,
// also beside a v2 tree without controllers. With v2 alone they are shared: a
// group with processes, as that of the tests would be, cannot limit those below.
const cgroupRoot = "/sys/fs/cgroup"

// hierarchy is one mounted tree of control groups.
type hierarchy struct {
	mountpoint string
	kind       string // cgroup, or cgroup2
	options    string // of a mount of kind cgroup: its controllers, or its name
}

// hierarchies are those below cgroupRoot; none with v2 alone.
func hierarchies() ([]hierarchy, error) {
	mounts, err := mountinfo.GetMounts(mountinfo.FSTypeFilter("cgroup", "cgroup2"))
	var list []hierarchy
	for _, m := range mounts {
		if filepath.Dir(m.Mountpoint) != cgroupRoot {
			continue
		}
		h := hierarchy{mountpoint: m.Mountpoint, kind: m.FSType}
		if h.kind == "cgroup" {
			h.options = strings.Join(slices.DeleteFunc(strings.Split(m.VFSOptions, ","), func(o string) bool {
				return slices.Contains([]string{"rw", "ro", "xattr"}, o) || strings.HasPrefix(o, "release_agent=")
			}), ",")
		}
		list = append(list, h)
	}
	return list, err
}

// groups are the control groups that this process made for the tests.
type groups struct {
	own  []string
	back []string // where this process was before
}

// enterGroups makes a group in every hierarchy and moves this process there, for
// the namespace that the tests get begins where their parent is.
func enterGroups() (*groups, error) {
	g := &groups{}
	list, err := hierarchies()
	if err != nil {
		return g, fmt.Errorf("cannot list control groups: %w", err)
	}
	for _, h := range list {
		own := filepath.Join(h.mountpoint, "margolite-test-"+strconv.Itoa(os.Getpid()))
		if strings.Contains(h.options, "cpuset") { // else the new group has no CPUs
			_ = os.WriteFile(filepath.Join(h.mountpoint, "cgroup.clone_children"), []byte("1"), 0)
		}
		if err := os.Mkdir(own, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return g, fmt.Errorf("cannot make control group: %w", err)
		}
		g.own, g.back = append(g.own, own), append(g.back, h.mountpoint)
		if err := enter(own); err != nil {
			return g, err
		}
	}
	return g, nil
}

func enter(group string) error {
	if err := os.WriteFile(filepath.Join(group, "cgroup.procs"), []byte(strconv.Itoa(os.Getpid())), 0); err != nil {
		return fmt.Errorf("cannot enter control group: %w", err)
	}
	return nil
}

// leave removes the groups with all below them. Nobody is in there any more.
func (g *groups) leave() error {
	var all error
	for i, own := range g.own {
		all = errors.Join(all, enter(g.back[i]), removeGroup(own))
	}
	return all
}

func removeGroup(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.IsDir() {
			err = errors.Join(err, removeGroup(filepath.Join(dir, e.Name())))
		}
	}
	return errors.Join(err, os.Remove(dir))
}

// mountGroups shows the control groups of the new namespace, in the place of
// the machine's.
func mountGroups() error {
	list, err := hierarchies()
	if err != nil || len(list) == 0 {
		return err
	}
	links := make(map[string]string) // as cpu -> cpu,cpuacct
	entries, err := os.ReadDir(cgroupRoot)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if target, err := os.Readlink(filepath.Join(cgroupRoot, e.Name())); err == nil {
			links[e.Name()] = target
		}
	}
	if err := syscall.Unmount(cgroupRoot, syscall.MNT_DETACH); err != nil {
		return fmt.Errorf("cannot unmount control groups: %w", err)
	}
	if err := syscall.Mount("tmpfs", cgroupRoot, "tmpfs", syscall.MS_NOSUID|syscall.MS_NODEV|syscall.MS_NOEXEC, "mode=755"); err != nil {
		return fmt.Errorf("cannot mount control groups: %w", err)
	}
	for _, h := range list {
		if err := os.Mkdir(h.mountpoint, 0o755); err != nil {
			return err
		}
		if err := syscall.Mount(h.kind, h.mountpoint, h.kind, 0, h.options); err != nil {
			return fmt.Errorf("cannot mount control groups at %s: %w", h.mountpoint, err)
		}
	}
	for name, target := range links {
		if err := os.Symlink(target, filepath.Join(cgroupRoot, name)); err != nil {
			return err
		}
	}
	return nil
}
