package capability

import (
	"cmp"
	"slices"
)

// Offer is the operator's choice of what a machine offers. The zero value leaves the facts as
// found. Struct tags are for the package that reads the configuration.
type Offer struct {
	// Cores, Memory (bytes) and Storage (bytes) replace what was found; 0: as found.
	Cores   float64 `yaml:"cpus"`
	Memory  uint64  `yaml:"memory"`
	Storage uint64  `yaml:"storage"`
	// Reserved is what the system keeps for itself of what was found.
	Reserved Reserved `yaml:"reserved"`
	// Hidden interfaces and peripherals are not offered: each entry is a kind or a kernel name.
	// Added ones are, even if their kind is hidden.
	HiddenInterfaces  []string     `yaml:"interfaces.hide" is:"line" most:"64"`
	AddedInterfaces   []Interface  `yaml:"interfaces.add" one:"ethernet wifi cellular bluetooth usb canbus rs232" most:"64"`
	HiddenPeripherals []string     `yaml:"peripherals.hide" is:"line" most:"64"`
	AddedPeripherals  []Peripheral `yaml:"peripherals.add" most:"32"`
}

// Reserved is what the system keeps for itself.
type Reserved struct {
	Cores   float64 `yaml:"cpus"`
	Memory  uint64  `yaml:"memory"`  // bytes
	Storage uint64  `yaml:"storage"` // bytes
}

// minCores is offered even if all cores are reserved: workloads still run on them.
const minCores = 0.1

// Of returns the facts as offered (CAP-05), without changing f.
func (o Offer) Of(f Facts) Facts {
	f.CPU.Cores = cmp.Or(o.Cores, max(f.CPU.Cores-o.Reserved.Cores, min(f.CPU.Cores, minCores)))
	f.Memory = cmp.Or(o.Memory, f.Memory-min(f.Memory, o.Reserved.Memory))
	f.Storage = cmp.Or(o.Storage, f.Storage-min(f.Storage, o.Reserved.Storage))
	f.Interfaces = append(without(f.Interfaces, o.HiddenInterfaces, func(i Interface) (string, string) { return string(i.Kind), i.Name }), o.AddedInterfaces...)
	f.Peripherals = append(without(f.Peripherals, o.HiddenPeripherals, func(p Peripheral) (string, string) { return string(p.Kind), p.Name }), o.AddedPeripherals...)
	return f
}

func without[T any](all []T, hidden []string, known func(T) (kind, name string)) []T {
	return slices.DeleteFunc(slices.Clone(all), func(one T) bool {
		kind, name := known(one)
		return slices.Contains(hidden, kind) || slices.Contains(hidden, name)
	})
}
