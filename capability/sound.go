package capability

import (
	"cmp"
	"strings"
)

// sound finds microphones and speakers: ALSA cards that can record, and those that can play, each
// once per kind. Streams that only pass sound on do not count: outputs to a display or optical
// cable, internal links of a system on chip, and software cards.
func (m *machine) sound() []Peripheral {
	const class = "sys/class/sound"
	records, plays := m.streams()
	var found []Peripheral
	for _, name := range m.list(class) {
		number, isCard := strings.CutPrefix(name, "card")
		if !isCard || !m.exists(class, name, "device") || !records[number] && !plays[number] {
			continue
		}
		d := m.device(class, name, "device")
		card := Peripheral{Name: name, Driver: d.driver()}
		title := m.cardName(number)
		if card.Driver == "snd_aloop" || card.Driver == "snd_dummy" || leadsElsewhere(title) {
			continue
		}
		vendor, model, isUSB := d.usb()
		switch {
		case isUSB:
			card.Vendor, card.Model = vendor, model
		case d.isPCI():
			card.Vendor, card.Model = d.pci()
		default:
			card.Model = title
		}
		card.Model = withoutVendor(card.Vendor, card.Model)
		if records[number] {
			card.Kind = Microphone
			found = append(found, card)
		}
		if plays[number] {
			card.Kind = Speaker
			found = append(found, card)
		}
	}
	return found
}

// streams reads the cards that record and play: "00-03: HDMI 0 : HDMI 0 : playback 1".
func (m *machine) streams() (records, plays map[string]bool) {
	records, plays = map[string]bool{}, map[string]bool{}
	for line := range strings.Lines(m.read("proc/asound/pcm")) {
		address, rest, ok := strings.Cut(line, ":")
		card, _, isStream := strings.Cut(address, "-")
		if !ok || !isStream || leadsElsewhere(rest) {
			continue
		}
		card = cmp.Or(strings.TrimLeft(card, "0"), "0")
		records[card] = records[card] || strings.Contains(rest, ": capture ")
		plays[card] = plays[card] || strings.Contains(rest, ": playback ")
	}
	return records, plays
}

// leadsElsewhere reports that a stream has no microphone or speaker at its end.
func leadsElsewhere(stream string) bool {
	stream = strings.ToLower(stream)
	for _, word := range []string{"hdmi", "displayport", "iec958", "s/pdif", "spdif", "digital", "admaif", "loopback"} {
		if strings.Contains(stream, word) {
			return true
		}
	}
	return false
}

// cardName returns the name of a card, from lines such as
// " 0 [Headphones     ]: bcm2835_headpho - bcm2835 Headphones".
func (m *machine) cardName(number string) string {
	for line := range strings.Lines(m.read("proc/asound/cards")) {
		id, rest, ok := strings.Cut(line, "[")
		if !ok || strings.TrimSpace(id) != number {
			continue
		}
		if _, name, ok := strings.Cut(rest, " - "); ok {
			return shown(name)
		}
	}
	return ""
}
