package capability

import "strings"

// gpus finds the graphics processors that can compute: those with a render
// node whose maker is known. The emulated ones of virtual machines are none.
func (m *machine) gpus() []GPU {
	const class = "sys/class/drm"
	var found []GPU
	for _, name := range m.list(class) {
		if !strings.HasPrefix(name, "renderD") {
			continue
		}
		gpu := GPU{Name: name, Driver: m.link(class, name, "device/driver")}
		if tree := m.line(class, name, "device/of_node/compatible"); tree != "" {
			maker, model, _ := strings.Cut(tree, ",")
			gpu.Vendor, gpu.Model = vendorName(maker), model
		} else {
			gpu.Vendor = pciVendor(m.line(class, name, "device/vendor"))
		}
		if gpu.Vendor != "" {
			found = append(found, gpu)
		}
	}
	return found
}

func pciVendor(id string) string {
	switch id {
	case "0x1002":
		return "AMD"
	case "0x10de":
		return "NVIDIA"
	case "0x8086":
		return "Intel"
	}
	return ""
}
