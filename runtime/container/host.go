package container

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/containerd/containerd/v2/pkg/kernelversion"
	"golang.org/x/sys/unix"
)

// Cgroups is the arrangement of control groups on this device.
type Cgroups int

const (
	CgroupsNone Cgroups = iota // not mounted
	CgroupsV1                  // also with a v2 tree without controllers ("hybrid")
	CgroupsV2
)

// Host is what a container's specification depends on beside its configuration.
type Host struct {
	Cgroups           Cgroups
	CgroupNamespace   bool
	MessageQueues     bool
	ReadOnlyBelow     bool     // the kernel can make a mount read-only with all below it
	UnprivilegedPorts bool     // the kernel can let everyone bind low ports
	PingGroups        bool     // the kernel can let everyone ping
	Seccomp           bool     // kernel and runtime can filter system calls
	AppArmor          bool     // the kernel has it enabled
	Profile           string   // default AppArmor profile; "": none
	OpenFiles         uint64   // limit of open files that a process may get
	MostOpenFiles     uint64   // the kernel's limit for anyone
	Processes         int64    // limit of processes and threads on the device; 0: unknown
	Capabilities      []string // that containers may have; nil: all
	CPUs              string   // as 0-3

	Limits
}

// Limits are the limits that control groups support on this device.
type Limits struct {
	Memory            bool
	Swap              bool // with accounting of swap
	Swappiness        bool
	OOMKillDisable    bool
	CPUShares         bool
	CPUQuota          bool
	CPUSet            bool
	Pids              bool
	BlockWeight       bool
	BlockWeightDevice bool
	BlockThrottle     bool
}

type thisHost struct {
	once      sync.Once
	found     Host
	noProfile sync.Once // limits the warning about a missing AppArmor profile
	logger    *slog.Logger
}

// get detects the host when the first container needs it: that starts a process.
func (h *thisHost) get(ctx context.Context) Host {
	h.once.Do(func() { h.found = DetectHost(context.WithoutCancel(ctx), "runc") })
	return h.found
}

// DetectHost inspects this device. runc is the OCI runtime's program, by name or path.
func DetectHost(ctx context.Context, runc string) Host {
	h := Host{
		Cgroups:           detectCgroups(),
		CgroupNamespace:   exists("/proc/self/ns/cgroup"),
		ReadOnlyBelow:     canReadOnlyBelow(),
		UnprivilegedPorts: exists("/proc/sys/net/ipv4/ip_unprivileged_port_start"),
		PingGroups:        exists("/proc/sys/net/ipv4/ping_group_range"),
		Seccomp:           exists("/proc/sys/kernel/seccomp/actions_avail") && runtimeHasSeccomp(ctx, runc),
		AppArmor:          firstWord(appArmorEnabled) == "Y",
		OpenFiles:         openFiles,
		Capabilities:      detectCapabilities(),
		CPUs:              firstWord("/sys/devices/system/cpu/online"),
	}
	if types, err := os.ReadFile("/proc/filesystems"); err == nil {
		h.MessageQueues = bytes.Contains(types, []byte("\tmqueue\n"))
	}
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err == nil {
		h.OpenFiles = min(h.OpenFiles, limit.Max)
	}
	h.MostOpenFiles, _ = strconv.ParseUint(firstWord("/proc/sys/fs/nr_open"), 10, 64) // 0: unknown
	threads, _ := strconv.ParseInt(firstWord("/proc/sys/kernel/threads-max"), 10, 64)
	numbers, _ := strconv.ParseInt(firstWord("/proc/sys/kernel/pid_max"), 10, 64)
	h.Processes = min(threads, numbers)                                                               // 0: unknown
	bfqDevices, _ := kernelversion.GreaterEqualThan(kernelversion.KernelVersion{Kernel: 5, Major: 4}) // false: unknown
	switch h.Cgroups {
	case CgroupsV1:
		h.Limits = limitsV1("/sys/fs/cgroup", bfqDevices)
	case CgroupsV2:
		h.Limits = limitsV2("/sys/fs/cgroup", bfqDevices)
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

// limitsV1 checks the controllers' files. bfqDevices: the kernel's BFQ has weights per device.
func limitsV1(root string, bfqDevices bool) Limits {
	has := func(names ...string) bool {
		return slices.ContainsFunc(names, func(name string) bool { return exists(filepath.Join(root, name)) })
	}
	bfq := has("blkio/blkio.bfq.io_serviced") // the weight itself exists only in child groups
	return Limits{
		Memory:            has("memory/memory.limit_in_bytes"),
		Swap:              has("memory/memory.memsw.limit_in_bytes"),
		Swappiness:        has("memory/memory.swappiness"),
		OOMKillDisable:    has("memory/memory.oom_control"),
		CPUShares:         has("cpu/cpu.shares"),
		CPUQuota:          has("cpu/cpu.cfs_quota_us"),
		CPUSet:            has("cpuset/cpuset.cpus", "cpuset/cpus"),
		Pids:              has("pids/cgroup.procs"),
		BlockWeight:       bfq || has("blkio/blkio.weight"),
		BlockWeightDevice: bfq && bfqDevices || has("blkio/blkio.weight_device"),
		BlockThrottle:     has("blkio/blkio.throttle.read_bps_device"),
	}
}

// limitsV2 checks the controllers, and child groups for files that not every kernel has.
func limitsV2(root string, bfqDevices bool) Limits {
	text, err := os.ReadFile(filepath.Join(root, "cgroup.controllers"))
	if err != nil {
		return Limits{}
	}
	controllers := strings.Fields(string(text))
	has := func(controller string) bool { return slices.Contains(controllers, controller) }
	below := func(file string) bool {
		found, _ := filepath.Glob(filepath.Join(root, "*", file)) // the pattern is valid
		return len(found) > 0
	}
	bfq := below("io.bfq.weight") || hasScheduler("bfq")
	return Limits{
		Memory: has("memory"),
		// If no group has the controller, it is assumed to work.
		Swap:              has("memory") && exists("/proc/swaps") && (below("memory.swap.max") || !below("memory.max")),
		CPUShares:         has("cpu"),
		CPUQuota:          has("cpu"),
		CPUSet:            has("cpuset"),
		Pids:              has("pids"),
		BlockWeight:       has("io") && (bfq || below("io.weight") || exists(filepath.Join(root, "io.cost.qos"))),
		BlockWeightDevice: has("io") && bfq && bfqDevices,
		BlockThrottle:     has("io"),
	}
}

func hasScheduler(name string) bool {
	files, _ := filepath.Glob("/sys/block/*/queue/scheduler") // the pattern is valid
	return slices.ContainsFunc(files, func(file string) bool {
		text, err := os.ReadFile(file)
		return err == nil && slices.Contains(strings.FieldsFunc(string(text), func(r rune) bool { return strings.ContainsRune(" []\n", r) }), name)
	})
}

// runtimeHasSeccomp asks the runtime: without seccomp it refuses every profile. runc prints
// "libseccomp: 2.5.4", crun "+SECCOMP". No answer counts as yes.
func runtimeHasSeccomp(ctx context.Context, runc string) bool {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, runc, "--version").Output()
	text := string(out)
	return err != nil || strings.Contains(text, "libseccomp:") || strings.Contains(text, "+SECCOMP")
}

// firstWord returns the first word of a small file of the kernel; "" if unreadable.
func firstWord(path string) string {
	text, _ := os.ReadFile(path)
	return append(strings.Fields(string(text)), "")[0]
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
