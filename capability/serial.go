package capability

import (
	"path/filepath"
	"slices"
	"strings"
)

// serialPorts finds the RS-232 ports: UARTs described by a PC's firmware or PCI card, and USB
// converters. UARTs of a system on chip do not count: they have the chip's voltage, and nothing
// shows whether a board converts it. Nor do the kernel's consoles and modems.
func (m *machine) serialPorts() []Interface {
	const class = "sys/class/tty"
	consoles := strings.Fields(m.line(class, "console/active"))
	var found []Interface
	for _, name := range m.list(class) {
		d := m.device(class, name, "device")
		if !strings.HasPrefix(name, "tty") || !m.exists(d.dir) || slices.Contains(consoles, name) {
			continue // a virtual terminal or a kernel console
		}
		if m.isSerialPort(name, d) {
			found = append(found, Interface{RS232, name})
		}
	}
	return found
}

func (m *machine) isSerialPort(name string, d device) bool {
	const unknown = "0" // a place for a UART without one
	if d.subsystem() == "usb-serial" {
		switch d.driver() {
		case "option1", "qcserial", "sierra", "garmin_gps", "ipaq", "navman", "usb_debug", "":
			return false
		}
		return true
	}
	if kind := m.line("sys/class/tty", name, "type"); kind == "" || kind == unknown {
		return false
	}
	// Since Linux 6.5 a port and a controller of the serial core lie in between.
	for range 3 {
		switch d.subsystem() {
		case "pnp", "pci":
			return true
		case "serial-base":
			d.dir = m.below(filepath.Dir(d.real()))
		default:
			return false
		}
	}
	return false
}
