package capability

import (
	"slices"
	"strings"
)

// PeripheralKind is a kind of peripheral.
type PeripheralKind string

// The kinds of peripherals.
const (
	GPU        PeripheralKind = "gpu"
	NPU        PeripheralKind = "npu" // neural processor
	Display    PeripheralKind = "display"
	Camera     PeripheralKind = "camera"
	Microphone PeripheralKind = "microphone"
	Speaker    PeripheralKind = "speaker"
)

// Peripheral is a device that workloads may use. Unknown fields are empty.
type Peripheral struct {
	Kind   PeripheralKind `yaml:"type" one:"gpu npu display camera microphone speaker"`
	Name   string         // the kernel's name: renderD128, video0, card1
	Vendor string         `yaml:"manufacturer" is:"line"`
	Model  string         `yaml:"model" is:"line"`
	Driver string         // of the kernel
}

const maxPeripherals = 32

func (m *machine) peripherals() []Peripheral {
	found := slices.Concat(m.processors(), m.displays(), m.cameras(), m.sound())
	var sorted []Peripheral
	for _, kind := range []PeripheralKind{GPU, NPU, Display, Camera, Microphone, Speaker} {
		left := maxPeripherals
		for _, p := range found {
			if p.Kind == kind && left > 0 {
				sorted = append(sorted, p)
				left--
			}
		}
	}
	return sorted
}

// withoutVendor removes a leading vendor from the model, as in NVIDIA and NVIDIA RTX A2000.
func withoutVendor(vendor, model string) string {
	if n := len(vendor); n > 0 && len(model) > n+1 && strings.EqualFold(model[:n], vendor) && model[n] == ' ' {
		return model[n+1:]
	}
	return model
}
