package compose

import (
	"cmp"
	"fmt"
	"path"
	"regexp"
	"slices"
	"sort"
	"strings"

	"github.com/compose-spec/compose-go/v2/types"
)

var (
	// As the Container Device Interface has the names of devices.
	cdiName    = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_.-]*[A-Za-z0-9]/[A-Za-z]([A-Za-z0-9_-]*[A-Za-z0-9])?=[A-Za-z0-9]([A-Za-z0-9_.:-]*[A-Za-z0-9])?$`)
	deviceRule = regexp.MustCompile(`^[acb] ([0-9]+|\*):([0-9]+|\*) [rwm]{1,3}$`)
)

// allGPUs is what NVIDIA's generator of CDI files calls all of them.
const allGPUs = "nvidia.com/gpu=all"

// devices resolves device nodes, and devices that a CDI file of the device
// describes.
func (r *resolver) devices(s *Service, c types.ServiceConfig) {
	if !r.few("devices", len(c.Devices)) || !r.few("device_cgroup_rules", len(c.DeviceCgroupRules)) || !r.few("gpus", len(c.Gpus)) {
		return
	}
	for _, d := range c.Devices {
		if len(d.Source) <= 256 && cdiName.MatchString(d.Source) {
			s.CDI = append(s.CDI, d.Source)
			continue
		}
		device := Device{
			Path:        path.Clean(d.Source),
			Target:      path.Clean(cmp.Or(d.Target, d.Source)),
			Permissions: cmp.Or(d.Permissions, "rwm"),
		}
		switch {
		case !path.IsAbs(d.Source) || !path.IsAbs(device.Target) || strings.ContainsRune(d.Source+d.Target, 0):
			r.refuse("devices", "has %.80q for %.80q; use absolute paths, or the name of a CDI device such as vendor.com/class=name", d.Source, device.Target)
		case strings.Trim(device.Permissions, "rwm") != "" || len(device.Permissions) > 3:
			r.refuse("devices", "has permissions %.80q for %s; use some of r, w and m", device.Permissions, d.Source)
		}
		s.Devices = append(s.Devices, device)
	}
	sort.SliceStable(s.Devices, func(i, j int) bool {
		a, b := s.Devices[i], s.Devices[j]
		return cmp.Or(cmp.Compare(a.Target, b.Target), cmp.Compare(a.Path, b.Path)) < 0
	})
	for _, rule := range c.DeviceCgroupRules {
		if !deviceRule.MatchString(rule) || len(rule) > 64 {
			r.refuse("device_cgroup_rules", "has %.80q; use a rule such as \"c 188:* rwm\"", rule)
		}
		s.DeviceRules = append(s.DeviceRules, rule)
	}
	for _, request := range c.Gpus {
		s.CDI = append(s.CDI, r.deviceRequest("gpus", request, true)...)
	}
	if c.Deploy != nil && c.Deploy.Resources.Reservations != nil {
		for _, request := range c.Deploy.Resources.Reservations.Devices {
			s.CDI = append(s.CDI, r.deviceRequest("deploy.resources.reservations.devices", request, false)...)
		}
	}
	slices.Sort(s.CDI)
	s.CDI = slices.Compact(s.CDI)
}

// deviceRequest turns a request for devices into names of CDI devices.
func (r *resolver) deviceRequest(key string, request types.DeviceRequest, gpu bool) []string {
	gpu = gpu || slices.Contains(request.Capabilities, "gpu") || slices.Contains(request.Capabilities, "nvidia")
	switch {
	case request.Driver == "cdi":
		for _, id := range request.IDs {
			if len(id) > 256 || !cdiName.MatchString(id) {
				r.refuse(key+".device_ids", "has %.80q; use the name of a CDI device such as vendor.com/class=name", id)
			}
		}
		if len(request.IDs) == 0 {
			r.refuse(key, "names no device_ids for driver cdi")
		}
		return request.IDs
	case request.Driver != "" && request.Driver != "nvidia":
		r.refuse(key+".driver", "%.80q is not supported, only nvidia and cdi", request.Driver)
		return nil
	case request.Driver == "" && !gpu:
		r.refuse(key+".capabilities", "%q are not supported, only gpu; for other devices use driver cdi", request.Capabilities)
		return nil
	case len(request.IDs) > 0:
		var devices []string
		for _, id := range request.IDs {
			name := "nvidia.com/gpu=" + id
			if len(id) > 128 || !cdiName.MatchString(name) {
				r.refuse(key+".device_ids", "has %.80q, which is not a device", id)
			}
			devices = append(devices, name)
		}
		return devices
	case request.Count <= 0:
		return []string{allGPUs}
	case request.Count > 64:
		r.refuse(key+".count", "is %d, which is more than any device has", request.Count)
		return nil
	}
	var devices []string
	for n := range int(request.Count) {
		devices = append(devices, fmt.Sprintf("nvidia.com/gpu=%d", n))
	}
	return devices
}
