package margo_test

import (
	"math"
	"testing"

	"github.com/margolite/margolite/agent/margo"
	"github.com/margolite/margolite/test/expect"
)

func TestQuantitiesAreReadInAllTheirForms(t *testing.T) {
	for s, want := range map[string]margo.Quantity{
		"59 Gi":                      59 * margo.GiB,
		"0Ki":                        0,
		"0.5Mi":                      512 * margo.KiB,
		"1.5 Ti":                     1536 * margo.GiB,
		"0.3333333333333333333333Ki": 341,
		"15Ei":                       15 * margo.EiB,
		"15.99999999999999999999Ei":  math.MaxUint64,
		"2Pi":                        2048 * margo.TiB,
	} {
		got, err := margo.ParseQuantity(s)
		// A fraction is cut behind the digits that tell bytes apart.
		expect.True(t, err == nil && got <= want && want-got <= 1, "%q is %d, %v; want %d", s, got, err, want)
	}
}

func TestWhatIsNoQuantityIsRefused(t *testing.T) {
	for _, s := range []string{"", "Gi", "59", "59G", "59GB", "59gi", "-1Gi", "+1Gi", "1e3Gi", ".5Gi", "5.Gi", "1.2.3Gi", "1,5Gi", " 1Gi", "1Gi ", "16Ei", "99999999999999999999Ki", "0x1Gi", "1\tGi"} {
		if got, err := margo.ParseQuantity(s); err == nil {
			t.Errorf("%q is %d", s, got)
		}
	}
}

func TestCAP11QuantitiesAreWrittenRoundedDown(t *testing.T) {
	for want, q := range map[string]margo.Quantity{
		"0Ki":              0,
		"1023Ki":           margo.MiB - 1,
		"1Mi":              margo.MiB + 1023,
		"1Gi":              margo.GiB,
		"7866Mi":           8054996 * margo.KiB,
		"2048Gi":           2 * margo.TiB,
		"59604Mi":          62500000000,
		"17592186044415Mi": math.MaxUint64,
	} {
		expect.Equal(t, q.String(), want, "%d", q)
	}
}

func FuzzParseQuantity(f *testing.F) {
	for _, s := range []string{"59Gi", "59 Gi", "1.5Ti", "15.999Ei", "0.0000001Ki"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		q, err := margo.ParseQuantity(s)
		if err != nil {
			return
		}
		again, err := margo.ParseQuantity(q.String())
		expect.Require(t, err == nil && again <= q && q-again < margo.MiB, "%q is %d, written %s, read as %d, %v", s, q, q, again, err)
	})
}
