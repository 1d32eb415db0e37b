package embedded

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Problem is something that this device lacks to run workloads.
type Problem struct {
	Object string // what was looked at: runc, shim, init, cgroups, overlayfs, kernel, root
	Fatal  bool   // no workload runs without it
	Text   string // what is wrong
	Mend   string // what to do about it
}

// Check looks for what containerd and runc need on this device, with images and snapshots under root.
func Check(ctx context.Context, root string) []Problem {
	var problems []Problem
	for _, check := range []func() *Problem{
		func() *Problem { return checkRunc(ctx) },
		func() *Problem { return checkShim(ctx) },
		checkInit,
		func() *Problem { return checkCgroups("/") },
		func() *Problem { return checkNamespaces("/") },
		func() *Problem { return checkSeccomp("/") },
		func() *Problem { return checkOverlay(root) },
		func() *Problem { return checkMedium(root) },
		func() *Problem { return checkDamage(root) },
	} {
		if p := check(); p != nil {
			problems = append(problems, *p)
		}
	}
	return problems
}

func checkRunc(ctx context.Context) *Problem {
	problem := &Problem{Object: "runc", Fatal: true, Mend: "install runc 1.0 or newer in PATH"}
	path, err := exec.LookPath("runc")
	if err != nil {
		problem.Text = "runc is not in PATH"
		return problem
	}
	out, err := askVersion(ctx, path, "--version")
	if err != nil {
		problem.Text = path + " " + err.Error()
		return problem
	}
	// runc version 1.1.5+ds1
	first, _, _ := bytes.Cut(out, []byte("\n"))
	if _, version, _ := strings.Cut(string(first), "version "); strings.HasPrefix(version, "0.") || strings.HasPrefix(version, "1.0.0-rc") {
		problem.Text = fmt.Sprintf("%s is of version %s", path, version)
		return problem
	}
	return nil
}

func checkShim(ctx context.Context) *Problem {
	if _, err := FindShim(ctx); err != nil {
		return &Problem{
			Object: "shim", Fatal: true, Text: "cannot start containers: " + err.Error(),
			Mend: "install margolite's " + shimName + " beside margolite or in /usr/libexec/margolite",
		}
	}
	return nil
}

func checkInit() *Problem {
	if FindInit() != "" {
		return nil
	}
	return &Problem{
		Object: "init", Text: initName + " is missing, services with init: true are refused",
		Mend: "install " + initName + " beside the shim",
	}
}

// checkCgroups reads what the kernel under root offers, not what is mounted for us. Devices and freezer have no
// controller in cgroup v2: the kernel does without.
func checkCgroups(root string) *Problem {
	present := map[string]bool{}
	if unified, err := os.ReadFile(filepath.Join(root, "sys/fs/cgroup/cgroup.controllers")); err == nil {
		for _, name := range strings.Fields(string(unified)) {
			present[name] = true
		}
		present["devices"], present["freezer"] = true, true
	} else {
		for _, name := range []string{"cpu", "memory", "pids", "devices", "freezer"} {
			_, err := os.Stat(filepath.Join(root, "sys/fs/cgroup", name))
			present[name] = err == nil
		}
	}
	missing := func(names ...string) []string {
		var out []string
		for _, name := range names {
			if !present[name] {
				out = append(out, name)
			}
		}
		return out
	}
	if names := missing("devices", "freezer"); names != nil {
		return &Problem{
			Object: "cgroups", Fatal: true, Text: "no cgroup hierarchy for " + strings.Join(names, ", "),
			Mend: "mount cgroup2 at /sys/fs/cgroup",
		}
	}
	if names := missing("cpu", "memory", "pids"); names != nil {
		return &Problem{
			Object: "cgroups",
			Text:   "limits have no effect for " + strings.Join(names, ", "),
			Mend:   "enable these cgroup controllers in the kernel; for memory some boards need cgroup_enable=memory on the kernel command line",
		}
	}
	return nil
}

func checkNamespaces(root string) *Problem {
	var missing []string
	for _, name := range []string{"ipc", "mnt", "net", "pid", "uts"} {
		if _, err := os.Lstat(filepath.Join(root, "proc/self/ns", name)); err != nil {
			missing = append(missing, name)
		}
	}
	if missing == nil {
		return nil
	}
	return &Problem{
		Object: "kernel", Fatal: true, Text: "no namespaces for " + strings.Join(missing, ", "),
		Mend: "build the kernel with CONFIG_NAMESPACES and its options",
	}
}

func checkSeccomp(root string) *Problem {
	if _, err := os.Stat(filepath.Join(root, "proc/sys/kernel/seccomp/actions_avail")); errors.Is(err, os.ErrNotExist) {
		return &Problem{
			Object: "kernel", Text: "system calls of workloads cannot be filtered",
			Mend: "build the kernel with CONFIG_SECCOMP_FILTER",
		}
	}
	return nil
}

func checkOverlay(root string) *Problem {
	err := canOverlay(root)
	if err == nil {
		return nil
	}
	p := &Problem{
		Object: "overlayfs",
		Text:   fmt.Sprintf("every image layer is copied in full, since overlayfs does not work in %s: %v", root, err),
		Mend:   "enable CONFIG_OVERLAY_FS, or put the state directory on ext4, xfs with ftype=1, f2fs or btrfs",
	}
	if errors.Is(err, errReserved) {
		p.Mend = "choose a state.dir without that character"
	}
	return p
}

func checkMedium(root string) *Problem {
	var at unix.Statfs_t
	if unix.Statfs(root, &at) == nil && at.Type == unix.TMPFS_MAGIC {
		return &Problem{
			Object: "root",
			Text:   root + " is in memory: each reboot loses images and metadata",
			Mend:   "put the state directory on permanent storage",
		}
	}
	return nil
}
