package capability

import (
	"slices"
	"strings"
)

type uevent struct {
	action, path, subsystem string
}

// parseUevent reads "add@/devices/..." and properties, each ended by a NUL. Others are no events.
func parseUevent(message string) (uevent, bool) {
	head, rest, _ := strings.Cut(message, "\x00")
	action, path, ok := strings.Cut(head, "@")
	if !ok || action == "" || !strings.HasPrefix(path, "/") {
		return uevent{}, false
	}
	subsystem := property(strings.ReplaceAll(rest, "\x00", "\n"), "SUBSYSTEM", "=")
	return uevent{action, path, subsystem}, true
}

// matters reports whether an event may have changed facts. Most do not: they concern interfaces of
// containers, batteries or disks.
func (e uevent) matters() bool {
	classes := []string{
		"accel", "apex", "bluetooth", "cpu", "drm", "ethosu", "graphics", "hailo_chardev", "i2c", "ieee80211", "kgsl", "memory",
		"misc", "net", "pci", "platform", "pnp", "sound", "tty", "usb", "usb-serial", "usbmisc", "video4linux", "wwan",
	}
	if !slices.Contains(classes, e.subsystem) {
		return false
	}
	if (e.subsystem == "net" || e.subsystem == "tty") && strings.HasPrefix(e.path, "/devices/virtual/") {
		return false
	}
	switch e.action {
	case "add", "remove", "bind", "unbind", "online", "offline":
		return true
	case "change": // a display was plugged in; other changes are of no interest
		return e.subsystem == "drm"
	}
	return false
}
