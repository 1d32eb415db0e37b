package platform

import (
	"fmt"
	"strings"
)

// Runs is what a machine of this platform runs by itself, the best first: an
// ARM of 64 bits also what is for those of 32, and each what is for older ones.
func (p Platform) Runs() []Platform {
	all := []Platform{p}
	add := func(architecture, form string, numbers ...any) {
		all = append(all, normal(Platform{p.OS, architecture, fmt.Sprintf(form, numbers...)}))
	}
	major, minor := p.version()
	switch p.Architecture {
	case "amd64":
		for level := major - 1; level >= 1; level-- {
			add("amd64", "v%d", level)
		}
		add("386", "")
	case "arm":
		for version := major - 1; version >= 5; version-- {
			add("arm", "v%d", version)
		}
	case "arm64":
		if p.Variant == "" {
			major = 8
		}
		if major != 8 && major != 9 {
			break
		}
		for n := minor - 1; n >= 0; n-- {
			add("arm64", "v%d.%d", major, n)
		}
		if major == 9 { // which began with all of v8.5
			for n := min(minor+5, 9); n >= 0; n-- {
				add("arm64", "v8.%d", n)
			}
		}
		for version := 8; version >= 5; version-- {
			add("arm", "v%d", version)
		}
	}
	return all
}

// version is what the variant says: v9.2. 0 is none that can be read.
func (p Platform) version() (major, minor int) {
	digit := func(s string) int {
		if len(s) != 1 || s[0] < '0' || s[0] > '9' {
			return 0
		}
		return int(s[0] - '0')
	}
	number, found := strings.CutPrefix(p.Variant, "v")
	if !found {
		return 0, 0
	}
	first, second, _ := strings.Cut(number, ".")
	return digit(first), digit(second)
}
