package compose

import (
	"cmp"
	"maps"
	"math"
	"path"
	"slices"
	"strconv"

	"github.com/compose-spec/compose-go/v2/types"
)

// resources reads the limits of a service and of its deploy section, which may not differ.
func (r *resolver) resources(s *Service, c types.ServiceConfig) {
	limits := cmp.Or(c.Deploy.Resources.Limits, &types.Resource{})
	reserved := cmp.Or(c.Deploy.Resources.Reservations, &types.Resource{})
	res := &s.Resources
	r.memory(res, c, limits, reserved)
	r.cpus(res, c, limits, reserved)
	res.Pids = oneOf(r, "pids_limit", c.PidsLimit, "deploy.resources.limits.pids", limits.Pids)
	res.OOMKillDisable = c.OomKillDisable
	blkio(res, c.BlkioConfig)
	if c.CgroupParent != "" {
		res.CgroupParent = path.Clean(c.CgroupParent)
	}
	s.ShmSize = int64(c.ShmSize)
}

func oneOf(r *resolver, key string, value int64, other string, otherValue int64) int64 {
	if value != 0 && otherValue != 0 && value != otherValue {
		r.refuse(key, "differs from %s", other)
	}
	return cmp.Or(otherValue, value)
}

func (r *resolver) memory(res *Resources, c types.ServiceConfig, limits, reserved *types.Resource) {
	res.Memory = oneOf(r, "mem_limit", int64(c.MemLimit), "deploy.resources.limits.memory", int64(limits.MemoryBytes))
	res.MemoryReservation = oneOf(r, "mem_reservation", int64(c.MemReservation), "deploy.resources.reservations.memory", int64(reserved.MemoryBytes))
	res.MemorySwap = int64(c.MemSwapLimit)
	switch {
	case res.MemorySwap > 0 && res.Memory == 0:
		r.refuse("memswap_limit", "needs mem_limit: it is the limit of memory and swap together")
	case res.MemorySwap > 0 && res.MemorySwap < res.Memory:
		r.refuse("memswap_limit", "is less than mem_limit: it is the limit of memory and swap together")
	}
	if res.Memory > 0 && res.MemoryReservation > res.Memory {
		r.refuse("mem_reservation", "is more than mem_limit")
	}
	if _, set := r.written["mem_swappiness"]; set { // 0 is a value of its own
		swappiness := uint64(c.MemSwappiness)
		res.Swappiness = &swappiness
	}
}

func (r *resolver) cpus(res *Resources, c types.ServiceConfig, limits, reserved *types.Resource) {
	res.NanoCPUs = oneOf(r, "cpus", r.nanoCPUs("cpus", c.CPUS),
		"deploy.resources.limits.cpus", r.nanoCPUs("deploy.resources.limits.cpus", float32(limits.NanoCPUs)))
	res.CPUReservation = r.nanoCPUs("deploy.resources.reservations.cpus", float32(reserved.NanoCPUs))
	res.CPUShares, res.CPUPeriod, res.CPUQuota = uint64(c.CPUShares), uint64(c.CPUPeriod), c.CPUQuota
	const most = 4096 * 1_000_000 // microseconds, of as many CPUs
	if res.CPUQuota != 0 && res.CPUQuota != -1 && (res.CPUQuota < 1000 || res.CPUQuota > most) {
		r.refuse("cpu_quota", "is %d, which is not between 1000 and %d", res.CPUQuota, int64(most))
	}
	if res.NanoCPUs != 0 && c.CPUPeriod != 0 {
		r.refuse("cpu_period", "cannot be combined with cpus")
	}
	if res.NanoCPUs != 0 && c.CPUQuota != 0 {
		r.refuse("cpu_quota", "cannot be combined with cpus")
	}
	res.CPUSet = c.CPUSet
}

// nanoCPUs is exact for decimal input: 0.1 is not quite 0.1 as a float32.
func (r *resolver) nanoCPUs(key string, cpus float32) int64 {
	exact, err := strconv.ParseFloat(strconv.FormatFloat(float64(cpus), 'f', -1, 32), 64)
	if err != nil || math.IsNaN(exact) || exact < 0 || exact > 4096 || exact > 0 && exact < 0.001 {
		r.refuse(key, "%v is not a number of CPUs", cpus)
		return 0
	}
	return int64(math.Round(exact * 1e9))
}

func blkio(res *Resources, c *types.BlkioConfig) {
	if c == nil {
		return
	}
	res.BlkioWeight = c.Weight
	devices := map[string]*BlkioDevice{}
	device := func(written string) *BlkioDevice {
		written = path.Clean(written)
		if devices[written] == nil {
			devices[written] = &BlkioDevice{Path: written}
		}
		return devices[written]
	}
	for _, w := range c.WeightDevice {
		device(w.Path).Weight = w.Weight
	}
	throttle := func(limits []types.ThrottleDevice, set func(d *BlkioDevice, rate uint64)) {
		for _, limit := range limits {
			set(device(limit.Path), uint64(limit.Rate))
		}
	}
	throttle(c.DeviceReadBps, func(d *BlkioDevice, rate uint64) { d.ReadBPS = rate })
	throttle(c.DeviceWriteBps, func(d *BlkioDevice, rate uint64) { d.WriteBPS = rate })
	throttle(c.DeviceReadIOps, func(d *BlkioDevice, rate uint64) { d.ReadIOPS = rate })
	throttle(c.DeviceWriteIOps, func(d *BlkioDevice, rate uint64) { d.WriteIOPS = rate })
	for _, at := range slices.Sorted(maps.Keys(devices)) {
		res.BlkioDevices = append(res.BlkioDevices, *devices[at])
	}
}
