package capability

import (
	"cmp"
	"encoding/json"
	"slices"
	"strings"
)

// identity asks the firmware's tables, then the device tree, then the distribution.
func (m *machine) identity() Identity {
	id := Identity{
		MachineID:       m.machineID(),
		HardwareAddress: m.wiredAddress(),
		Hostname:        cmp.Or(m.line("proc/sys/kernel/hostname"), m.line("etc/hostname")),
	}
	for _, source := range []func() Identity{m.fromDMI, m.fromDeviceTree, m.fromOpenWrt} {
		s := source()
		id.Vendor = cmp.Or(id.Vendor, s.Vendor)
		id.Model = cmp.Or(id.Model, s.Model)
		id.SerialNumber = cmp.Or(id.SerialNumber, s.SerialNumber)
	}
	return id
}

// fromDMI reads a PC's firmware: the system, else its board.
func (m *machine) fromDMI() Identity {
	field := func(name string) string {
		return meant(m.line("sys/class/dmi/id", name))
	}
	return Identity{
		Vendor:       cmp.Or(field("sys_vendor"), field("board_vendor")),
		Model:        cmp.Or(field("product_name"), field("board_name")),
		SerialNumber: cmp.Or(field("product_serial"), field("board_serial")),
	}
}

// meant drops placeholders that makers leave in their firmware.
func meant(text string) string {
	placeholders := []string{
		"0", "123456789", "default", "default string", "empty", "invalid", "n/a", "na", "none", "not applicable",
		"not available", "not specified", "o.e.m.", "oem", "standard", "system manufacturer", "system product name",
		"system serial number", "to be filled by o.e.m.", "undefined", "unknown", "xxxxxxx",
	}
	if slices.Contains(placeholders, strings.ToLower(text)) || strings.Trim(text, "0-. ") == "" {
		return ""
	}
	return text
}

// fromDeviceTree reads the device tree, and the processor's serial number, which stands for the
// board's if the boot loader passes it on.
func (m *machine) fromDeviceTree() Identity {
	maker, _, _ := strings.Cut(m.line(deviceTree, "compatible"), ",")
	return Identity{
		Vendor:       vendorName(maker),
		Model:        m.line(deviceTree, "model"),
		SerialNumber: cmp.Or(meant(m.line(deviceTree, "serial-number")), meant(property(m.read("proc/cpuinfo"), "Serial", ":"))),
	}
}

// deviceTree is the tree that the kernel was booted with.
const deviceTree = "sys/firmware/devicetree/base"

// chip returns the system on chip: the last and most general name of a device tree's board.
func (m *machine) chip() (vendor, model string) {
	names := m.texts(deviceTree, "compatible")
	if len(names) == 0 {
		return "", ""
	}
	maker, part, _ := strings.Cut(names[len(names)-1], ",")
	return vendorName(maker), strings.ToUpper(part)
}

// vendorName spells out common vendor prefixes of device trees.
func vendorName(prefix string) string {
	names := map[string]string{
		"allwinner": "Allwinner", "amlogic": "Amlogic", "arm": "Arm", "asus": "ASUS", "bananapi": "Banana Pi", "beagle": "BeagleBoard.org",
		"brcm": "Broadcom", "fsl": "NXP", "friendlyarm": "FriendlyElec", "glinet": "GL.iNet", "hardkernel": "Hardkernel",
		"img": "Imagination", "khadas": "Khadas", "libretech": "Libre Computer", "linksys": "Linksys", "linux": "Linux", "mediatek": "MediaTek",
		"netgear": "NETGEAR", "nvidia": "NVIDIA", "nxp": "NXP", "olimex": "Olimex", "openwrt": "OpenWrt", "phytec": "PHYTEC", "pine64": "PINE64",
		"qcom": "Qualcomm", "radxa": "Radxa", "raspberrypi": "Raspberry Pi", "rockchip": "Rockchip", "seeed": "Seeed Studio",
		"siemens": "Siemens", "solidrun": "SolidRun", "st": "STMicroelectronics", "starfive": "StarFive", "technexion": "TechNexion",
		"ti": "Texas Instruments", "toradex": "Toradex", "tplink": "TP-Link", "ubnt": "Ubiquiti", "variscite": "Variscite", "vivante": "Vivante",
		"xlnx": "AMD", "xunlong": "Xunlong",
	}
	return cmp.Or(names[prefix], prefix)
}

// fromOpenWrt reads the board description that OpenWrt creates at its first start.
func (m *machine) fromOpenWrt() Identity {
	data := m.read("etc/board.json")
	if data == "" {
		return Identity{}
	}
	var board struct {
		Model struct{ ID, Name string }
	}
	if err := json.Unmarshal([]byte(data), &board); err != nil {
		m.fail("cannot read /etc/board.json: %w", err)
		return Identity{}
	}
	maker, _, isList := strings.Cut(board.Model.ID, ",")
	if !isList {
		maker = ""
	}
	return Identity{Vendor: vendorName(maker), Model: board.Model.Name}
}

// machineID returns the id of the installed system: 32 hex digits.
func (m *machine) machineID() string {
	for _, path := range []string{"etc/machine-id", "var/lib/dbus/machine-id"} {
		id := m.line(path)
		if len(id) == 32 && strings.Trim(id, "0123456789abcdef") == "" && strings.Trim(id, "0") != "" {
			return id
		}
	}
	return ""
}
