package capability

import (
	"context"
	"errors"
	"strings"

	"github.com/shirou/gopsutil/v4/common"
	"github.com/shirou/gopsutil/v4/cpu"
	"github.com/shirou/gopsutil/v4/mem"
)

// rooted makes gopsutil read the machine's files, whatever HOST_PROC and the like say. It reads
// procfs without a bound: only the kernel writes there.
func (m *machine) rooted(ctx context.Context) context.Context {
	return context.WithValue(ctx, common.EnvKey, common.EnvMap{
		common.HostProcEnvKey: m.path("proc"),
		common.HostSysEnvKey:  m.path("sys"),
	})
}

func (m *machine) cpu(ctx context.Context, architecture string, l limits) CPU {
	c := CPU{
		Architecture: architecture,
		Variant:      variant(architecture, m.read("proc/cpuinfo")),
		Cores:        float64(countList(m.line("sys/devices/system/cpu/online"))),
	}
	if c.Cores == 0 { // a kernel without sysfs for processors
		n, _ := cpu.CountsWithContext(m.rooted(ctx), true)
		c.Cores = float64(n)
	}
	if c.Cores == 0 {
		m.fail("cannot count processors: neither sysfs nor procfs lists any")
	}
	if l.cores > 0 {
		c.Cores = min(c.Cores, l.cores)
	}
	return c
}

// variant returns the 32-bit ARM variant in the notation of images: v6, v7 or v8. The ARM11 of a
// Raspberry Pi Zero is a v6 that calls itself a v7.
func variant(architecture, info string) string {
	if architecture != "arm" && !strings.HasPrefix(architecture, "armv") {
		return ""
	}
	version := property(info, "CPU architecture", ":")
	switch {
	case strings.HasPrefix(property(info, "model name", ":"), "ARMv6"):
		return "v6"
	case version == "7" || version == "8" || version == "6":
		return "v" + version
	case version == "AArch64":
		return "v8"
	}
	return ""
}

// architecture returns the kernel's name of the architecture (since Linux 6.1).
func (m *machine) architecture() string { return m.line("proc/sys/kernel/arch") }

// memory is in bytes.
func (m *machine) memory(ctx context.Context, l limits) uint64 {
	memory, err := mem.VirtualMemoryWithContext(m.rooted(ctx))
	if err == nil && memory.Total == 0 {
		err = errors.New("not found in procfs")
	}
	if err != nil {
		m.fail("cannot determine the size of the memory: %w", err)
		return l.memory
	}
	return least(memory.Total, l.memory)
}
