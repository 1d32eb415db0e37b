package capability

import (
	"cmp"
	"path/filepath"
	"strings"
)

type device struct {
	m   *machine
	dir string // below the root
}

func (m *machine) device(elements ...string) device {
	return device{m, filepath.Join(elements...)}
}

// real returns the directory with links resolved, which identifies a device; "" if there is none.
func (d device) real() string {
	dir, err := filepath.EvalSymlinks(d.m.path(d.dir))
	if err != nil {
		return ""
	}
	return dir
}

func (d device) driver() string { return d.m.link(d.dir, "driver") }

func (d device) subsystem() string { return d.m.link(d.dir, "subsystem") }

// slot returns the device's name on its bus, such as 0000:00:02.0 on PCI.
func (d device) slot() string { return filepath.Base(d.real()) }

// node returns the device's name in the device tree, such as npu for npu@38500000.
func (d device) node() string {
	name, _, _ := strings.Cut(d.m.link(d.dir, "of_node"), "@")
	return name
}

// compatible returns the device tree's names for a device, most specific first.
func (d device) compatible() []string { return d.m.texts(d.dir, "of_node/compatible") }

func (d device) isPCI() bool { return strings.HasPrefix(d.m.line(d.dir, "vendor"), "0x") }

// pci names a PCI device from udev's database if udev runs; otherwise the model is the two ids,
// such as 8086:46d1. An unknown vendor is "".
func (d device) pci() (vendor, model string) {
	vendorID, deviceID := d.m.line(d.dir, "vendor"), d.m.line(d.dir, "device")
	names := map[string]string{
		"0x1002": "AMD", "0x1022": "AMD", "0x10de": "NVIDIA", "0x17cb": "Qualcomm", "0x1ac1": "Google", "0x1da3": "Habana",
		"0x1e60": "Hailo", "0x8086": "Intel",
	}
	vendor = names[vendorID]
	model = property(d.m.read("run/udev/data/+pci:"+d.slot()), "E:ID_MODEL_FROM_DATABASE", "=")
	if model = shown(model); model == "" && vendorID != "" {
		model = strings.TrimPrefix(vendorID, "0x") + ":" + strings.TrimPrefix(deviceID, "0x")
	}
	return vendor, model
}

// usb names a USB device by its own strings. A class device, such as a camera, is an interface of
// it.
func (d device) usb() (vendor, model string, ok bool) {
	for _, dir := range []string{d.real(), filepath.Dir(d.real())} {
		at := d.m.below(dir)
		if at == "" || !d.m.exists(at, "idVendor") {
			continue
		}
		return d.m.line(at, "manufacturer"), cmp.Or(d.m.line(at, "product"), d.m.line(at, "idVendor")+":"+d.m.line(at, "idProduct")), true
	}
	return "", "", false
}
