package container

import (
	"errors"
	"strings"
	"testing"

	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/margolite/margolite/test/expect"
)

const qemuArm64 = `enabled
interpreter /usr/libexec/qemu-binfmt/aarch64-binfmt-P
flags: POCF
offset 0
magic 7f454c460201010000000000000000000200b700
mask ffffffffffffff00fffffffffffffffffeffffff
`

func TestCheckPlatform(t *testing.T) {
	amd64 := v1.Platform{OS: "linux", Architecture: "amd64"}
	tests := []struct {
		name     string
		wanted   string
		host     v1.Platform
		handlers map[string]string
		err      string // "": it runs
	}{
		{"the same", "linux/amd64", amd64, nil, ""},
		{"without system", "amd64", amd64, nil, ""},
		{"an older one of the family", "linux/386", amd64, nil, ""},
		{"an older ARM", "linux/arm/v6", v1.Platform{OS: "linux", Architecture: "arm", Variant: "v7"}, nil, ""},
		{"a newer ARM", "linux/arm/v7", v1.Platform{OS: "linux", Architecture: "arm", Variant: "v6"}, nil, "arm"},
		{"another one", "linux/arm64", amd64, nil, "no emulator for arm64"},
		{"with an emulator", "linux/arm64", amd64, map[string]string{"status": "enabled\n", "qemu-aarch64": qemuArm64}, ""},
		{"with an emulator of another one", "linux/riscv64", amd64, map[string]string{"status": "enabled\n", "qemu-aarch64": qemuArm64}, "no emulator"},
		{"with an emulator that is off", "linux/arm64", amd64, map[string]string{"qemu-aarch64": strings.Replace(qemuArm64, "enabled", "disabled", 1)}, "no emulator"},
		{"with all emulators off", "linux/arm64", amd64, map[string]string{"status": "disabled\n", "qemu-aarch64": qemuArm64}, "disabled"},
		{"with an emulator that containers cannot reach", "linux/arm64", amd64, map[string]string{"qemu-aarch64": strings.Replace(qemuArm64, "POCF", "POC", 1)}, "flag F"},
		{"another system", "windows/amd64", amd64, nil, "linux"},
		{"a processor that nobody knows", "linux/z80", amd64, nil, "amd64"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			err := checkPlatform(test.wanted, test.host, makeTree(t, test.handlers))
			switch {
			case test.err == "" && err != nil:
				t.Error(err)
			case test.err != "" && (err == nil || !errors.Is(err, ErrPlatform) || !strings.Contains(err.Error(), test.err)):
				t.Errorf("got %v, want an error with %q", err, test.err)
			}
		})
	}
	expect.ErrorWith(t, checkPlatform("not a platform!", amd64, t.TempDir()), "", "nonsense")
	expect.OK(t, CheckPlatform(""))
}

func FuzzParseHandler(f *testing.F) {
	f.Add(qemuArm64)
	f.Add("enabled\noffset 99\nmagic 7f\nmask ff\n")
	f.Fuzz(func(t *testing.T, text string) {
		h := parseHandler(text)
		_ = h.matches(elfHeader{wide: true, machine: 183}.bytes()) // must not panic
	})
}
