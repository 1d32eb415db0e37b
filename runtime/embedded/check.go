package embedded

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Problem is something missing on this device to run workloads.
type Problem struct {
	Object string // what was looked at: runc, shim, init, cgroups, overlayfs, kernel, root
	Fatal  bool   // no workload runs without it
	Text   string // what is wrong
	Mend   string // what to do about it
}

// Check checks the requirements of containerd and runc, with images and snapshots under root.
func Check(ctx context.Context, root string) []Problem {
	var p problems
	p.programs(ctx)
	p.kernel("/")
	p.storage(root)
	return p
}

type problems []Problem

func (p *problems) add(object string, fatal bool, text, mend string) {
	*p = append(*p, Problem{object, fatal, text, mend})
}

func (p *problems) programs(ctx context.Context) {
	if text := checkRunc(ctx); text != "" {
		p.add("runc", true, text, "install runc 1.0 or newer in PATH")
	}
	if _, err := FindShim(ctx); err != nil {
		p.add("shim", true, "cannot start containers: "+err.Error(), "install margolite's "+shimName+" beside margolite or in /usr/libexec/margolite")
	}
	if FindInit() == "" {
		p.add("init", false, initName+" is missing, services with init: true are refused", "install "+initName+" beside the shim")
	}
}

func checkRunc(ctx context.Context) (problem string) {
	path, err := exec.LookPath("runc")
	if err != nil {
		return "runc is not in PATH"
	}
	out, err := askVersion(ctx, path, "--version")
	if err != nil {
		return path + " " + err.Error()
	}
	// runc version 1.1.5+ds1
	first, _, _ := bytes.Cut(out, []byte("\n"))
	if _, version, _ := strings.Cut(string(first), "version "); strings.HasPrefix(version, "0.") || strings.HasPrefix(version, "1.0.0-rc") {
		return fmt.Sprintf("%s is of version %s", path, version)
	}
	return ""
}

// kernel reads what the kernel under root offers, not what is mounted for us.
func (p *problems) kernel(root string) {
	controllers := filepath.Join(root, "sys/fs/cgroup")
	missing := func(names ...string) string { return missingIn(controllers, names...) }
	if unified, err := os.ReadFile(filepath.Join(controllers, "cgroup.controllers")); err == nil {
		// Devices and freezer have no controller in cgroup v2: the kernel does without.
		present := append(strings.Fields(string(unified)), "devices", "freezer")
		missing = func(names ...string) string {
			return strings.Join(slices.DeleteFunc(names, func(name string) bool { return slices.Contains(present, name) }), ", ")
		}
	}
	if names := missing("devices", "freezer"); names != "" {
		p.add("cgroups", true, "no cgroup hierarchy for "+names, "mount cgroup2 at /sys/fs/cgroup")
	} else if names := missing("cpu", "memory", "pids"); names != "" {
		p.add("cgroups", false, "limits have no effect for "+names,
			"enable these cgroup controllers in the kernel; for memory some boards need cgroup_enable=memory on the kernel command line")
	}
	if names := missingIn(filepath.Join(root, "proc/self/ns"), "ipc", "mnt", "net", "pid", "uts"); names != "" {
		p.add("kernel", true, "no namespaces for "+names, "build the kernel with CONFIG_NAMESPACES and its options")
	}
	if missingIn(filepath.Join(root, "proc/sys/kernel/seccomp"), "actions_avail") != "" {
		p.add("kernel", false, "system calls of workloads cannot be filtered", "build the kernel with CONFIG_SECCOMP_FILTER")
	}
}

// missingIn are the names that a directory does not have.
func missingIn(dir string, names ...string) string {
	return strings.Join(slices.DeleteFunc(names, func(name string) bool { return exists(filepath.Join(dir, name)) }), ", ")
}

func (p *problems) storage(root string) {
	if err := canOverlay(root); err != nil {
		mend := "enable CONFIG_OVERLAY_FS, or put the state directory on ext4, xfs with ftype=1, f2fs or btrfs"
		if errors.Is(err, errReserved) {
			mend = "choose a state.dir without that character"
		}
		p.add("overlayfs", false, fmt.Sprintf("every image layer is copied in full, since overlayfs does not work in %s: %v", root, err), mend)
	}
	var at unix.Statfs_t
	if unix.Statfs(root, &at) == nil && at.Type == unix.TMPFS_MAGIC {
		p.add("root", false, root+" is in memory: each reboot loses images and metadata", "put the state directory on permanent storage")
	}
	// Databases that were damaged are told of until somebody removes them.
	kept, _ := fs.Glob(os.DirFS(root), "*/*.db"+bad) // the pattern is well-formed
	for i, name := range kept {
		kept[i] = filepath.Join(root, name)
	}
	if len(kept) > 0 {
		p.add("root", false, "a damaged database of containerd was replaced and containers were recreated: "+strings.Join(kept, ", "),
			"check the storage medium of the state directory, and remove the saved files")
	}
}
