package margo

import (
	"math"
	"math/big"
	"regexp"
	"strings"
	"testing"

	"github.com/margolite/margolite/test/expect"
)

// The patterns as the specification publishes them.
var published = []struct {
	name    string
	pattern *regexp.Regexp
	check   func(string) bool
	longest int
}{
	{"UUID", regexp.MustCompile(`^[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}$`), IsUUID, math.MaxInt},
	{"digest", regexp.MustCompile(`^sha256:[0-9a-f]{64}$`), isDigest, math.MaxInt},
	{"device id", regexp.MustCompile(`^[A-Za-z0-9._~-]+(\/[A-Za-z0-9._~-]+)*$`), isDeviceID, maxName},
	{"target", regexp.MustCompile(`^[A-Za-z0-9._~-]+(\/[A-Za-z0-9._~-]+)*(\/\*)?$`), isTarget, maxName},
	{"application id", regexp.MustCompile(`^[-a-z0-9]{1,200}$`), isName, math.MaxInt},
	{
		"revision", regexp.MustCompile(`^(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(?:-((?:0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*)(?:\.(?:0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*))*))?(?:_([0-9a-zA-Z-]+(?:\.[0-9a-zA-Z-]+)*))?$`),
		isRevision, 128,
	},
	{"variable", regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`), isVariable, math.MaxInt},
	{"extension", regexp.MustCompile(`^x-[a-z][a-z0-9-]*-extensions$`), isExtension, math.MaxInt},
}

func names() []string {
	return []string{
		"", "a", "-", "/", "*", "a/*", "a/b/*", "a//b", "/a", "a/", "a/*/b", "ad9b614e-8912-45f4-a523-372358765def",
		"AD9B614E-8912-45f4-a523-372358765DEF", "ad9b614e891245f4a523372358765def", "ad9b614e-8912-45f4-a523-37235876def-",
		"sha256:671a64813ec0c4b7b76b034e7be67c13b03bba63458d012e42e4e745b6c14f52", "sha256:", "x.y~z_1-2",
		"1.0.9", "v1.0.9", "1.0", "01.0.9", "1.0.9-rc.1", "1.0.9-rc.01", "1.0.9-rc.01a", "1.0.9-", "1.0.9-a..b", "1.0.9--",
		"1.0.9_build.01", "1.0.9-rc.1_build-1.2", "1.0.9_a_b", "1.0.9+build", "1.0.9_-", "1.0.9-a_b-c", "0.0.0", "1.2.3.4",
		"A", "_A1", "1A", "A-B", "A.B",
		"x-a-extensions", "x--extensions", "x-1-extensions", "x-a1-b-extensions", "x-extensions", "x-A-extensions",
		"é", "a\n", "\xff",
	}
}

func TestIDsAreTheSameInAnyCase(t *testing.T) {
	const id = "ad9b614e-8912-45f4-a523-372358765def"
	expect.True(t, SameID(id, strings.ToUpper(id)) && !SameID(id, id[:35]+"0"), "ids are not compared by their digits")
}

// Names are checked as the published patterns do.
func FuzzNames(f *testing.F) {
	for _, name := range names() {
		f.Add(name)
	}
	f.Fuzz(func(t *testing.T, name string) {
		for _, p := range published {
			if want, got := p.pattern.MatchString(name) && len(name) <= p.longest, p.check(name); got != want {
				t.Fatalf("%q as %s: %t, want %t", name, p.name, got, want)
			}
		}
	})
}

func FuzzParseUint(f *testing.F) {
	for _, literal := range []string{"0", "1", "1e2", "1.5e1", "12e-1", "18446744073709551615", "18446744073709551616", "0.1e20", "-1", "1e400"} {
		f.Add(literal)
	}
	number := regexp.MustCompile(`^-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]{1,3})?$`)
	f.Fuzz(func(t *testing.T, literal string) {
		if !number.MatchString(literal) || len(literal) > 100 {
			return
		}
		exact, ok := new(big.Rat).SetString(literal)
		expect.Require(t, ok, "%s is no number", literal)
		want := exact.IsInt() && exact.Num().IsUint64() && !strings.HasPrefix(literal, "-")
		got, ok := parseUint(literal)
		expect.Require(t, ok == want && (!ok || got == exact.Num().Uint64()), "%s is %d, %t; want %s, %t", literal, got, ok, exact, want)
	})
}
