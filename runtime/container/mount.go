package container

import (
	"os"
	"slices"
	"strings"

	"github.com/containerd/containerd/v2/core/mount"
	"golang.org/x/sys/unix"
)

type mountFlag struct {
	option     string
	set, clear uintptr
}

// mountFlags are options of mount(8) that are flags of mount(2). Others are the file system's.
var mountFlags = []mountFlag{
	{"async", 0, unix.MS_SYNCHRONOUS},
	{"atime", 0, unix.MS_NOATIME},
	{"bind", unix.MS_BIND, 0},
	{"dev", 0, unix.MS_NODEV},
	{"diratime", 0, unix.MS_NODIRATIME},
	{"dirsync", unix.MS_DIRSYNC, 0},
	{"exec", 0, unix.MS_NOEXEC},
	{"mand", unix.MS_MANDLOCK, 0},
	{"noatime", unix.MS_NOATIME, 0},
	{"nodev", unix.MS_NODEV, 0},
	{"nodiratime", unix.MS_NODIRATIME, 0},
	{"noexec", unix.MS_NOEXEC, 0},
	{"nomand", 0, unix.MS_MANDLOCK},
	{"norelatime", 0, unix.MS_RELATIME},
	{"nostrictatime", 0, unix.MS_STRICTATIME},
	{"nosuid", unix.MS_NOSUID, 0},
	{"rbind", unix.MS_BIND | unix.MS_REC, 0},
	{"relatime", unix.MS_RELATIME, 0},
	{"ro", unix.MS_RDONLY, 0},
	{"rw", 0, unix.MS_RDONLY},
	{"strictatime", unix.MS_STRICTATIME, 0},
	{"suid", 0, unix.MS_NOSUID},
	{"sync", unix.MS_SYNCHRONOUS, 0},

	{"private", unix.MS_PRIVATE, 0},
	{"rprivate", unix.MS_PRIVATE | unix.MS_REC, 0},
	{"shared", unix.MS_SHARED, 0},
	{"rshared", unix.MS_SHARED | unix.MS_REC, 0},
	{"slave", unix.MS_SLAVE, 0},
	{"rslave", unix.MS_SLAVE | unix.MS_REC, 0},
	{"unbindable", unix.MS_UNBINDABLE, 0},
	{"runbindable", unix.MS_UNBINDABLE | unix.MS_REC, 0},
}

const propagations = unix.MS_PRIVATE | unix.MS_SHARED | unix.MS_SLAVE | unix.MS_UNBINDABLE

// restrictions are the flags that two bind mounts of the same source may differ in.
const restrictions = unix.MS_RDONLY | unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC

type mountCall struct {
	flags       uintptr
	propagation uintptr
	data        string
}

// parseMountOptions parses options of mount(8); the last one wins.
func parseMountOptions(options []string) mountCall {
	var call mountCall
	var data []string
	for _, o := range options {
		at := slices.IndexFunc(mountFlags, func(f mountFlag) bool { return f.option == o })
		switch {
		case at < 0:
			data = append(data, o)
		case mountFlags[at].set&propagations != 0:
			call.propagation = mountFlags[at].set
		default:
			call.flags = call.flags&^mountFlags[at].clear | mountFlags[at].set
		}
	}
	call.data = strings.Join(data, ",")
	return call
}

// mountAt mounts a volume at target. Its error does not show the options, which may hold a
// password. containerd's core/mount will not do: it allows bind mounts no restriction but
// "ro", and drops their source's; options of a volume could make it run a program or make a
// loop device; and its errors show the options.
func mountAt(target string, m mount.Mount) error {
	call := parseMountOptions(m.Options)
	if len(call.data) >= os.Getpagesize() {
		return unix.E2BIG
	}
	err := unix.Mount(m.Source, target, m.Type, call.flags, call.data)
	if err != nil {
		return err
	}
	if call.propagation != 0 {
		err = unix.Mount("", target, "", call.propagation, "")
	}
	if err == nil && call.flags&unix.MS_BIND != 0 && call.flags&restrictions != 0 {
		err = restrict(target, call.flags)
	}
	if err != nil { // nothing rather than half
		_ = unix.Unmount(target, unix.MNT_DETACH)
	}
	return err
}

// restrict sets what the kernel ignores for a new bind mount, beside its source's restrictions.
func restrict(target string, flags uintptr) error {
	var stat unix.Statfs_t
	if err := unix.Statfs(target, &stat); err != nil {
		return err
	}
	had := uintptr(stat.Flags) & restrictions // statfs uses the same bits
	return unix.Mount("", target, "", flags&^unix.MS_REC|had|unix.MS_REMOUNT, "")
}
