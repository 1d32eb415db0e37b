package platform

import (
	"os"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

const hostOS = runtime.GOOS

// Host is the platform of this machine. Which ARM of 32 bits it is the kernel
// says.
func Host() Platform {
	p := Platform{OS: hostOS, Architecture: runtime.GOARCH}
	if p.Architecture == "arm" {
		text, _ := os.ReadFile("/proc/cpuinfo") // without it uname has to do
		var name unix.Utsname
		_ = unix.Uname(&name) // fails for no other reason than a bad address
		p.Variant = variantOf(string(text), unix.ByteSliceToString(name.Machine[:]))
	}
	return normal(p)
}

// variantOf is the variant of an ARM by /proc/cpuinfo or, where that is of
// another processor that emulates it, by the name of the machine; "" where both
// are silent.
func variantOf(cpuinfo, machine string) string {
	said := strings.ToLower(valueOf(cpuinfo, "cpu architecture"))
	switch {
	case said == "":
		said, _ = strings.CutPrefix(machine, "armv")
	case strings.HasPrefix(said, "?(1"): // 12 to 17: newer than the kernel's list of names
		said = "7"
	}
	if said == "aarch64" {
		said = "8"
	}
	if said == "" || said[0] < '3' || said[0] > '8' {
		return ""
	}
	// The first Raspberry Pis say 7 and are 6.
	if said[0] == '7' && strings.HasPrefix(strings.ToLower(valueOf(cpuinfo, "model name")), "armv6-compatible") {
		return "v6"
	}
	return "v" + said[:1]
}

// valueOf is what the first line with this key says.
func valueOf(cpuinfo, key string) string {
	for line := range strings.Lines(cpuinfo) {
		name, value, found := strings.Cut(line, ":")
		if found && strings.EqualFold(strings.TrimSpace(name), key) {
			return strings.TrimSpace(value)
		}
	}
	return ""
}
