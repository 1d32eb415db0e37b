package container

import (
	"cmp"
	"fmt"
	"path"
	"path/filepath"
	"slices"
	"sort"
	"strconv"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/margolite/margolite/runtime/compose"
)

// defaultShm is the size of /dev/shm in bytes, as with Docker.
const defaultShm = 64 << 20

// allMounts puts parents first. The service's mounts replace defaults at the same place.
func allMounts(c Config, h Host, at placing) ([]specs.Mount, error) {
	own, err := serviceMounts(c, h, at)
	if err != nil {
		return nil, err
	}
	given := slices.Concat(kernelMounts(c.Service, h), sharedMemory(c.Service, at), sandboxMounts(c))
	mounts := slices.DeleteFunc(given, func(m specs.Mount) bool {
		return slices.ContainsFunc(own, func(o specs.Mount) bool { return o.Destination == m.Destination })
	})
	mounts = append(mounts, own...)
	sortMounts(mounts)
	return mounts, nil
}

// sortMounts puts parents first, without another copy of slices.SortStableFunc in the program.
func sortMounts(mounts []specs.Mount) {
	depth := func(i int) int { return strings.Count(mounts[i].Destination, "/") }
	sort.SliceStable(mounts, func(i, j int) bool { return depth(i) < depth(j) })
}

func kernelMounts(s *compose.Service, h Host) []specs.Mount {
	access := "ro"
	if s.Privileged {
		access = "rw"
	}
	mounts := []specs.Mount{
		{Destination: "/proc", Type: "proc", Source: "proc", Options: []string{"nosuid", "noexec", "nodev"}},
		{Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "strictatime", "mode=755", "size=65536k"}},
		{Destination: "/dev/pts", Type: "devpts", Source: "devpts", Options: []string{"nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"}},
		{Destination: "/sys", Type: "sysfs", Source: "sysfs", Options: []string{"nosuid", "noexec", "nodev", access}},
	}
	if h.MessageQueues {
		mounts = append(mounts, specs.Mount{Destination: "/dev/mqueue", Type: "mqueue", Source: "mqueue", Options: []string{"nosuid", "noexec", "nodev"}})
	}
	if h.Cgroups != CgroupsNone {
		mounts = append(mounts, specs.Mount{Destination: "/sys/fs/cgroup", Type: "cgroup", Source: "cgroup", Options: []string{access, "nosuid", "noexec", "nodev"}})
	}
	return mounts
}

// sharedMemory is /dev/shm. It is a file system and no part of an IPC namespace, but
// containers that share one share the other. Start determines whose it is.
func sharedMemory(s *compose.Service, at placing) []specs.Mount {
	options := []string{"nosuid", "noexec", "nodev"}
	shared := specs.Mount{Destination: "/dev/shm", Type: "bind", Source: at.sharedMemory(at.id), Options: append([]string{"rbind", "rprivate"}, options...)}
	switch s.IPC.Mode {
	case compose.ModeNone:
		return nil
	case compose.ModeShareable, compose.ModeService, compose.ModeContainer:
	case compose.ModeHost:
		shared.Source = "/dev/shm"
	default:
		size := strconv.FormatInt(cmp.Or(s.ShmSize, defaultShm), 10)
		shared = specs.Mount{Destination: "/dev/shm", Type: "tmpfs", Source: "shm", Options: append(options, "mode=1777", "size="+size)}
	}
	return []specs.Mount{shared}
}

// sandboxMounts are writable, as in Docker, unless the root file system is read-only.
func sandboxMounts(c Config) []specs.Mount {
	options := []string{"bind", "rprivate"}
	if c.Service.ReadOnly {
		options = append(options, "ro")
	}
	var mounts []specs.Mount
	for _, file := range []struct{ source, target string }{
		{c.Sandbox.ResolvConf, "/etc/resolv.conf"},
		{c.Sandbox.Hostname, "/etc/hostname"},
		{c.Sandbox.Hosts, "/etc/hosts"},
	} {
		if file.source != "" {
			mounts = append(mounts, specs.Mount{Destination: file.target, Type: "bind", Source: file.source, Options: slices.Clone(options)})
		}
	}
	return mounts
}

func serviceMounts(c Config, h Host, at placing) ([]specs.Mount, error) {
	s := c.Service
	mounts := make([]specs.Mount, 0, len(s.Mounts)+len(s.Tmpfs)+len(s.Files))
	subpaths, sources := 0, 0
	for _, m := range s.Mounts {
		source, kind, propagation := "", "rbind", cmp.Or(m.Propagation, "rprivate")
		if m.Path != "" {
			if source = realOf(m); isBound(m) {
				source = at.sourceDir(at.id, sources)
			}
			sources++
		}
		if name := c.volumeName(m); name != "" {
			source, propagation = at.volumeDir(c.Labels.Project, at.volumes.get(name)), "rprivate"
			if m.Subpath != "" {
				source = at.subpathDir(at.id, subpaths)
				subpaths++
			}
		}
		if m.NotBelow {
			kind = "bind"
		}
		options := []string{kind, propagation}
		switch {
		case m.Below == compose.BelowReadOnly && !h.ReadOnlyBelow:
			return nil, fmt.Errorf("mount at %s: bind.recursive: readonly takes Linux 5.12 or newer", m.Target)
		case m.ReadOnly && !m.NotBelow && m.Below != compose.BelowWritable && h.ReadOnlyBelow:
			options = append(options, "rro")
		case m.ReadOnly:
			options = append(options, "ro")
		}
		mounts = append(mounts, specs.Mount{Destination: m.Target, Type: "bind", Source: source, Options: options})
	}
	for _, t := range s.Tmpfs {
		mounts = append(mounts, specs.Mount{
			Destination: t.Target, Type: "tmpfs", Source: "tmpfs",
			Options: slices.Concat([]string{"nosuid", "nodev", "noexec"}, t.Options), // the last option wins
		})
	}
	for n, f := range s.Files {
		mounts = append(mounts, specs.Mount{
			Destination: f.Target, Type: "bind", Source: filepath.Join(at.placedFiles(at.id), fileName(n, f)), Options: []string{"bind", "rprivate", "ro"},
		})
	}
	return mounts, nil
}

// canReadOnlyBelow reports whether the kernel can make a mount read-only together with the
// mounts below it, as Docker does where possible. runc supports it since 1.1.
func canReadOnlyBelow() bool {
	err := unix.MountSetattr(-1, "", unix.AT_EMPTY_PATH, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY})
	return err != unix.ENOSYS && err != unix.EPERM
}

func checkTarget(target string) error {
	if !path.IsAbs(target) || path.Clean(target) != target || target == "/" {
		return fmt.Errorf("cannot mount at %.80q: expected a clean absolute path below /", target)
	}
	return nil
}

// rootPropagation lets mounts propagate between host and container if a bind mount asks for it.
func rootPropagation(mounts []compose.Mount) string {
	propagation := ""
	for _, m := range mounts {
		switch m.Propagation {
		case "shared", "rshared":
			return "shared"
		case "slave", "rslave":
			propagation = "rslave"
		}
	}
	return propagation
}
