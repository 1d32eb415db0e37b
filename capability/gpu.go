package capability

import (
	"slices"
	"strings"
)

// processors finds graphics processors that can compute and neural processors: devices with a
// render or accel node, and those that vendor drivers expose in their own way. Emulated ones of
// virtual machines do not count, nor devices that only decode video or drive a display.
func (m *machine) processors() []Peripheral {
	p := &processors{m: m, seen: map[string]bool{}}
	for _, name := range m.list("sys/class/drm") {
		if strings.HasPrefix(name, "renderD") {
			p.add(name, m.device("sys/class/drm", name, "device"), "")
		}
	}
	for _, class := range []struct {
		dir, prefix string
		kind        PeripheralKind
	}{
		{"sys/class/misc", "mali", GPU},             // Arm's own driver
		{"sys/class/kgsl", "kgsl-", GPU},            // Qualcomm's own
		{"sys/class/graphics_class", "galcore", ""}, // Vivante's own, all cores in one
		{"sys/class/accel", "accel", NPU},
		{"sys/class/misc", "rknpu", NPU},                     // Rockchip's own
		{"sys/class/hailo_chardev", "hailo", NPU},            // Hailo's own
		{"sys/class/apex", "apex_", NPU},                     // Coral
		{"sys/class/ethosu", "ethosu", NPU},                  // Arm's, as NXP has it
		{"sys/bus/platform/drivers/gk20a", "", GPU},          // NVIDIA's own on Jetson; a directory of links
		{"sys/bus/pci/drivers/nvidia", "", GPU},              // and on PCs without a display
		{"sys/bus/platform/drivers/etnaviv-gpu", "npu", NPU}, // the cores behind one render node
	} {
		for _, name := range m.list(class.dir) {
			d := m.device(class.dir, name)
			isBus := strings.HasPrefix(class.dir, "sys/bus")
			switch {
			case isBus && (m.link(class.dir, name) == "" || !m.exists(class.dir, name, "subsystem")): // bind, unbind, module
				continue
			case isBus && class.prefix != "" && d.node() != class.prefix:
				continue
			case !isBus && !strings.HasPrefix(name, class.prefix):
				continue
			case !isBus && m.exists(class.dir, name, "device"):
				d = m.device(class.dir, name, "device")
			}
			p.add(name, d, class.kind)
		}
	}
	return p.found
}

type processors struct {
	m     *machine
	seen  map[string]bool // device directories
	found []Peripheral
}

// add adds a device. An empty kind is taken from the device's description.
func (p *processors) add(name string, d device, kind PeripheralKind) {
	at := d.real()
	if at == "" || p.seen[at] {
		return
	}
	p.seen[at] = true
	found := Peripheral{Kind: kind, Name: name, Driver: d.driver()}
	compatible := d.compatible()
	switch {
	case found.Driver == "etnaviv" || name == "galcore": // stands for all cores, and has no description of its own
		found.Vendor, found.Model = "Vivante", p.m.vivante(vivanteGPU)
		found.Kind = GPU
		if npu := p.m.vivante(vivanteNPU); name == "galcore" && npu != "" {
			p.found = append(p.found, Peripheral{Kind: NPU, Name: name, Vendor: "Vivante", Model: npu, Driver: found.Driver})
		}
	case d.isPCI():
		found.Vendor, found.Model = d.pci()
		if model := property(p.m.read("proc/driver/nvidia/gpus", d.slot(), "information"), "Model", ":"); model != "" {
			found.Model = shown(model)
		}
		found.Model = withoutVendor(found.Vendor, found.Model)
	case len(compatible) > 0:
		var isNPU bool
		found.Vendor, found.Model, isNPU = fromTree(compatible)
		if isNPU || d.node() == "npu" {
			found.Kind = NPU
		}
		if found.Kind == NPU && found.Model == "" {
			found.Model = p.m.vivante(vivanteNPU)
		}
	}
	if info := p.m.line(d.dir, "gpuinfo"); strings.HasPrefix(info, "Mali-") { // of Arm's own driver
		found.Vendor = "Arm"
		found.Model, _, _ = strings.Cut(info, " ")
	}
	if model := p.m.line("sys/class/kgsl", name, "gpu_model"); model != "" {
		found.Vendor, found.Model = "Qualcomm", model
	}
	if found.Kind == "" {
		found.Kind = GPU
	}
	if found.Kind == NPU && found.Vendor == "" && !d.isPCI() { // a part of the chip that does not describe itself
		found.Vendor, found.Model = p.m.chip()
	}
	if found.Vendor == "" && found.Kind == GPU { // of a hypervisor, or a display controller
		return
	}
	p.found = append(p.found, found)
}

// fromTree reads a processor's device tree names. The vendor is "" for anything else: display
// engines and video decoders share render nodes.
func fromTree(compatible []string) (vendor, model string, isNPU bool) {
	models := treeModels()
	for _, c := range compatible {
		if model := models[c]; model != "" {
			vendor, _, _ := strings.Cut(model, " ")
			return vendor, strings.TrimPrefix(model, vendor+" "), false
		}
	}
	for _, c := range compatible {
		maker, part, _ := strings.Cut(c, ",")
		switch {
		case maker == "arm" && strings.HasPrefix(part, "ethos-"):
			return "Arm", "Ethos-" + strings.ToUpper(part[len("ethos-"):]), true
		case strings.Contains(part, "npu") || strings.Contains(part, "rknn"):
			chip, _, _ := strings.Cut(part, "-")
			return vendorName(maker), strings.ToUpper(chip), true
		case strings.Contains(part, "host1x") || strings.Contains(part, "display"):
			return "", "", false
		case maker == "arm" && strings.HasPrefix(part, "mali-"):
			return "Arm", "Mali-" + strings.ToUpper(part[len("mali-"):]), false
		case maker == "img":
			return "Imagination", strings.TrimPrefix(part, "img-"), false
		case strings.HasPrefix(part, "adreno-"): // qcom,adreno-630.2: the last is the revision
			series, _, _ := strings.Cut(part[len("adreno-"):], ".")
			return "Qualcomm", "Adreno " + series, false
		case maker == "vivante":
			return "Vivante", "", false
		}
	}
	maker, part, _ := strings.Cut(compatible[0], ",")
	if !slices.Contains([]string{"nvidia", "qcom", "brcm"}, maker) {
		return "", "", false
	}
	return vendorName(maker), part, false
}

// treeModels maps names of the kernel's device tree bindings to models that the names do not spell out.
func treeModels() map[string]string {
	return map[string]string{
		"allwinner,sun50i-h616-mali": "Arm Mali-G31",
		"amlogic,meson-g12a-mali":    "Arm Mali-G31",
		"brcm,2711-v3d":              "Broadcom VideoCore VI",
		"brcm,2712-v3d":              "Broadcom VideoCore VII",
		"brcm,bcm2835-vc4":           "Broadcom VideoCore IV",
		"mediatek,mt8183-mali":       "Arm Mali-G72",
		"mediatek,mt8186-mali":       "Arm Mali-G52",
		"mediatek,mt8188-mali":       "Arm Mali-G57",
		"mediatek,mt8192-mali":       "Arm Mali-G57",
		"nvidia,ga10b":               "NVIDIA GA10B",
		"nvidia,gk20a":               "NVIDIA GK20A",
		"nvidia,gm20b":               "NVIDIA GM20B",
		"nvidia,gp10b":               "NVIDIA GP10B",
		"nvidia,gv11b":               "NVIDIA GV11B",
		"nxp,imx95-mali":             "Arm Mali-G310",
		"rockchip,px30-mali":         "Arm Mali-G31",
		"rockchip,rk3568-mali":       "Arm Mali-G52",
		"rockchip,rk3588-mali":       "Arm Mali-G610",
	}
}

const (
	vivanteGPU = iota
	vivanteNPU
)

// vivante returns a Vivante core's model: device trees name all alike; only the driver could ask.
func (m *machine) vivante(core int) string {
	models := map[string][2]string{
		"fsl,imx6q":  {"GC2000", ""},
		"fsl,imx6dl": {"GC880", ""},
		"fsl,imx8mm": {"GCNanoUltra", ""},
		"fsl,imx8mn": {"GC7000UL", ""},
		"fsl,imx8mp": {"GC7000UL", "VIP8000"},
		"fsl,imx8mq": {"GC7000L", ""},
		"fsl,imx8qm": {"GC7000XSVX", ""},
	}
	for _, c := range m.texts(deviceTree, "compatible") {
		if cores, known := models[c]; known {
			return cores[core]
		}
	}
	return ""
}
