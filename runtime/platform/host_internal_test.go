package platform

import "testing"

func TestTheKernelSaysWhichARMItIs(t *testing.T) {
	for _, test := range []struct{ name, cpuinfo, machine, want string }{
		{"a board of ARMv7", "processor\t: 0\nmodel name\t: ARMv7 Processor rev 4 (v7l)\nCPU architecture: 7\n", "armv7l", "v7"},
		{"the first Raspberry Pi", "model name\t: ARMv6-compatible processor rev 7 (v6l)\nCPU architecture: 7\n", "armv6l", "v6"},
		{"ARMv6", "CPU architecture: 6TEJ\n", "armv6l", "v6"},
		{"ARMv5", "CPU architecture: 5TEJ\n", "armv5tejl", "v5"},
		{"a kernel of 64 bits", "CPU architecture: 8\n", "armv8l", "v8"},
		{"an early one of 64 bits", "CPU architecture: AArch64\n", "aarch64", "v8"},
		{"one that is newer than its kernel", "CPU architecture: ?(17)\n", "armv7l", "v7"},
		{"emulated on a PC", "vendor_id\t: GenuineIntel\n", "armv7l", "v7"},
		{"emulated, and older", "", "armv6l", "v6"},
		{"nothing that is known", "CPU architecture: ?(3)\n", "i686", ""},
		{"nothing", "", "", ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got := variantOf(test.cpuinfo, test.machine); got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}
