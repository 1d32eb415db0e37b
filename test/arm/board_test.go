//go:build armboot

package arm

// release of Debian that is booted.
const release = "bookworm"

// memory of every machine, in MiB.
const memory = "256"

// board is a kind of machine.
type board struct {
	arch    string // Debian's name of it
	program string // architecture of programs, as GOARCH with /v7 for armv7
	kernel  string // package of the kernel
	user    string // emulator of programs
	system  string // emulator of machines
	machine []string
}

var boards = []board{
	{
		arch: "arm64", program: "arm64", kernel: "linux-image-arm64",
		user: "qemu-aarch64", system: "qemu-system-aarch64", machine: []string{"-machine", "virt", "-cpu", "cortex-a53"},
	},
	{
		arch: "armhf", program: "arm/v7", kernel: "linux-image-armmp-lpae",
		user: "qemu-arm", system: "qemu-system-arm", machine: []string{"-machine", "virt", "-cpu", "cortex-a15"},
	},
}
