package capability_test

import (
	"path"
	"strings"
	"testing"

	"github.com/margolite/margolite/capability"
	"github.com/margolite/margolite/test/expect"
)

// part is a device of a platform with its driver, and what the device tree says
// of it.
func part(name, driver, node, compatible string) files {
	at := "sys/devices/platform/" + name
	f := files{at + "/subsystem": "-> ../../../bus/platform", at + "/uevent": ""}
	if driver != "" {
		f[at+"/driver"] = "-> ../../../bus/platform/drivers/" + driver
	}
	if node != "" {
		f[at+"/of_node"] = "-> ../../../firmware/devicetree/base/" + node
		f["sys/firmware/devicetree/base/"+node+"/compatible"] = strings.ReplaceAll(compatible, " ", "\x00") + "\x00"
	}
	return f
}

// member makes a device a member of a class.
func member(class, name, device string) files {
	return files{"sys/class/" + class + "/" + name + "/device": "-> ../../../devices/" + device}
}

// bound lists a device with its driver.
func bound(driver, device string) files {
	return files{"sys/bus/platform/drivers/" + driver + "/" + path.Base(device): "-> ../../../../devices/" + device}
}

func soc(compatible string) files {
	return files{"sys/firmware/devicetree/base/compatible": strings.ReplaceAll(compatible, " ", "\x00") + "\x00"}
}

func TestPeripheralsOfMakersDriversAreFound(t *testing.T) {
	for name, row := range map[string]struct {
		machine files
		want    []capability.Peripheral
	}{
		"Mali by Arm's own driver": {
			all(part("fb000000.gpu", "mali", "gpu@fb000000", "arm,mali-bifrost"), member("misc", "mali0", "platform/fb000000.gpu"),
				files{"sys/devices/platform/fb000000.gpu/gpuinfo": "Mali-G610 4 cores r0p0 0xA867\n"}),
			[]capability.Peripheral{{Kind: capability.GPU, Name: "mali0", Vendor: "Arm", Model: "Mali-G610", Driver: "mali"}},
		},
		"Mali of a family": {
			all(part("1.gpu", "lima", "gpu@1", "allwinner,sun50i-a64-mali arm,mali-400"), member("drm", "renderD128", "platform/1.gpu")),
			[]capability.Peripheral{{Kind: capability.GPU, Name: "renderD128", Vendor: "Arm", Model: "Mali-400", Driver: "lima"}},
		},
		"Adreno": {
			all(part("5000000.gpu", "adreno", "gpu@5000000", "qcom,adreno-630.2 qcom,adreno"), member("drm", "renderD128", "platform/5000000.gpu")),
			[]capability.Peripheral{{Kind: capability.GPU, Name: "renderD128", Vendor: "Qualcomm", Model: "Adreno 630", Driver: "adreno"}},
		},
		"Adreno by Qualcomm's own driver": {
			all(part("3d00000.qcom,kgsl-3d0", "kgsl-3d", "gpu@3d00000", "qcom,kgsl-3d0 qcom,kgsl-3d"), member("kgsl", "kgsl-3d0", "platform/3d00000.qcom,kgsl-3d0"),
				files{"sys/class/kgsl/kgsl-3d0/gpu_model": "Adreno643v1\n"}),
			[]capability.Peripheral{{Kind: capability.GPU, Name: "kgsl-3d0", Vendor: "Qualcomm", Model: "Adreno643v1", Driver: "kgsl-3d"}},
		},
		"PowerVR": {
			all(part("fd00000.gpu", "powervr", "gpu@fd00000", "ti,am62-gpu img,img-axe-1-16m img,img-axe img,img-rogue"), member("drm", "renderD128", "platform/fd00000.gpu")),
			[]capability.Peripheral{{Kind: capability.GPU, Name: "renderD128", Vendor: "Imagination", Model: "axe-1-16m", Driver: "powervr"}},
		},
		"Vivante by its own driver, with an NPU": {
			all(soc("fsl,imx8mp-evk fsl,imx8mp"), part("galcore", "galcore", "", ""), member("graphics_class", "galcore", "platform/galcore")),
			[]capability.Peripheral{
				{Kind: capability.GPU, Name: "galcore", Vendor: "Vivante", Model: "GC7000UL", Driver: "galcore"},
				{Kind: capability.NPU, Name: "galcore", Vendor: "Vivante", Model: "VIP8000", Driver: "galcore"},
			},
		},
		"Vivante of an older chip": {
			all(soc("fsl,imx6q-sabresd fsl,imx6q"), part("etnaviv", "etnaviv", "", ""), member("drm", "renderD128", "platform/etnaviv"),
				part("130000.gpu", "etnaviv-gpu", "gpu@130000", "vivante,gc"), bound("etnaviv-gpu", "platform/130000.gpu")),
			[]capability.Peripheral{{Kind: capability.GPU, Name: "renderD128", Vendor: "Vivante", Model: "GC2000", Driver: "etnaviv"}},
		},
		"Rockchip's NPU by its own driver, as a render node": {
			all(part("fdab0000.npu", "RKNPU", "npu@fdab0000", "rockchip,rk3588-rknpu"), member("drm", "renderD129", "platform/fdab0000.npu")),
			[]capability.Peripheral{{Kind: capability.NPU, Name: "renderD129", Vendor: "Rockchip", Model: "RK3588", Driver: "RKNPU"}},
		},
		"Arm's NPU": {
			all(part("4a900000.npu", "ethosu", "npu@4a900000", "arm,ethos-u65"), member("ethosu", "ethosu0", "platform/4a900000.npu")),
			[]capability.Peripheral{{Kind: capability.NPU, Name: "ethosu0", Vendor: "Arm", Model: "Ethos-U65", Driver: "ethosu"}},
		},
		"a GPU of Tegra by Linux' own driver": {
			all(part("57000000.gpu", "nouveau", "gpu@57000000", "nvidia,gm20b"), member("drm", "renderD128", "platform/57000000.gpu"),
				part("50000000.host1x", "drm", "host1x@50000000", "nvidia,tegra210-host1x"), member("drm", "renderD129", "platform/50000000.host1x")),
			[]capability.Peripheral{{Kind: capability.GPU, Name: "renderD128", Vendor: "NVIDIA", Model: "GM20B", Driver: "nouveau"}},
		},
		"one GPU behind two nodes": {
			all(part("1.gpu", "mali", "gpu@1", "arm,mali-t860"), member("drm", "renderD128", "platform/1.gpu"), member("misc", "mali0", "platform/1.gpu")),
			[]capability.Peripheral{{Kind: capability.GPU, Name: "renderD128", Vendor: "Arm", Model: "Mali-T860", Driver: "mali"}},
		},
		"a small panel without DRM": {
			all(part("spi0.0", "fb_ili9341", "", ""), member("graphics", "fb1", "platform/spi0.0"), files{
				"sys/class/graphics/fb1/name": "fb_ili9341\n", "sys/class/graphics/fb0/name": "vc4drmfb\n", "sys/class/graphics/fbcon/uevent": "",
			}),
			[]capability.Peripheral{{Kind: capability.Display, Name: "fb1", Model: "ili9341", Driver: "fb_ili9341"}},
		},
		"chips on I2C that are no cameras": {
			files{
				"sys/bus/i2c/devices/1-0049/name": "ar1021\n", "sys/bus/i2c/devices/1-0049/driver": "-> x/ar1021", "sys/bus/i2c/devices/1-0049/of_node/port/name": "",
				"sys/bus/i2c/devices/1-0036/name": "ov5640\n", "sys/bus/i2c/devices/1-0036/of_node/port/name": "", // without a driver
				"sys/bus/i2c/devices/1-0010/name": "imx219\n", "sys/bus/i2c/devices/1-0010/driver": "-> x/imx219", // leads nowhere
			},
			nil,
		},
		"software that plays sound and cameras": {
			all(part("snd_aloop.0", "snd_aloop", "", ""), member("sound", "card0", "platform/snd_aloop.0"), part("vivid.0", "vivid", "", ""), member("video4linux", "video0", "platform/vivid.0"),
				files{"proc/asound/pcm": "00-00: Loopback PCM : Loopback PCM : playback 8 : capture 8\n"}),
			nil,
		},
		"links that lead nowhere": {
			files{
				"sys/class/drm/renderD128/device": "-> ../../../devices/gone", "sys/class/sound/card0": "-> card0", "proc/asound/pcm": "00-00: a : a : playback 1\n",
				"sys/class/video4linux/video0": "-> ../../nothing", "sys/class/tty/ttyUSB0": "-> ttyUSB0", "sys/class/accel/accel0": "-> accel0",
			},
			nil,
		},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := capability.Discover(t.Context(), all(row.machine, files{"proc/meminfo": "MemTotal: 1 kB\n", "sys/devices/system/cpu/online": "0\n"}).write(t), capability.Options{})
			expect.OK(t, err)
			expect.Equal(t, got.Peripherals, row.want, "peripherals")
		})
	}
}

// No machine has so much that a report of it would be refused for its size.
func TestPeripheralsAreBounded(t *testing.T) {
	f := files{}
	for i := range 100 {
		name := strings.Repeat("x", i%10) + string(rune('a'+i%26)) + strings.Repeat("y", i/26)
		f["sys/class/accel/accel"+name+"/device/uevent"] = ""
	}
	got, _ := capability.Discover(t.Context(), f.write(t), capability.Options{})
	if n := len(got.Peripherals); n == 0 || n > 32 {
		t.Errorf("%d peripherals", n)
	}
}

func TestVariantsOf32BitARM(t *testing.T) {
	for name, row := range map[string]struct{ cpuinfo, variant string }{
		"a Raspberry Pi Zero, that calls itself a v7": {"model name\t: ARMv6-compatible processor rev 7 (v6l)\nCPU implementer\t: 0x41\nCPU architecture: 7\nCPU part\t: 0xb76\n", "v6"},
		"a BeagleBone":           {"model name\t: ARMv7 Processor rev 2 (v7l)\nCPU implementer\t: 0x41\nCPU architecture: 7\nCPU part\t: 0xc08\n", "v7"},
		"a 64-bit core":          {"CPU implementer\t: 0x41\nCPU architecture: 8\nCPU part\t: 0xd03\n", "v8"},
		"a core of another make": {"model name\t: X-Core\nCPU implementer\t: 0x51\nCPU architecture: 8\nCPU part\t: 0xd03\n", "v8"},
		"nothing of use":         {"CPU architecture: unknown\n", ""},
	} {
		t.Run(name, func(t *testing.T) {
			root := files{"proc/cpuinfo": row.cpuinfo}.write(t)
			got, _ := capability.Discover(t.Context(), root, capability.Options{Architecture: "arm"})
			expect.Equal(t, got.CPU.Variant, row.variant, "variant")
			got, _ = capability.Discover(t.Context(), root, capability.Options{Architecture: "arm64"})
			expect.Equal(t, got.CPU.Variant, "", "variant of 64 bit")
		})
	}
}

// CAP-05: what an operator offers counts, and what was found stays as it was.
func TestCAP05WhatTheOperatorOffersCounts(t *testing.T) {
	found := capability.Facts{
		CPU: capability.CPU{Cores: 4, Architecture: "arm64"}, Memory: 4 << 30, Storage: 32 << 30,
		Interfaces:  []capability.Interface{{Kind: capability.Ethernet, Name: "eth0"}, {Kind: capability.WiFi, Name: "wlan0"}, {Kind: capability.WiFi, Name: "wlan1"}},
		Peripherals: []capability.Peripheral{{Kind: capability.GPU, Name: "renderD128"}, {Kind: capability.Camera, Name: "video0"}, {Kind: capability.Camera, Name: "video2"}},
	}
	type numbers struct {
		cores           float64
		memory, storage uint64
	}
	for name, row := range map[string]struct {
		offer       capability.Offer
		want        numbers
		interfaces  string
		peripherals string
	}{
		"nothing is said":       {capability.Offer{}, numbers{4, 4 << 30, 32 << 30}, "eth0 wlan0 wlan1", "renderD128 video0 video2"},
		"a part is reserved":    {capability.Offer{Reserved: capability.Reserved{Cores: 0.5, Memory: 1 << 30, Storage: 2 << 30}}, numbers{3.5, 3 << 30, 30 << 30}, "eth0 wlan0 wlan1", "renderD128 video0 video2"},
		"more than there is":    {capability.Offer{Reserved: capability.Reserved{Cores: 64, Memory: 1 << 40, Storage: 1 << 50}}, numbers{0.1, 0, 0}, "eth0 wlan0 wlan1", "renderD128 video0 video2"},
		"numbers of one's own":  {capability.Offer{Cores: 1.5, Memory: 1 << 30, Storage: 64 << 30, Reserved: capability.Reserved{Memory: 1 << 20}}, numbers{1.5, 1 << 30, 64 << 30}, "eth0 wlan0 wlan1", "renderD128 video0 video2"},
		"a kind is hidden":      {capability.Offer{HiddenInterfaces: []string{"wifi"}, HiddenPeripherals: []string{"camera"}}, numbers{4, 4 << 30, 32 << 30}, "eth0", "renderD128"},
		"one of them is hidden": {capability.Offer{HiddenInterfaces: []string{"wlan1"}, HiddenPeripherals: []string{"video0", "none"}}, numbers{4, 4 << 30, 32 << 30}, "eth0 wlan0", "renderD128 video2"},
		"others are added": {capability.Offer{
			HiddenPeripherals: []string{"camera"}, AddedInterfaces: []capability.Interface{{Kind: capability.RS232, Name: "X5"}},
			AddedPeripherals: []capability.Peripheral{{Kind: capability.Camera, Name: "gige"}},
		}, numbers{4, 4 << 30, 32 << 30}, "eth0 wlan0 wlan1 X5", "renderD128 gige"},
	} {
		t.Run(name, func(t *testing.T) {
			before := names(found)
			got := row.offer.Of(found)
			expect.Equal(t, numbers{got.CPU.Cores, got.Memory, got.Storage}, row.want, "offered")
			expect.Equal(t, names(got), row.interfaces+"; "+row.peripherals, "offered")
			if after := names(found); after != before || found.CPU.Cores != 4 {
				t.Errorf("what was found is %s now", after)
			}
		})
	}
}

func names(f capability.Facts) string {
	var interfaces, peripherals []string
	for _, i := range f.Interfaces {
		interfaces = append(interfaces, i.Name)
	}
	for _, p := range f.Peripherals {
		peripherals = append(peripherals, p.Name)
	}
	return strings.Join(interfaces, " ") + "; " + strings.Join(peripherals, " ")
}
