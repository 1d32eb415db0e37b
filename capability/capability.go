package capability

import (
	"cmp"
	"context"
	"errors"
	"runtime"
)

// Options say where to look and what for.
type Options struct {
	// StateDir is the directory whose file system is offered as storage, as the process sees it
	// (not below root). It need not exist yet. Default: the root directory.
	StateDir string
	// Architecture of the machine's programs. Default: the kernel's, else this program's.
	Architecture string
	// Workloads is the workloads' control group below the root, whose limits apply. Empty: none.
	Workloads string
}

// Facts are what a machine offers.
type Facts struct {
	CPU         CPU
	Memory      uint64 // bytes: all of it, or the limit of the container that the machine is
	Storage     uint64 // bytes: size of the file system of the state directory
	Interfaces  []Interface
	Peripherals []Peripheral
	Identity    Identity
}

// CPU describes the processors of the machine.
type CPU struct {
	Cores        float64 // the online ones, or the quota of the container that the machine is
	Architecture string  // as Go or the kernel names it: amd64, arm64, aarch64, arm, riscv64
	Variant      string  // of 32-bit ARM: v6, v7, v8; empty: not known
}

// Interface is a communication interface of the machine.
type Interface struct {
	Kind Kind
	Name string // the kernel's name
}

// Identity is the machine's own description; unknown fields are empty.
type Identity struct {
	Vendor          string
	Model           string
	SerialNumber    string
	MachineID       string // of the installed system: survives an upgrade, changes with a new installation
	HardwareAddress string // the permanent one of the first wired interface
	Hostname        string
}

// Discover reads the facts of the machine whose file system starts at root.
func Discover(ctx context.Context, root string, o Options) (Facts, error) {
	if o.StateDir == "" {
		o.StateDir = root
	}
	m := machine{root: root}
	o.Architecture = cmp.Or(o.Architecture, m.architecture(), runtime.GOARCH)
	limits := m.limits(o.Workloads)
	facts := Facts{
		CPU:         m.cpu(ctx, o.Architecture, limits),
		Memory:      m.memory(ctx, limits),
		Storage:     m.storage(ctx, o.StateDir),
		Interfaces:  m.interfaces(),
		Peripherals: m.peripherals(),
		Identity:    m.identity(),
	}
	return facts, errors.Join(m.errs...)
}
