package container

import "github.com/opencontainers/runtime-spec/specs-go"

// What every container gets, the same as Docker gives.
var (
	defaultCapabilities = []string{
		"CAP_AUDIT_WRITE", "CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_FSETID", "CAP_KILL", "CAP_MKNOD",
		"CAP_NET_BIND_SERVICE", "CAP_NET_RAW", "CAP_SETFCAP", "CAP_SETGID", "CAP_SETPCAP", "CAP_SETUID", "CAP_SYS_CHROOT",
	}

	maskedPaths = []string{
		"/proc/acpi", "/proc/asound", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/scsi",
		"/proc/sched_debug", "/proc/timer_list", "/proc/timer_stats",
		"/sys/devices/virtual/powercap", "/sys/firmware",
	}

	readonlyPaths = []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"}

	deviceNumbers = []struct{ major, minor int64 }{
		{1, 3},    // null
		{1, 5},    // zero
		{1, 7},    // full
		{1, 8},    // random
		{1, 9},    // urandom
		{5, 0},    // tty
		{5, 1},    // console
		{5, 2},    // ptmx
		{136, -1}, // pts/*
	}
)

// deviceRules let every container have these devices and no others.
func deviceRules() []specs.LinuxDeviceCgroup {
	rules := []specs.LinuxDeviceCgroup{{Allow: false, Access: "rwm"}}
	for _, n := range deviceNumbers {
		rules = append(rules, device("c", n.major, n.minor, "rwm"))
	}
	return rules
}

// device is a rule that allows a device; a negative minor stands for all of them.
func device(kind string, major, minor int64, access string) specs.LinuxDeviceCgroup {
	rule := specs.LinuxDeviceCgroup{Allow: true, Type: kind, Major: &major, Access: access}
	if minor >= 0 {
		rule.Minor = &minor
	}
	return rule
}
