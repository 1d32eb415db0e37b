package capability

import (
	"strconv"
	"strings"
)

func (m *machine) cpu(architecture string, l limits) CPU {
	info := m.read("proc/cpuinfo")
	cpu := CPU{
		Architecture: architecture,
		Cores:        float64(countList(m.line("sys/devices/system/cpu/online"))),
	}
	for _, name := range []string{"model name", "cpu model", "uarch"} { // most, MIPS, RISC-V
		if cpu.Model == "" {
			cpu.Model = property(info, name, ":")
		}
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
