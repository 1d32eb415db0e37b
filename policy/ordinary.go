package policy

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/containerd/containerd/v2/pkg/cap"
)

// DefaultAllow is what an ordinary Compose file may ask for, without taking over the device.
// packaging/config.yaml gives the reason for each entry.
func DefaultAllow() Allow {
	a := Allow{
		Namespaces:   map[string]bool{"network": true, "pid": false, "ipc": false, "uts": true, "cgroup": true},
		Mounts:       map[string]MountAccess{"/": MountBelow, "/dev": MountBelow, "/run": MountBelow},
		Devices:      map[string]bool{"*": true, "/": false, "/dev/*": true},
		Capabilities: map[string]bool{"*": true},
		Unconfined:   map[string]bool{"seccomp": false, "apparmor": false, "systempaths": false},
		Ports:        []PortRange{{1, 65535}},
		Registries:   []string{"*"},
		Tags:         true,
		Unsigned:     true, UnsignedImages: true,
	}
	for _, at := range []string{
		"/bin", "/boot", "/efi", "/etc", "/lib", "/lib32", "/lib64", "/libx32", "/ostree", "/overlay", "/proc", "/rom",
		"/root", "/sbin", "/sys", "/sysroot", "/usr", "/var/lib", "/var/spool/cron",
		"/run/containerd", "/run/crio", "/run/docker", "/run/docker.sock", "/run/initctl", "/run/k3s", "/run/libvirt",
		"/run/podman", "/run/snapd.socket", "/run/systemd",
	} {
		a.Mounts[at] = MountNever
	}
	for _, at := range []string{
		"/etc/ca-certificates", "/etc/group", "/etc/hostname", "/etc/hosts", "/etc/localtime", "/etc/machine-id",
		"/etc/os-release", "/etc/passwd", "/etc/resolv.conf", "/etc/ssl/certs", "/etc/timezone",
		"/lib/modules", "/usr/lib/modules", "/usr/lib/os-release", "/usr/share/ca-certificates", "/usr/share/zoneinfo",
		"/run/systemd/resolve",
	} {
		a.Mounts[at] = MountReadOnly
	}
	a.Mounts["/run/systemd/journal"] = MountAlways
	for _, d := range []string{
		"/dev/mem", "/dev/kmem", "/dev/port", "/dev/kcore", "/dev/core", "/dev/cpu",
		"/dev/sd*", "/dev/mmcblk*", "/dev/nvme*", "/dev/ng*", "/dev/vd*", "/dev/xvd*", "/dev/dm-*", "/dev/md[0-9]*", "/dev/loop*",
		"/dev/nbd*", "/dev/sg[0-9]*", "/dev/bsg", "/dev/mtd*", "/dev/ubi*", "/dev/pmem*",
		"/dev/block", "/dev/disk", "/dev/mapper",
		"b *:*", "c 1:1", "c 1:2", "c 1:4", "c 21:*", "c 90:*",
	} {
		a.Devices[d] = false
	}
	for _, c := range []string{
		"ALL", "BPF", "CHECKPOINT_RESTORE", "DAC_READ_SEARCH", "MAC_ADMIN", "MAC_OVERRIDE", "PERFMON",
		"SYSLOG", "SYS_ADMIN", "SYS_BOOT", "SYS_MODULE", "SYS_PTRACE", "SYS_RAWIO",
	} {
		a.Capabilities[c] = false
	}
	return a
}

// ordinary are the capabilities that containers have by default.
var ordinary = []string{
	"AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD", "NET_BIND_SERVICE", "NET_RAW",
	"SETFCAP", "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT",
}

// CheckCapability returns what is wrong with an entry of Allow.Capabilities.
func CheckCapability(name string) error {
	if name == "*" || name == "ALL" || slices.Contains(cap.Known(), "CAP_"+name) {
		return nil
	}
	return fmt.Errorf("expected a capability such as NET_ADMIN, or ALL or *, got %q", clip(name, maxHolder))
}

// CheckNamespace returns what is wrong with an entry of Allow.Namespaces.
func CheckNamespace(name string) error {
	return oneOf(name, "network", "pid", "ipc", "uts", "cgroup")
}

// CheckUnconfined returns what is wrong with an entry of Allow.Unconfined.
func CheckUnconfined(name string) error {
	return oneOf(name, "seccomp", "apparmor", "systempaths")
}

func oneOf(name string, names ...string) error {
	if slices.Contains(names, name) {
		return nil
	}
	return fmt.Errorf("expected one of %s, got %q", strings.Join(names, ", "), clip(name, maxHolder))
}

// PortRange is an inclusive range of ports.
type PortRange struct{ First, Last uint16 }

// String returns the range in the form that ParsePorts reads.
func (p PortRange) String() string {
	if p.First == p.Last {
		return strconv.Itoa(int(p.First))
	}
	return fmt.Sprintf("%d-%d", p.First, p.Last)
}

// ParsePorts reads a port or a range such as 8000-8999.
func ParsePorts(text string) (PortRange, error) {
	from, to, ranged := strings.Cut(text, "-")
	if !ranged {
		to = from
	}
	first, err := strconv.ParseUint(from, 10, 16)
	last, err2 := strconv.ParseUint(to, 10, 16)
	if err != nil || err2 != nil || first == 0 || last < first {
		return PortRange{}, fmt.Errorf("expected a port from 1 to 65535, or a range such as 8000-8999, got %q", clip(text, maxHolder))
	}
	return PortRange{uint16(first), uint16(last)}, nil
}
