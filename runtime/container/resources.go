package container

import (
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/margolite/margolite/runtime/compose"
)

const (
	cpuPeriod    = 100_000 // microseconds
	minCPUQuota  = 1_000   // the kernel's minimum
	maxCPUNumber = 8192    // CONFIG_NR_CPUS of the largest kernels
)

// limiting builds the limits of one container, which Compose has validated. What Docker
// refuses on this device is an error; what Docker drops because the kernel lacks it, a
// warning.
type limiting struct {
	compose.Resources
	host Host
	warn func(string)
}

// resources uses terms of cgroup v1, which the OCI runtime translates to v2.
func resources(s *compose.Service, h Host, warn func(string)) (*specs.LinuxResources, error) {
	l := limiting{Resources: s.Resources, host: h, warn: warn}
	r := &specs.LinuxResources{Memory: l.memory(), Pids: l.processes()}
	var failed, err error
	r.CPU, failed = l.cpu()
	r.BlockIO, err = l.blockIO()
	return r, errors.Join(failed, err)
}

// processes leaves half of the device's: with none left, no one could end the container.
func (l *limiting) processes() *specs.LinuxPids {
	limit, most := asked(l, l.Pids, l.host.Pids, "pids_limit"), l.host.Processes/2 // 0: unknown
	if l.host.Pids && most > 0 && (limit == nil || *limit < 0 || *limit > most) {
		limit = &most
	}
	if limit == nil || *limit < 0 {
		return nil
	}
	return &specs.LinuxPids{Limit: limit}
}

// can reports whether the kernel supports a limit, and warns if not.
func (l *limiting) can(able bool, keys string) bool {
	if !able {
		l.warn(keys + " has no effect: the kernel of this device does not support it, or has it disabled")
	}
	return able
}

// asked returns a value that is set (not 0) and supported by the kernel, else nil.
func asked[T comparable](l *limiting, value T, able bool, key string) *T {
	var none T
	if value == none || !l.can(able, key) {
		return nil
	}
	return &value
}

func (l *limiting) memory() *specs.LinuxMemory {
	m := &specs.LinuxMemory{
		Limit:            asked(l, l.Memory, l.host.Memory, "mem_limit"),
		Reservation:      asked(l, l.MemoryReservation, l.host.Memory, "mem_reservation"),
		DisableOOMKiller: asked(l, l.OOMKillDisable, l.host.OOMKillDisable, "oom_kill_disable"),
	}
	switch {
	case m.Limit == nil && l.MemorySwap >= 0:
	case l.MemorySwap == 0 && l.host.Swap && l.Memory < math.MaxInt64/2:
		twice := 2 * l.Memory // as in Docker: as much swap as memory
		m.Swap = &twice
	case l.MemorySwap != 0 && l.can(l.host.Swap, "memswap_limit"):
		m.Swap = &l.MemorySwap
	}
	if l.Swappiness != nil && l.can(l.host.Swappiness, "mem_swappiness") {
		m.Swappiness = l.Swappiness
	}
	if *m == (specs.LinuxMemory{}) {
		return nil
	}
	return m
}

func (l *limiting) cpu() (*specs.LinuxCPU, error) {
	c := &specs.LinuxCPU{Shares: asked(l, l.CPUShares, l.host.CPUShares, "cpu_shares")}
	if err := l.checkCPUSet(); err != nil {
		return nil, err
	}
	if (l.NanoCPUs > 0 || l.CPUPeriod > 0 || l.CPUQuota > 0) && l.can(l.host.CPUQuota, "cpus, cpu_quota") {
		period, quota := l.CPUPeriod, l.CPUQuota
		if l.NanoCPUs > 0 {
			period = cpuPeriod
			quota = max(l.NanoCPUs/(1e9/cpuPeriod), minCPUQuota)
		}
		if period > 0 {
			c.Period = &period
		}
		if quota > 0 {
			c.Quota = &quota
		}
	}
	if l.CPUSet != "" && l.can(l.host.CPUSet, "cpuset") {
		c.Cpus = l.CPUSet
	}
	if *c == (specs.LinuxCPU{}) {
		return nil, nil
	}
	return c, nil
}

func (l *limiting) checkCPUSet() error {
	if l.CPUSet == "" || !l.host.CPUSet {
		return nil
	}
	wanted, err := parseCPUs(l.CPUSet)
	if err != nil {
		return fmt.Errorf("cpuset: %w", err)
	}
	there, err := parseCPUs(l.host.CPUs)
	if err != nil {
		return nil // let the kernel report it
	}
	for _, cpu := range wanted {
		if !slices.Contains(there, cpu) {
			return fmt.Errorf("cpuset: is %.40q, but the device has CPUs %s", l.CPUSet, l.host.CPUs)
		}
	}
	return nil
}

// parseCPUs parses a list of CPUs in the kernel's format: 0-3,5.
func parseCPUs(list string) ([]int, error) {
	var cpus []int
	for part := range strings.SplitSeq(strings.TrimSpace(list), ",") {
		low, high, ranged := strings.Cut(part, "-")
		if !ranged {
			high = low
		}
		from, err := strconv.ParseUint(low, 10, 16)
		to, err2 := strconv.ParseUint(high, 10, 16)
		if err != nil || err2 != nil || from > to || to >= maxCPUNumber {
			return nil, fmt.Errorf("%.40q is not a list of CPUs such as 0-3,5", list)
		}
		for cpu := from; cpu <= to; cpu++ {
			if len(cpus) >= maxCPUNumber {
				return nil, fmt.Errorf("%.40q is too long for a list of CPUs", list)
			}
			cpus = append(cpus, int(cpu))
		}
	}
	return cpus, nil
}

func (l *limiting) blockIO() (*specs.LinuxBlockIO, error) {
	b := &specs.LinuxBlockIO{Weight: asked(l, l.BlkioWeight, l.host.BlockWeight, "blkio_config.weight")}
	for _, d := range l.BlkioDevices {
		w := asked(l, d.Weight, l.host.BlockWeightDevice, "blkio_config.weight_device")
		throttled := d.ReadBPS|d.WriteBPS|d.ReadIOPS|d.WriteIOPS != 0
		throttled = throttled && l.can(l.host.BlockThrottle, "blkio_config.device_...")
		if w == nil && !throttled {
			continue
		}
		node, err := nodeAt(d.Path)
		if err != nil {
			return nil, fmt.Errorf("blkio_config: %w", err)
		}
		if node.Type != "b" {
			return nil, fmt.Errorf("blkio_config: %s is not a block device", d.Path)
		}
		if w != nil {
			device := specs.LinuxWeightDevice{Weight: w}
			device.Major, device.Minor = node.Major, node.Minor
			b.WeightDevice = append(b.WeightDevice, device)
		}
		throttle := func(to *[]specs.LinuxThrottleDevice, rate uint64) {
			if throttled && rate != 0 {
				device := specs.LinuxThrottleDevice{Rate: rate}
				device.Major, device.Minor = node.Major, node.Minor
				*to = append(*to, device)
			}
		}
		throttle(&b.ThrottleReadBpsDevice, d.ReadBPS)
		throttle(&b.ThrottleWriteBpsDevice, d.WriteBPS)
		throttle(&b.ThrottleReadIOPSDevice, d.ReadIOPS)
		throttle(&b.ThrottleWriteIOPSDevice, d.WriteIOPS)
	}
	if reflect.ValueOf(*b).IsZero() {
		return nil, nil
	}
	return b, nil
}

const openFilesLimit = "RLIMIT_NOFILE"

// rlimits sets a limit of open files for every container, and those of the service.
func rlimits(s *compose.Service, h Host) ([]specs.POSIXRlimit, error) {
	files := min(uint64(openFiles), h.OpenFiles)
	limits := []specs.POSIXRlimit{{Type: openFilesLimit, Soft: min(softFiles, files), Hard: files}}
	for _, u := range s.Ulimits {
		kind := "RLIMIT_" + strings.ToUpper(u.Name)
		limit := specs.POSIXRlimit{Type: kind, Soft: rlimit(u.Soft), Hard: rlimit(u.Hard)}
		if kind == openFilesLimit && h.MostOpenFiles > 0 && limit.Hard > h.MostOpenFiles {
			return nil, fmt.Errorf("ulimits: nofile is %d; the kernel allows %d (fs.nr_open)", u.Hard, h.MostOpenFiles)
		}
		limits = slices.DeleteFunc(limits, func(l specs.POSIXRlimit) bool { return l.Type == kind })
		limits = append(limits, limit)
	}
	return limits, nil
}

// rlimit returns a limit as the kernel has it: the largest number means none.
func rlimit(n int64) uint64 {
	if n < 0 {
		return math.MaxUint64
	}
	return uint64(n)
}
