package margo

import (
	"fmt"
	"math/bits"
	"strconv"
	"strings"
)

// Quantity is an amount of memory or storage in bytes.
type Quantity uint64

// Binary units (CAP-11).
const (
	KiB Quantity = 1 << (10 * (iota + 1))
	MiB
	GiB
	TiB
	PiB
	EiB
)

// String writes the quantity as the wire wants it: an integer and a unit,
// rounded down. The unit is the largest that loses nothing but what is
// below one Mi (below one Ki for less than one Mi), so that a device with
// 7866 Mi of memory does not have to call it 7 Gi.
func (q Quantity) String() string {
	switch {
	case q < MiB:
		return strconv.FormatUint(uint64(q/KiB), 10) + "Ki"
	case q/MiB%1024 != 0:
		return strconv.FormatUint(uint64(q/MiB), 10) + "Mi"
	default:
		// No larger unit than this is allowed for memory.
		return strconv.FormatUint(uint64(q/GiB), 10) + "Gi"
	}
}

// MarshalText is String, for JSON.
func (q Quantity) MarshalText() ([]byte, error) { return []byte(q.String()), nil }

// ParseQuantity reads a decimal number with a binary unit, as in "59Gi",
// "59 Gi" or "1.5Gi"; parts of a byte are dropped.
func ParseQuantity(s string) (Quantity, error) {
	units := map[string]Quantity{"Ki": KiB, "Mi": MiB, "Gi": GiB, "Ti": TiB, "Pi": PiB, "Ei": EiB}
	end := strings.LastIndexAny(s, digits) + 1
	unit, known := units[strings.TrimLeft(s[end:], " ")]
	whole, fraction, point := strings.Cut(s[:end], ".")
	if !known || !only(digits, whole) || point && !only(digits, fraction) {
		return 0, fmt.Errorf("must be a number with one of the units Ki, Mi, Gi, Ti, Pi, Ei, is %.80q", s)
	}
	tooLarge := fmt.Errorf("must be less than 16Ei, is %.80q", s)

	n, err := strconv.ParseUint(whole, 10, 64)
	if err != nil {
		return 0, tooLarge
	}
	high, bytes := bits.Mul64(n, uint64(unit))
	if high != 0 {
		return 0, tooLarge
	}
	// More digits than these say less than a byte even of the largest unit.
	fraction = fraction[:min(len(fraction), 19)]
	if fraction != "" {
		numerator, err := strconv.ParseUint(fraction, 10, 64)
		if err != nil {
			return 0, tooLarge
		}
		denominator := uint64(1)
		for range fraction {
			denominator *= 10
		}
		high, low := bits.Mul64(numerator, uint64(unit))
		part, _ := bits.Div64(high, low, denominator)
		bytes += part // cannot overflow: the whole part is a multiple of the unit, this less than one
	}
	return Quantity(bytes), nil
}
