package capability

import "strings"

// cameras finds webcams by their V4L2 node and image sensors on the I2C bus by their driver, since
// the nodes of a video pipeline describe its parts and not the sensor. Frame grabbers, codecs and
// scalers do not count.
func (m *machine) cameras() []Peripheral {
	const class, bus = "sys/class/video4linux", "sys/bus/i2c/devices"
	var found []Peripheral
	seen := map[string]bool{}
	for _, name := range m.list(class) {
		d := m.device(class, name, "device")
		driver, at := d.driver(), d.real()
		if !strings.HasPrefix(name, "video") || driver != "uvcvideo" && !strings.HasPrefix(driver, "gspca") || seen[at] {
			continue // a camera also has nodes for metadata
		}
		if vendor, model, ok := d.usb(); ok {
			seen[at] = true
			found = append(found, Peripheral{Camera, name, vendor, withoutVendor(vendor, model), driver})
		}
	}
	for _, name := range m.list(bus) {
		d := m.device(bus, name)
		vendor, model := sensor(m.line(bus, name, "name"))
		if vendor == "" || d.driver() == "" || !m.exists(bus, name, "of_node/port") && !m.exists(bus, name, "of_node/ports") {
			continue
		}
		found = append(found, Peripheral{Camera, name, vendor, model, d.driver()})
	}
	return found
}

// sensor identifies an image sensor by its name, such as "imx219"; "" for any other chip. In
// "imx219 10-0010" the address follows the name.
func sensor(name string) (vendor, model string) {
	name, _, _ = strings.Cut(strings.ToLower(name), " ")
	name = strings.TrimPrefix(name, "nv_") // prefix of NVIDIA's drivers
	for _, series := range []struct {
		prefix, vendor string
		digits         int // minimum number that follow
	}{
		{"imx", "Sony", 3},
		{"ov", "OmniVision", 4},
		{"os0", "OmniVision", 1},
		{"og0", "OmniVision", 1},
		{"ox0", "OmniVision", 1},
		{"ar0", "onsemi", 3},
		{"mt9", "onsemi", 0},
		{"s5k", "Samsung", 0},
		{"gc", "GalaxyCore", 4},
		{"hm", "Himax", 4},
		{"hi", "SK hynix", 3},
		{"vd5", "STMicroelectronics", 1},
	} {
		rest, ok := strings.CutPrefix(name, series.prefix)
		if ok && len(rest) >= series.digits && len(rest) < 16 && strings.Trim(rest[:series.digits], "0123456789") == "" {
			return series.vendor, strings.ToUpper(name)
		}
	}
	return "", ""
}
