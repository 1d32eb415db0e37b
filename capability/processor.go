package capability

import (
	"strconv"
	"strings"
)

func (m *machine) cpu(architecture string, l limits) CPU {
	info := m.read("proc/cpuinfo")
	cpu := CPU{
		Architecture: architecture,
		Variant:      variant(architecture, info),
		Cores:        float64(countList(m.line("sys/devices/system/cpu/online"))),
	}
	for _, name := range []string{"model name", "cpu model", "uarch"} { // most, MIPS, RISC-V
		if cpu.Model == "" {
			cpu.Model = property(info, name, ":")
		}
	}
	if part := armModel(property(info, "CPU implementer", ":"), property(info, "CPU part", ":")); part != "" {
		cpu.Model = part
	}
	if cpu.Cores == 0 { // a kernel without sysfs for processors
		for line := range strings.Lines(info) {
			if key, _, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(key) == "processor" {
				cpu.Cores++
			}
		}
	}
	if cpu.Cores == 0 {
		m.fail("cannot count processors: neither sysfs nor procfs tells of any")
	}
	if l.cpus > 0 {
		cpu.Cores = min(cpu.Cores, float64(l.cpus))
	}
	if l.cores > 0 {
		cpu.Cores = min(cpu.Cores, l.cores)
	}
	return cpu
}

// variant is which instructions of 32-bit ARM there are, as images name it: v6,
// v7, v8. The ARM11 of a Raspberry Pi Zero is a v6 that calls itself a v7.
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

// armModel names a core of ARM by the numbers that the kernel tells: on 64 bit
// it tells no name.
func armModel(implementer, part string) string {
	if implementer != "0x41" { // Arm itself
		return ""
	}
	models := map[string]string{
		"0xb76": "ARM1176", "0xc05": "Cortex-A5", "0xc07": "Cortex-A7", "0xc08": "Cortex-A8", "0xc09": "Cortex-A9", "0xc0f": "Cortex-A15",
		"0xd03": "Cortex-A53", "0xd04": "Cortex-A35", "0xd05": "Cortex-A55", "0xd07": "Cortex-A57", "0xd08": "Cortex-A72",
		"0xd09": "Cortex-A73", "0xd0a": "Cortex-A75", "0xd0b": "Cortex-A76", "0xd0c": "Neoverse-N1", "0xd41": "Cortex-A78", "0xd42": "Cortex-A78AE",
	}
	return models[part]
}

// architecture is what the kernel calls the machine, where it does (Linux 6.1).
func (m *machine) architecture() string { return m.line("proc/sys/kernel/arch") }

// memory is in bytes.
func (m *machine) memory(l limits) uint64 {
	total := property(m.read("proc/meminfo"), "MemTotal", ":")
	kib, err := strconv.ParseUint(strings.TrimSuffix(total, " kB"), 10, 53)
	if err != nil {
		m.fail("cannot find out the size of the memory: %w", err)
		return l.memory
	}
	if memory := kib << 10; l.memory == 0 || memory < l.memory {
		return memory
	}
	return l.memory
}
