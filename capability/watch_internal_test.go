package capability

import (
	"context"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/margolite/margolite/test/expect"
)

func TestEventsOfDevicesThatMatter(t *testing.T) {
	for name, row := range map[string]struct {
		message string
		matters bool
	}{
		"a camera":                     {"add@/devices/pci0/usb1/1-2/1-2:1.0/video4linux/video0\x00ACTION=add\x00SUBSYSTEM=video4linux\x00", true},
		"a graphics card has a driver": {"bind@/devices/pci0000:00/0000:00:02.0\x00ACTION=bind\x00SUBSYSTEM=pci\x00", true},
		"a display":                    {"change@/devices/pci0000:00/0000:00:02.0/drm/card0\x00SUBSYSTEM=drm\x00HOTPLUG=1\x00", true},
		"a core goes":                  {"offline@/devices/system/cpu/cpu3\x00SUBSYSTEM=cpu\x00", true},
		"a network card":               {"add@/devices/platform/eth0/net/eth0\x00SUBSYSTEM=net\x00INTERFACE=eth0\x00", true},
		"an interface of a container":  {"add@/devices/virtual/net/veth1\x00SUBSYSTEM=net\x00INTERFACE=veth1\x00", false},
		"a network card is renamed":    {"move@/devices/platform/eth0/net/lan1\x00SUBSYSTEM=net\x00", false},
		"a battery":                    {"change@/devices/acpi/BAT0\x00SUBSYSTEM=power_supply\x00", false},
		"a disk":                       {"add@/devices/virtual/block/loop0\x00SUBSYSTEM=block\x00", false},
		"a message of udev":            {"libudev\x00\xfe\xed\xca\xfe\x28", false},
		"nothing":                      {"", false},
		"no path":                      {"add@\x00SUBSYSTEM=drm\x00", false},
		"no properties":                {"add@/devices/x", false},
	} {
		t.Run(name, func(t *testing.T) {
			e, ok := parseUevent(row.message)
			expect.Equal(t, ok && e.matters(), row.matters, "%+v matters", e)
		})
	}
}

// Whatever comes is read, and only what matters is told; a socket that is
// closed, or ctx, ends it.
func TestEventsAreFollowedUntilTheEnd(t *testing.T) {
	pair := expect.Value(unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0))(t)
	kernel := os.NewFile(uintptr(pair[0]), "kernel")
	defer kernel.Close()
	ctx, cancel := context.WithCancel(t.Context())
	told, ended := make(chan struct{}, 8), make(chan error)
	go func() {
		ended <- follow(ctx, os.NewFile(uintptr(pair[1]), "events"), func() { told <- struct{}{} })
	}()
	for _, message := range []string{
		"add@/devices/virtual/net/veth1\x00SUBSYSTEM=net\x00",
		string(make([]byte, maxUevent+1)),
		"add@/devices/x/video0\x00SUBSYSTEM=video4linux\x00",
	} {
		expect.Check(t, expect.ErrorOf(kernel.WriteString(message)))
	}
	<-told
	cancel()
	expect.Error(t, <-ended, nil, "error")
	expect.Equal(t, len(told), 0, "told once more")
}

// The kernel's own socket: where a machine lets a test raise an event, it comes.
func TestTheKernelTellsOfDevices(t *testing.T) {
	const cpu = "/sys/devices/system/cpu/cpu0/uevent"
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	told, ended := make(chan struct{}, 64), make(chan error, 1)
	go func() { ended <- Watch(ctx, func() { told <- struct{}{} }) }()
	select {
	case <-told: // it listens
	case err := <-ended:
		t.Skip("needs the events of the kernel:", err)
	}
	if err := os.WriteFile(cpu, []byte("add"), 0o200); err != nil {
		t.Skip("needs an event that can be repeated:", err)
	}
	select {
	case <-told:
	case <-ctx.Done():
		t.Error("the event did not come")
	}
	cancel()
	expect.OK(t, <-ended)
}

func FuzzUevent(f *testing.F) {
	f.Add("add@/devices/pci0/usb1/1-2/1-2:1.0/video4linux/video0\x00ACTION=add\x00SUBSYSTEM=video4linux\x00")
	f.Add("libudev\x00\xfe\xed\xca\xfe")
	f.Add("@/\x00SUBSYSTEM=")
	f.Fuzz(func(t *testing.T, message string) {
		e, ok := parseUevent(message)
		expect.True(t, ok || e == (uevent{}), "no event, but %+v", e)
		expect.True(t, !e.matters() || ok && e.subsystem != "" && e.action != "", "%+v matters", e)
	})
}
