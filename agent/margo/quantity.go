package margo

import (
	"fmt"
	"math/big"
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

// String writes the quantity for the wire: an integer and a unit, rounded down. The unit
// is the largest that loses no more than a part of one Mi (of one Ki below one Mi), so that 7866
// Mi are not reported as 7 Gi.
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

// UnmarshalText is ParseQuantity, for JSON.
func (q *Quantity) UnmarshalText(text []byte) (err error) {
	*q, err = ParseQuantity(string(text))
	return err
}

// ParseQuantity reads a decimal number with a binary unit, as in "59Gi", "59 Gi" or "1.5Gi";
// fractions of a byte are dropped.
func ParseQuantity(s string) (Quantity, error) {
	units := map[string]Quantity{"Ki": KiB, "Mi": MiB, "Gi": GiB, "Ti": TiB, "Pi": PiB, "Ei": EiB}
	end := strings.LastIndexAny(s, digits) + 1
	unit, known := units[strings.TrimLeft(s[end:], " ")]
	whole, fraction, point := strings.Cut(s[:end], ".")
	if !known || !only(digits, whole) || point && !only(digits, fraction) {
		return 0, fmt.Errorf("must be a number with one of the units Ki, Mi, Gi, Ti, Pi, Ei, is %.80q", s)
	}
	if len(whole) > 20 || len(fraction) > 100 { // the number of bytes has 20 digits at most
		return 0, fmt.Errorf("has too many digits: %.80q", s)
	}
	number, _ := new(big.Rat).SetString(s[:end]) // has digits and a point only
	number.Mul(number, new(big.Rat).SetUint64(uint64(unit)))
	bytes := new(big.Int).Quo(number.Num(), number.Denom())
	if !bytes.IsUint64() {
		return 0, fmt.Errorf("must be less than 16Ei, is %.80q", s)
	}
	return Quantity(bytes.Uint64()), nil
}
