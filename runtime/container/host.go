package container

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Cgroups is how this device arranges control groups.
type Cgroups int

// The arrangements of control groups.
const (
	CgroupsNone Cgroups = iota // not mounted
	CgroupsV1                  // v1, also beside a v2 tree without controllers ("hybrid")
	CgroupsV2
)

// Host is what the specification of a container depends on beside its
// configuration.
type Host struct {
	Cgroups           Cgroups
	CgroupNamespace   bool   // the kernel has cgroup namespaces
	MessageQueues     bool   // the kernel has POSIX message queues
	UnprivilegedPorts bool   // the kernel can let everybody bind low ports
	Seccomp           bool   // kernel and runtime can filter system calls
	OpenFiles         uint64 // how many files a process may be allowed to open
}

// DetectHost looks at this device. runc is the OCI runtime's program, by name or path.
func DetectHost(ctx context.Context, runc string) Host {
	h := Host{
		Cgroups:           detectCgroups(),
		CgroupNamespace:   exists("/proc/self/ns/cgroup"),
		UnprivilegedPorts: exists("/proc/sys/net/ipv4/ip_unprivileged_port_start"),
		Seccomp:           exists("/proc/sys/kernel/seccomp/actions_avail") && runtimeHasSeccomp(ctx, runc),
		OpenFiles:         openFiles,
	}
	if types, err := os.ReadFile("/proc/filesystems"); err == nil {
		h.MessageQueues = bytes.Contains(types, []byte("\tmqueue\n"))
	}
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err == nil {
		h.OpenFiles = min(h.OpenFiles, limit.Max)
	}
	return h
}

func detectCgroups() Cgroups {
	var at unix.Statfs_t
	if err := unix.Statfs("/sys/fs/cgroup", &at); err != nil {
		return CgroupsNone
	}
	switch int64(at.Type) {
	case unix.CGROUP2_SUPER_MAGIC:
		return CgroupsV2
	case unix.TMPFS_MAGIC, unix.CGROUP_SUPER_MAGIC:
		return CgroupsV1
	default:
		return CgroupsNone
	}
}

// runtimeHasSeccomp asks the runtime how it was built: one without seccomp
// refuses every container that has a profile. runc prints "libseccomp: 2.5.4",
// crun "+SECCOMP". One that does not answer has to prove itself.
func runtimeHasSeccomp(ctx context.Context, runc string) bool {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, runc, "--version").Output()
	text := string(out)
	return err != nil || strings.Contains(text, "libseccomp:") || strings.Contains(text, "+SECCOMP")
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
