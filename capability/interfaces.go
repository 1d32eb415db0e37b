package capability

import (
	"slices"
	"strings"
)

// Kind is a kind of interface.
type Kind string

// The kinds of interfaces.
const (
	Ethernet  Kind = "ethernet"
	WiFi      Kind = "wifi"
	Cellular  Kind = "cellular"
	Bluetooth Kind = "bluetooth"
	USB       Kind = "usb"
	CANBus    Kind = "canbus"
	RS232     Kind = "rs232"
)

// Types of network interfaces as the kernel numbers them (ARPHRD_*).
const (
	typeEthernet = "1"
	typeCAN      = "280"
	typeRawIP    = "519" // the data channel of a modem
)

// interfaces finds the interfaces that lead out of the machine.
func (m *machine) interfaces() []Interface {
	const class = "sys/class"
	var found []Interface
	radios := map[string]bool{}
	for _, name := range m.list(class, "net") {
		if kind := m.networkKind(name); kind != "" {
			found = append(found, Interface{kind, name})
			radios[m.link(class, "net", name, "phy80211")] = true
		}
	}
	for _, name := range m.list(class, "ieee80211") {
		if !radios[name] { // switched off, as OpenWrt's are at first
			found = append(found, Interface{WiFi, name})
		}
	}
	for _, name := range m.list(class, "usbmisc") {
		if strings.HasPrefix(name, "cdc-wdm") && !slices.ContainsFunc(found, func(i Interface) bool { return i.Kind == Cellular }) { // a modem that has no network yet
			found = append(found, Interface{Cellular, name})
		}
	}
	for _, name := range m.list(class, "bluetooth") {
		if strings.HasPrefix(name, "hci") && !strings.Contains(name, ":") { // a controller, not one of its connections
			found = append(found, Interface{Bluetooth, name})
		}
	}
	for _, name := range m.list("sys/bus/usb/devices") {
		if strings.HasPrefix(name, "usb") { // a root hub
			found = append(found, Interface{USB, name})
		}
	}
	return append(found, m.serialPorts()...)
}

// networkKind returns what is behind a network interface; "" for virtual ones (loopback, bridges,
// veth, tun, VLANs, ifb, vcan), which have no device.
func (m *machine) networkKind(name string) Kind {
	const class = "sys/class/net"
	if !m.exists(class, name, "device") {
		return ""
	}
	number := m.line(class, name, "type")
	driver := m.link(class, name, "device/driver")
	switch devtype := property(m.read(class, name, "uevent"), "DEVTYPE", "="); {
	case devtype == "wlan" || m.exists(class, name, "phy80211") || m.exists(class, name, "wireless"):
		return WiFi
	case devtype == "wwan" || number == typeRawIP || isModemDriver(driver):
		return Cellular
	case devtype == "bluetooth": // a personal area network over a controller that is counted already
		return ""
	case devtype == "gadget": // the machine's own USB port playing a network card
		return USB
	case number == typeCAN:
		return CANBus
	case number == typeEthernet:
		return Ethernet
	}
	return ""
}

// isModemDriver knows modem drivers whose interfaces look like Ethernet.
func isModemDriver(driver string) bool {
	return slices.Contains([]string{"qmi_wwan", "cdc_mbim", "huawei_cdc_ncm", "sierra_net", "hso", "kalmia"}, driver)
}

// wiredAddress returns the hardware address of the first wired interface with a factory address.
func (m *machine) wiredAddress() string {
	const class, permanent, none = "sys/class/net", "0", "00:00:00:00:00:00"
	for _, name := range m.list(class) {
		if m.networkKind(name) != Ethernet || m.line(class, name, "addr_assign_type") != permanent {
			continue
		}
		if address := m.line(class, name, "address"); address != "" && address != none {
			return address
		}
	}
	return ""
}
