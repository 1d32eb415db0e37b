package capability_test

import (
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/margolite/margolite/capability"
	"github.com/margolite/margolite/test/expect"
)

// files are the files of a machine below its root: their content, or behind
// "-> " what they link to.
type files map[string]string

// write makes the tree and gives its root.
func (f files) write(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	for path, content := range f {
		path = filepath.Join(root, path)
		expect.Check(t, os.MkdirAll(filepath.Dir(path), 0o755))
		var err error
		if target, isLink := strings.CutPrefix(content, "-> "); isLink {
			err = os.Symlink(target, path)
		} else {
			err = os.WriteFile(path, []byte(content), 0o644)
		}
		expect.Check(t, err)
	}
	return root
}

// network is an interface without hardware behind it.
func network(name, number string) files {
	return files{
		"sys/class/net/" + name + "/type":    number + "\n",
		"sys/class/net/" + name + "/address": "02:00:00:00:00:01\n",
		"sys/class/net/" + name + "/uevent":  "INTERFACE=" + name + "\nIFINDEX=3\n",
	}
}

// port is an interface with hardware behind it.
func port(name, number, devtype, driver, address string) files {
	uevent := "INTERFACE=" + name + "\nIFINDEX=3\n"
	if devtype != "" {
		uevent = "DEVTYPE=" + devtype + "\n" + uevent
	}
	device := "sys/devices/platform/" + name
	return all(network(name, number), files{
		"sys/class/net/" + name + "/uevent":           uevent,
		"sys/class/net/" + name + "/address":          address + "\n",
		"sys/class/net/" + name + "/addr_assign_type": "0\n",
		"sys/class/net/" + name + "/device":           "-> ../../../devices/platform/" + name,
		device + "/driver":                            "-> ../../../bus/platform/drivers/" + driver,
	})
}

// all joins trees; what a later one says counts.
func all(trees ...files) files {
	joined := files{}
	for _, tree := range trees {
		maps.Copy(joined, tree)
	}
	return joined
}

func computer() files {
	return all(
		port("enp3s0", "1", "", "igc", "68:05:ca:00:00:02"),
		port("wlp4s0", "1", "wlan", "iwlwifi", "68:05:ca:00:00:03"),
		port("enx02", "1", "", "cdc_mbim", "02:05:ca:00:00:04"),
		network("lo", "772"), network("docker0", "1"), network("veth12", "1"), network("ifb0", "1"), network("tun0", "65534"),
		files{
			"proc/cpuinfo":                               "processor\t: 0\nvendor_id\t: GenuineIntel\nmodel name\t: Intel(R) Atom(TM) x6425E\n\nprocessor\t: 1\n",
			"proc/meminfo":                               "MemTotal:        8054996 kB\nMemFree:  12 kB\n",
			"proc/sys/kernel/hostname":                   "plant-a\n",
			"etc/machine-id":                             "0123456789abcdef0123456789abcdef\n",
			"sys/devices/system/cpu/online":              "0-3\n",
			"sys/class/dmi/id/sys_vendor":                "Northstar Industrial Devices\n",
			"sys/class/dmi/id/product_name":              "332ANZE1-N1\n",
			"sys/class/dmi/id/product_serial":            "To be filled by O.E.M.\n",
			"sys/class/dmi/id/board_serial":              "PF45343-AA\n",
			"sys/class/net/bonding_masters":              "\n",
			"sys/class/drm/card0/dev":                    "226:0\n",
			"sys/class/drm/renderD128/device":            "-> ../../../devices/pci0000:00/0000:00:02.0",
			"sys/class/drm/renderD129/device":            "-> ../../../devices/pci0000:00/0000:00:05.0",
			"sys/class/bluetooth/hci0/uevent":            "DEVTYPE=host\n",
			"sys/class/bluetooth/hci0:1/uevent":          "DEVTYPE=link\n",
			"sys/bus/usb/devices/usb1/uevent":            "DEVTYPE=usb_device\n",
			"sys/bus/usb/devices/1-1/uevent":             "DEVTYPE=usb_device\n",
			"sys/fs/cgroup/cpuset.cpus.effective":        "0-3\n",
			"sys/devices/pci0000:00/0000:00:02.0/vendor": "0x8086\n",
			"sys/devices/pci0000:00/0000:00:02.0/device": "0x46d1\n",
			"sys/devices/pci0000:00/0000:00:02.0/driver": "-> ../../../bus/pci/drivers/i915",
			"sys/devices/pci0000:00/0000:00:05.0/vendor": "0x1af4\n", // of a hypervisor
		},
	)
}

func raspberryPi() files {
	return all(
		port("eth0", "1", "", "bcmgenet", "dc:a6:32:00:00:01"),
		port("wlan0", "1", "wlan", "brcmfmac", "dc:a6:32:00:00:02"),
		port("can0", "280", "", "mcp251x", ""),
		port("usb0", "1", "gadget", "", "02:22:82:00:00:00"),
		network("lo", "772"), network("vcan0", "280"),
		files{
			"proc/cpuinfo":                                "processor\t: 0\nBogoMIPS\t: 108.00\n\nSerial\t\t: 10000000aabbccdd\nModel\t\t: Raspberry Pi 4 Model B Rev 1.4\n",
			"proc/meminfo":                                "MemTotal:        3884312 kB\n",
			"etc/hostname":                                "raspberrypi\n",
			"etc/machine-id":                              "uninitialized\n",
			"var/lib/dbus/machine-id":                     "fedcba9876543210fedcba9876543210\n",
			"sys/devices/system/cpu/online":               "0-1,3\n",
			"sys/firmware/devicetree/base/model":          "Raspberry Pi 4 Model B Rev 1.4\x00",
			"sys/firmware/devicetree/base/compatible":     "raspberrypi,4-model-b\x00brcm,bcm2711\x00",
			"sys/class/drm/renderD128/device":             "-> ../../../devices/platform/v3d",
			"sys/devices/platform/v3d/driver":             "-> ../../../bus/platform/drivers/v3d",
			"sys/devices/platform/v3d/of_node":            "-> ../../../firmware/devicetree/base/v3d",
			"sys/firmware/devicetree/base/v3d/compatible": "brcm,2711-v3d\x00",
			"sys/class/drm/version":                       "drm 1.1.0\n",
			"sys/fs/cgroup/memory/memory.limit_in_bytes":  "9223372036854771712\n",
			"sys/fs/cgroup/cpu/cpu.cfs_quota_us":          "-1\n",
			"sys/fs/cgroup/cpu/cpu.cfs_period_us":         "100000\n",
			"sys/fs/cgroup/cpuset/cpuset.cpus":            "0-3\n",
		},
	)
}

func router() files {
	return all(
		port("eth0", "1", "dsa", "mtk_soc_eth", "94:83:c4:00:00:01"),
		port("lan1", "1", "dsa", "mt7530", "94:83:c4:00:00:01"),
		port("phy0-ap0", "1", "wlan", "mt76_wmac", "94:83:c4:00:00:02"),
		port("wwan0", "519", "wwan", "qmi_wwan", ""),
		network("lo", "772"), network("br-lan", "1"), network("eth0.2", "1"),
		files{
			"proc/cpuinfo":             "system type\t\t: MediaTek MT7621\nprocessor\t\t: 0\ncpu model\t\t: MIPS 1004Kc V2.15\n\nprocessor\t\t: 1\ncpu model\t\t: MIPS 1004Kc V2.15\n",
			"proc/meminfo":             "MemTotal:         122860 kB\n",
			"proc/sys/kernel/hostname": "OpenWrt\n",
			"etc/board.json":           `{"model":{"id":"glinet,gl-mt1300","name":"GL.iNet GL-MT1300"},"network":{"lan":{}}}`,
		},
	)
}

func TestMachinesAreDiscovered(t *testing.T) {
	for name, row := range map[string]struct {
		machine      files
		architecture string
		want         capability.Facts
	}{
		"a PC with a modem": {computer(), "amd64", capability.Facts{
			CPU:    capability.CPU{Cores: 4, Architecture: "amd64"},
			Memory: 8054996 << 10,
			Interfaces: []capability.Interface{
				{Kind: capability.Ethernet, Name: "enp3s0"},
				{Kind: capability.Cellular, Name: "enx02"},
				{Kind: capability.WiFi, Name: "wlp4s0"},
				{Kind: capability.Bluetooth, Name: "hci0"},
				{Kind: capability.USB, Name: "usb1"},
			},
			Peripherals: []capability.Peripheral{{Kind: capability.GPU, Name: "renderD128", Vendor: "Intel", Model: "8086:46d1", Driver: "i915"}},
			Identity: capability.Identity{
				Vendor: "Northstar Industrial Devices", Model: "332ANZE1-N1", SerialNumber: "PF45343-AA",
				MachineID: "0123456789abcdef0123456789abcdef", HardwareAddress: "68:05:ca:00:00:02", Hostname: "plant-a",
			},
		}},
		"a Raspberry Pi with a CAN hat": {raspberryPi(), "arm64", capability.Facts{
			CPU:    capability.CPU{Cores: 3, Architecture: "arm64"},
			Memory: 3884312 << 10,
			Interfaces: []capability.Interface{
				{Kind: capability.CANBus, Name: "can0"},
				{Kind: capability.Ethernet, Name: "eth0"},
				{Kind: capability.USB, Name: "usb0"},
				{Kind: capability.WiFi, Name: "wlan0"},
			},
			Peripherals: []capability.Peripheral{{Kind: capability.GPU, Name: "renderD128", Vendor: "Broadcom", Model: "VideoCore VI", Driver: "v3d"}},
			Identity: capability.Identity{
				Vendor: "Raspberry Pi", Model: "Raspberry Pi 4 Model B Rev 1.4", SerialNumber: "10000000aabbccdd",
				MachineID: "fedcba9876543210fedcba9876543210", HardwareAddress: "dc:a6:32:00:00:01", Hostname: "raspberrypi",
			},
		}},
		"an OpenWrt router": {router(), "mipsle", capability.Facts{
			CPU:    capability.CPU{Cores: 2, Architecture: "mipsle"},
			Memory: 122860 << 10,
			Interfaces: []capability.Interface{
				{Kind: capability.Ethernet, Name: "eth0"},
				{Kind: capability.Ethernet, Name: "lan1"},
				{Kind: capability.WiFi, Name: "phy0-ap0"},
				{Kind: capability.Cellular, Name: "wwan0"},
			},
			Identity: capability.Identity{
				Vendor: "GL.iNet", Model: "GL.iNet GL-MT1300", HardwareAddress: "94:83:c4:00:00:01", Hostname: "OpenWrt",
			},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := capability.Discover(t.Context(), row.machine.write(t), capability.Options{Architecture: row.architecture})
			expect.OK(t, err)
			expect.True(t, got.Storage != 0, "no storage found")
			got.Storage = 0 // of the machine that runs the test
			if diff := cmp.Diff(row.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestCAP05LimitsOfAContainerCount(t *testing.T) {
	for name, row := range map[string]struct {
		limits files
		cores  float64
		memory uint64
	}{
		"none at all":                 {files{"sys/fs/cgroup/memory.max": "max\n", "sys/fs/cgroup/cpu.max": "max 100000\n"}, 4, 8054996 << 10},
		"version 2":                   {files{"sys/fs/cgroup/memory.max": "536870912\n", "sys/fs/cgroup/cpu.max": "150000 100000\n"}, 1.5, 512 << 20},
		"version 2, a set of CPUs":    {files{"sys/fs/cgroup/cpuset.cpus.effective": "1,3\n"}, 2, 8054996 << 10},
		"version 1":                   {files{"sys/fs/cgroup/memory/memory.limit_in_bytes": "536870912\n", "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "50000\n", "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n"}, 0.5, 512 << 20},
		"version 1, a set of CPUs":    {files{"sys/fs/cgroup/cpuset.cpus.effective": "", "sys/fs/cgroup/cpuset/cpuset.cpus": "0\n"}, 1, 8054996 << 10},
		"more than there is":          {files{"sys/fs/cgroup/memory.max": "999999999999\n", "sys/fs/cgroup/cpu.max": "1600000 100000\n", "sys/fs/cgroup/cpuset.cpus.effective": "0-63\n"}, 4, 8054996 << 10},
		"what cannot be a limit":      {files{"sys/fs/cgroup/memory.max": "-1\n", "sys/fs/cgroup/cpu.max": "0 0\n", "sys/fs/cgroup/cpuset.cpus.effective": "3-1\n"}, 4, 8054996 << 10},
		"the memory of a group alone": {files{"sys/fs/cgroup/memory.max": "4096\n"}, 4, 4096},
		"of the workloads, version 2": {files{"sys/fs/cgroup/margo/memory.max": "4096\n", "sys/fs/cgroup/margo/cpu.max": "200000 100000\n", "sys/fs/cgroup/memory.max": "max\n"}, 2, 4096},
		"of the workloads, version 1": {files{"sys/fs/cgroup/memory/margo/memory.limit_in_bytes": "4096\n", "sys/fs/cgroup/cpuset/margo/cpuset.cpus": "2,3\n", "sys/fs/cgroup/cpuset.cpus.effective": ""}, 2, 4096},
		"the least of both":           {files{"sys/fs/cgroup/margo/memory.max": "8192\n", "sys/fs/cgroup/margo/cpu.max": "50000 100000\n", "sys/fs/cgroup/memory.max": "4096\n", "sys/fs/cgroup/cpu.max": "100000 100000\n"}, 0.5, 4096},
		"of others":                   {files{"sys/fs/cgroup/system.slice/memory.max": "4096\n"}, 4, 8054996 << 10},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := capability.Discover(t.Context(), all(computer(), row.limits).write(t), capability.Options{Workloads: "margo"})
			expect.OK(t, err)
			if got.CPU.Cores != row.cores || got.Memory != row.memory {
				t.Errorf("%v cores and %d bytes, want %v and %d", got.CPU.Cores, got.Memory, row.cores, row.memory)
			}
		})
	}
}

func TestWhatCannotBeReadLeavesTheOtherFactsAlone(t *testing.T) {
	broken := all(computer(), files{
		"proc/meminfo":   "nothing of use\n",
		"etc/board.json": "{",
	})
	got, err := capability.Discover(t.Context(), broken.write(t), capability.Options{StateDir: "relative/and/missing"})
	expect.ErrorWith(t, err, "memory", "error")
	expect.ErrorWith(t, err, "board.json", "error")
	expect.True(t, got.Memory == 0 && got.CPU.Cores == 4 && got.Identity.SerialNumber == "PF45343-AA" && got.Storage != 0, "got %+v", got)
}

func TestMachineWithoutAnyFilesHasNoFacts(t *testing.T) {
	got, err := capability.Discover(t.Context(), t.TempDir(), capability.Options{})
	expect.True(t, err != nil, "no error although neither processors nor memory were found")
	got.Storage = 0
	expect.Equal(t, got, capability.Facts{CPU: capability.CPU{Architecture: runtime.GOARCH}}, "facts")
}

func TestPlaceholdersOfMakersAreNoIdentity(t *testing.T) {
	machine := files{
		"sys/class/dmi/id/sys_vendor":        "System manufacturer\n",
		"sys/class/dmi/id/board_vendor":      "ASUS\n",
		"sys/class/dmi/id/product_name":      "Default string\n",
		"sys/class/dmi/id/product_serial":    "00000000\n",
		"sys/class/dmi/id/board_serial":      "\x00\x01\xff\n",
		"sys/firmware/devicetree/base/model": strings.Repeat("x", 300),
		"etc/machine-id":                     strings.Repeat("0", 32),
	}
	got, _ := capability.Discover(t.Context(), machine.write(t), capability.Options{})
	expect.Equal(t, got.Identity, capability.Identity{Vendor: "ASUS"}, "identity")
}

func TestLargeFilesAreReadOnlyToABound(t *testing.T) {
	machine := files{"etc/board.json": strings.Repeat(" ", 1<<20) + `{"model":{"id":"glinet,gl-mt1300","name":"GL.iNet GL-MT1300"}}`}
	if got, _ := capability.Discover(t.Context(), machine.write(t), capability.Options{}); got.Identity.Model != "" {
		t.Errorf("the model is %q: the end of the file was read", got.Identity.Model)
	}
}

func TestStorageIsThatOfTheFileSystemTheStateWillBeOn(t *testing.T) {
	dir := t.TempDir()
	var stat unix.Statfs_t
	expect.Check(t, unix.Statfs(dir, &stat))
	want := stat.Blocks * uint64(stat.Frsize)
	for _, state := range []string{dir, filepath.Join(dir, "not", "yet", "made")} {
		got := expect.Value(capability.Discover(t.Context(), computer().write(t), capability.Options{StateDir: state}))(t)
		expect.Equal(t, got.Storage, want, "bytes of %s", state)
	}
}

func TestThisMachineHasTheFactsOfEveryMachine(t *testing.T) {
	got, err := capability.Discover(t.Context(), "/", capability.Options{})
	if err != nil {
		t.Logf("not everything could be read: %v", err)
	}
	expect.True(t, got.CPU.Cores > 0 && got.Memory != 0 && got.Storage != 0 && got.Identity.Hostname != "", "got %+v", got)
}

func FuzzDiscover(f *testing.F) {
	f.Add("0-3\n", "MemTotal: 1 kB\n", `{"model":{"id":"a,b","name":"c"}}`, "150000 100000", "DEVTYPE=wlan\n",
		"CPU implementer: 0x41\nCPU part: 0xd03\nCPU architecture: 8\n", "rockchip,rk3588-mali\x00arm,mali-valhall-csf\x00", "00-00: a : a : playback 1 : capture 1\n")
	f.Add("0,2-", "MemTotal: 18446744073709551615 kB", "{", "max 1", "=", "processor:\nCPU architecture: AArch64\n", ",npu\x00\x00", "-:")
	f.Add("65535-0", ":", `{"model":[]}`, "-1 -1", "\x00", "\x00", "qcom,adreno-\xff", "99999-0: : playback : capture ")
	f.Fuzz(func(t *testing.T, online, meminfo, board, quota, uevent, cpuinfo, compatible, streams string) {
		for _, content := range []string{online, meminfo, board, quota, uevent, cpuinfo, compatible, streams} {
			if strings.HasPrefix(content, "-> ") {
				t.Skip("would be a link of the fixture")
			}
		}
		got, _ := capability.Discover(t.Context(), all(port("eth0", "1", "", "x", "00:00:00:00:00:00"), files{
			"sys/devices/system/cpu/online":                 online,
			"proc/meminfo":                                  meminfo,
			"etc/board.json":                                board,
			"sys/fs/cgroup/cpu.max":                         quota,
			"sys/class/net/eth0/uevent":                     uevent,
			"proc/cpuinfo":                                  cpuinfo,
			"proc/asound/pcm":                               streams,
			"sys/class/sound/card0/device":                  "-> ../../../devices/platform/eth0",
			"sys/class/drm/renderD128/device":               "-> ../../../devices/platform/eth0",
			"sys/devices/platform/eth0/of_node":             "-> ../../../firmware/devicetree/base/npu@1",
			"sys/firmware/devicetree/base/npu@1/compatible": compatible,
		}).write(t), capability.Options{Architecture: "arm"})
		if got.CPU.Cores < 0 || got.CPU.Cores > 1<<32 || len(got.Interfaces) > 1 || len(got.Peripherals) > 3 {
			t.Fatalf("got %+v", got)
		}
		for _, p := range got.Peripherals {
			for _, name := range []string{p.Name, p.Vendor, p.Model, p.Driver} {
				expect.True(t, len(name) <= 256 && utf8.ValidString(name) && !strings.ContainsFunc(name, unicode.IsControl), "got %q", name)
			}
		}
	})
}
