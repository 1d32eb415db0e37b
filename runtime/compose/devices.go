package compose

import (
	"cmp"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/compose-spec/compose-go/v2/types"
	"github.com/opencontainers/runtime-spec/specs-go"
	"tags.cncf.io/container-device-interface/pkg/parser"
)

func (r *resolver) devices(s *Service, c types.ServiceConfig) {
	for _, d := range c.Devices {
		if isCDI(d.Source) {
			s.CDI = append(s.CDI, d.Source)
			continue
		}
		device := Device{
			Path:        path.Clean(d.Source),
			Target:      path.Clean(cmp.Or(d.Target, d.Source)),
			Permissions: cmp.Or(d.Permissions, "rwm"),
		}
		if !path.IsAbs(d.Source) || !path.IsAbs(device.Target) || strings.ContainsRune(d.Source+d.Target, 0) {
			r.refuse("devices", "has %.80q for %.80q; use absolute paths, or the name of a CDI device such as vendor.com/class=name", d.Source, device.Target)
		}
		s.Devices = append(s.Devices, device)
	}
	sortBy(s.Devices, func(a, b Device) int {
		return cmp.Or(cmp.Compare(a.Target, b.Target), cmp.Compare(a.Path, b.Path))
	})
	for _, rule := range c.DeviceCgroupRules {
		if _, ok := ParseDeviceRule(rule); !ok {
			r.refuse("device_cgroup_rules", "has %.80q; use a rule such as \"c 188:* rwm\"", rule)
		}
		s.DeviceRules = append(s.DeviceRules, rule)
	}
	for _, request := range c.Gpus {
		s.CDI = append(s.CDI, r.deviceRequest("gpus", request, true)...)
	}
	if c.Deploy.Resources.Reservations != nil {
		for _, request := range c.Deploy.Resources.Reservations.Devices {
			s.CDI = append(s.CDI, r.deviceRequest("deploy.resources.reservations.devices", request, false)...)
		}
	}
	slices.Sort(s.CDI)
	s.CDI = slices.Compact(s.CDI)
}

func (r *resolver) deviceRequest(key string, request types.DeviceRequest, gpu bool) []string {
	gpu = gpu || slices.Contains(request.Capabilities, "gpu") || slices.Contains(request.Capabilities, "nvidia")
	ids, kind := request.IDs, "nvidia.com/gpu="
	switch {
	case request.Driver == "cdi":
		if kind = ""; len(ids) == 0 {
			r.refuse(key, "names no device_ids for driver cdi")
		}
	case request.Driver == "" && !gpu:
		r.refuse(key+".capabilities", "%q are not supported, only gpu; for other devices use driver cdi", request.Capabilities)
		return nil
	case len(ids) > 0:
	case request.Count <= 0:
		ids = []string{"all"} // as NVIDIA's generator of CDI files calls all of them
	case request.Count > 64:
		r.refuse(key+".count", "is %d, which is more than any device has", request.Count)
	default:
		for n := range int(request.Count) {
			ids = append(ids, strconv.Itoa(n))
		}
	}
	var devices []string
	for _, id := range ids {
		if !isCDI(kind + id) {
			r.refuse(key+".device_ids", "has %.80q; use the name of a CDI device such as vendor.com/class=name, or the number of a GPU", id)
		}
		devices = append(devices, kind+id)
	}
	return devices
}

func isCDI(name string) bool { return len(name) <= 256 && parser.IsQualifiedName(name) }

var deviceRule = regexp.MustCompile(`^([abc]) ([0-9]+|\*):([0-9]+|\*) ([rwm]{1,3})$`)

// ParseDeviceRule parses a device_cgroup_rules entry, as c 188:* rwm: type, numbers, access.
func ParseDeviceRule(text string) (rule specs.LinuxDeviceCgroup, ok bool) {
	m := deviceRule.FindStringSubmatch(text)
	if m == nil {
		return rule, false
	}
	rule, ok = specs.LinuxDeviceCgroup{Allow: true, Type: m[1], Access: m[4]}, true
	number := func(text string) *int64 {
		if text == "*" {
			return nil
		}
		n, err := strconv.ParseInt(text, 10, 32)
		ok = ok && err == nil
		return &n
	}
	rule.Major, rule.Minor = number(m[2]), number(m[3])
	return rule, ok
}
