package capability

import (
	"cmp"
	"strings"
)

// displays finds displays on graphics cards, and small panels with only a framebuffer.
func (m *machine) displays() []Peripheral {
	const class, buffers = "sys/class/drm", "sys/class/graphics"
	var found []Peripheral
	for _, name := range m.list(class) {
		card, connector, isConnector := strings.Cut(name, "-")
		if !isConnector || !strings.HasPrefix(card, "card") || strings.HasPrefix(connector, "Virtual") || strings.HasPrefix(connector, "Writeback") ||
			m.line(class, name, "status") != "connected" {
			continue
		}
		vendor, model := edid(m.read(class, name, "edid"))
		found = append(found, Peripheral{Display, name, vendor, withoutVendor(vendor, model), m.link(class, card, "device/driver")})
	}
	for _, name := range m.list(buffers) {
		if model, isPanel := strings.CutPrefix(m.line(buffers, name, "name"), "fb_"); isPanel && strings.HasPrefix(name, "fb") { // of fbtft
			found = append(found, Peripheral{Display, name, "", model, m.link(buffers, name, "device/driver")})
		}
	}
	return found
}

// edid reads maker and name from a display's 128-byte block (VESA E-EDID 1.4); empty for other
// data.
func edid(block string) (vendor, model string) {
	const (
		header     = "\x00\xff\xff\xff\xff\xff\xff\x00"
		size       = 128
		descriptor = 18 // bytes; four of them from 54 on
		nameTag    = "\x00\x00\x00\xfc\x00"
	)
	if len(block) < size || !strings.HasPrefix(block, header) {
		return "", ""
	}
	// Three letters of five bits each, A is 1.
	packed := uint16(block[8])<<8 | uint16(block[9])
	var id [3]byte
	for i := range id {
		letter := byte(packed>>(10-5*i)) & 0x1f
		if letter < 1 || letter > 26 {
			return "", ""
		}
		id[i] = 'A' - 1 + letter
	}
	for at := 54; at+descriptor < size; at += descriptor {
		if text, isName := strings.CutPrefix(block[at:at+descriptor], nameTag); isName {
			text, _, _ = strings.Cut(text, "\n")
			model = shown(text)
		}
	}
	return displayVendor(string(id[:])), model
}

// displayVendor spells out common makers; others keep their three registered letters.
func displayVendor(id string) string {
	names := map[string]string{
		"ACR": "Acer", "AUO": "AU Optronics", "AUS": "ASUS", "BNQ": "BenQ", "BOE": "BOE", "DEL": "Dell", "ELO": "Elo", "ENC": "EIZO",
		"GSM": "LG", "HWP": "HP", "IVM": "iiyama", "LEN": "Lenovo", "NEC": "NEC", "PHL": "Philips", "SAM": "Samsung", "VSC": "ViewSonic",
	}
	return cmp.Or(names[id], id)
}
