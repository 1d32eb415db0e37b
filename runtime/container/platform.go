package container

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/containerd/platforms"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/margolite/margolite/runtime/platform"
)

// ErrPlatform says that programs of a platform cannot run on this device.
var ErrPlatform = errors.New("the device cannot run programs of this platform")

const binfmtDir = "/proc/sys/fs/binfmt_misc"

// CheckPlatform checks whether programs of a platform, such as linux/arm/v7, run on this
// device: by its processor, or by an emulator registered with the kernel. "" is the device's
// own platform. The error wraps ErrPlatform.
func CheckPlatform(name string) error {
	if name == "" {
		return nil
	}
	return checkPlatform(name, platforms.DefaultSpec(), binfmtDir)
}

func checkPlatform(name string, host v1.Platform, handlers string) error {
	wanted, err := platform.Parse(name)
	if err != nil {
		return fmt.Errorf("platform %.40q is not valid: %w", name, err)
	}
	is := platforms.Format(platforms.Normalize(host))
	n := slices.IndexFunc(elfHeaders, func(h elfHeader) bool { return h.architecture == wanted.Architecture })
	switch same := wanted.OS == host.OS; {
	case same && platforms.Only(host).Match(wanted):
		return nil
	case !same, n < 0:
		return fmt.Errorf("platform %s: %w: this is %s", name, ErrPlatform, is)
	}
	if err := findHandler(handlers, elfHeaders[n]); err != nil {
		return fmt.Errorf("platform %s: %w: this is %s, and %w", name, ErrPlatform, is, err)
	}
	return nil
}

type elfHeader struct {
	architecture string // as Go names it
	wide, big    bool   // 64 bits, big endian
	machine      uint16
}

var elfHeaders = []elfHeader{
	{"386", false, false, 3},
	{"amd64", true, false, 62},
	{"arm", false, false, 40},
	{"arm64", true, false, 183},
	{"riscv64", true, false, 243},
	{"loong64", true, false, 258},
	{"ppc64le", true, false, 21},
	{"s390x", true, true, 22},
	{"mips", false, true, 8},
	{"mipsle", false, false, 8},
	{"mips64", true, true, 8},
	{"mips64le", true, false, 8},
}

// bytes returns the beginning of an executable, as far as handlers look.
func (h elfHeader) bytes() []byte {
	class, data := byte(1), byte(1)
	var order binary.AppendByteOrder = binary.LittleEndian
	if h.wide {
		class = 2
	}
	if h.big {
		data, order = 2, binary.BigEndian
	}
	header := append([]byte{0x7f, 'E', 'L', 'F', class, data, 1}, make([]byte, 9)...)
	return order.AppendUint16(order.AppendUint16(header, 2), h.machine) // 2: an executable
}

// findHandler looks for an emulator that the kernel starts for programs; nil: there is one.
func findHandler(dir string, programs elfHeader) error {
	if firstWord(filepath.Join(dir, "status")) == "disabled" {
		return errors.New("its emulators are disabled (binfmt_misc/status)")
	}
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	unreachable, header := "", programs.bytes()
	for _, entry := range entries {
		if entry.Name() == "status" || entry.Name() == "register" {
			continue
		}
		text, err := os.ReadFile(filepath.Join(dir, entry.Name()))
		if err != nil {
			continue // unregistered in the meantime
		}
		h := parseHandler(string(text))
		switch {
		case !h.enabled || !h.matches(header):
		case h.fixed:
			return nil
		default:
			unreachable = entry.Name()
		}
	}
	if unreachable != "" {
		return fmt.Errorf("its emulator %s is not registered for use in containers (flag F, fix-binary)", unreachable)
	}
	return fmt.Errorf("the kernel has no emulator for %s (binfmt_misc)", programs.architecture)
}

// handler is an entry of binfmt_misc: docs.kernel.org/admin-guide/binfmt-misc.html.
type handler struct {
	enabled     bool
	fixed       bool // opened when registered: containers do not need the file
	offset      int
	magic, mask []byte
}

func parseHandler(text string) handler {
	var h handler
	for line := range strings.Lines(text) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		switch key {
		case "enabled":
			h.enabled = true
		case "flags:":
			h.fixed = strings.Contains(value, "F")
		case "offset":
			h.offset, _ = strconv.Atoi(value) // written by the kernel
		case "magic":
			h.magic, _ = hex.DecodeString(value)
		case "mask":
			h.mask, _ = hex.DecodeString(value)
		}
	}
	return h
}

func (h handler) matches(program []byte) bool {
	if len(h.magic) == 0 || h.offset < 0 || h.offset+len(h.magic) > len(program) {
		return false
	}
	for i, want := range h.magic {
		mask := byte(0xff)
		if len(h.mask) == len(h.magic) {
			mask = h.mask[i]
		}
		if (program[h.offset+i]^want)&mask != 0 {
			return false
		}
	}
	return true
}
