package container

import (
	"errors"
	"fmt"
	"os"
	"path"
	"runtime"
	"slices"
	"strings"

	"github.com/containerd/containerd/v2/core/mount"
	confs "github.com/containerd/continuity/fs"
	"golang.org/x/sys/unix"

	"github.com/margolite/margolite/runtime/contain"
)

// mountFlags are the options of mount(8) that are flags of mount(2). Others are
// for the file system.
var mountFlags = []struct {
	option     string
	set, clear uintptr
}{
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
}

// propagations are the options that the kernel takes in a call of their own.
var propagations = []struct {
	option string
	flags  uintptr
}{
	{"private", unix.MS_PRIVATE},
	{"rprivate", unix.MS_PRIVATE | unix.MS_REC},
	{"shared", unix.MS_SHARED},
	{"rshared", unix.MS_SHARED | unix.MS_REC},
	{"slave", unix.MS_SLAVE},
	{"rslave", unix.MS_SLAVE | unix.MS_REC},
	{"unbindable", unix.MS_UNBINDABLE},
	{"runbindable", unix.MS_UNBINDABLE | unix.MS_REC},
}

const (
	// restrictions are what one bind mount may have and another of the same not.
	restrictions = unix.MS_RDONLY | unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC

	// optionsMargin is how many bytes below a page, which is what the kernel takes of
	// options, they are too long for containerd.
	optionsMargin = 512
)

// mountCall is what mount(2) is told.
type mountCall struct {
	flags       uintptr
	propagation uintptr
	data        string
}

// parseMountOptions reads options of mount(8); the last word wins.
func parseMountOptions(options []string) mountCall {
	var call mountCall
	var data []string
next:
	for _, o := range options {
		for _, f := range mountFlags {
			if f.option == o {
				call.flags = call.flags&^f.clear | f.set
				continue next
			}
		}
		for _, p := range propagations {
			if p.option == o {
				call.propagation = p.flags
				continue next
			}
		}
		data = append(data, o)
	}
	call.data = strings.Join(data, ",")
	return call
}

// mountBelow mounts within root, which no link in it leads out of. What is in root
// must not change meanwhile.
func mountBelow(root string, m mount.Mount) error {
	target, err := confs.RootPath(root, m.Target)
	if err != nil {
		return fmt.Errorf("cannot find %s: %w", m.Target, err)
	}
	return mountAt(target, m)
}

// mountAt mounts at target. containerd's core/mount does not do: it gives a bind
// mount no restriction but "ro", and takes those of its source away; it knows no
// propagation; options of a volume could have it run a program or make a loop
// device; and its errors show the options, among which a password may be.
func mountAt(target string, m mount.Mount) error {
	dir, options := "", m.Options
	if m.Type == "overlay" && len(strings.Join(options, ",")) >= os.Getpagesize()-optionsMargin {
		dir, options = shortenLayers(options)
	}
	call := parseMountOptions(options)
	if len(call.data) >= os.Getpagesize() {
		return fmt.Errorf("options of %s have %d bytes: %w", m.Type, len(call.data), unix.E2BIG)
	}
	err := inDirectory(dir, func() error { return unix.Mount(m.Source, target, m.Type, call.flags, call.data) })
	if err != nil {
		return fmt.Errorf("mount of type %s: %w", m.Type, err)
	}
	if call.propagation != 0 {
		err = unix.Mount("", target, "", call.propagation, "")
	}
	if err == nil && call.flags&unix.MS_BIND != 0 && call.flags&restrictions != 0 {
		err = restrict(target, call.flags)
	}
	if err != nil { // not half of what was asked for
		return errors.Join(fmt.Errorf("mount of type %s: %w", m.Type, err), unix.Unmount(target, unix.MNT_DETACH))
	}
	return nil
}

// restrict gives a bind mount the flags that the kernel does not look at when it
// makes one. What restricts the mount it is of, restricts it as well.
func restrict(target string, flags uintptr) error {
	var stat unix.Statfs_t
	if err := unix.Statfs(target, &stat); err != nil {
		return err
	}
	had := uintptr(stat.Flags) & restrictions // statfs has the same bits
	return unix.Mount("", target, "", flags&^unix.MS_REC|had|unix.MS_REMOUNT, "")
}

// shortenLayers names the layers of an overlay by their paths from the directory
// that all of them are in, and returns that: a hundred absolute paths are longer
// than what the kernel takes. "" is returned where it does not help.
func shortenLayers(options []string) (dir string, shorter []string) {
	const lower = "lowerdir="
	i := slices.IndexFunc(options, func(o string) bool { return strings.HasPrefix(o, lower) })
	if i < 0 || strings.Contains(options[i], `\`) { // which escapes a colon
		return "", options
	}
	layers := strings.Split(options[i][len(lower):], ":")
	for n, layer := range layers {
		layers[n] = path.Clean(layer)
	}
	dir = path.Dir(layers[0])
	for _, layer := range layers {
		for len(dir) > 1 && !strings.HasPrefix(layer, dir+"/") {
			dir = path.Dir(dir)
		}
	}
	if len(dir) == 1 { // "/" or "."
		return "", options
	}
	for n, layer := range layers {
		layers[n] = layer[len(dir)+1:]
	}
	shorter = slices.Clone(options)
	shorter[i] = lower + strings.Join(layers, ":")
	return dir, shorter
}

// inDirectory calls do in a working directory, which is nobody else's; "": in that
// of the process.
func inDirectory(dir string, do func() error) error {
	if dir == "" {
		return do()
	}
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // for good: the thread ends with this, and its directory with it
		err := unix.Unshare(unix.CLONE_FS)
		if err == nil {
			err = unix.Chdir(dir)
		}
		if err == nil {
			err = contain.Call(do)
		}
		done <- err
	}()
	return <-done
}
