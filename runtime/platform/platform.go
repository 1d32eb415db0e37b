package platform

import (
	"errors"
	"path"
	"slices"
	"strings"

	v1 "github.com/opencontainers/image-spec/specs-go/v1"
)

// Platform is what programs are made for. Those of this package are in the form
// in which equal ones are the same: arm64 has no variant v8, and arm has v7 where
// none is named.
type Platform struct {
	OS, Architecture, Variant string
}

// Of is the platform that an image or an entry of an index describes.
func Of(described v1.Platform) Platform {
	return normal(Platform{described.OS, described.Architecture, described.Variant})
}

// Format writes what is described as it is.
func Format(described v1.Platform) string {
	return Platform{described.OS, described.Architecture, described.Variant}.String()
}

// String is the name of the platform: linux/arm/v7.
func (p Platform) String() string {
	if p.OS == "" {
		return "unknown"
	}
	return path.Join(p.OS, p.Architecture, p.Variant)
}

var (
	errForm    = errors.New("it is not of the form system/architecture/variant")
	errUnknown = errors.New("it is no system and no architecture that is known")
)

// architectures are those that may be named alone, without their system.
const architectures = "386 amd64 arm arm64 loong64 mips mips64 mips64le mipsle ppc64 ppc64le riscv64 s390x"

// Parse reads a name: system/architecture/variant, where the variant may be
// missing, or one word, the system or the architecture.
func Parse(name string) (Platform, error) {
	words := strings.SplitN(name, "/", 4)
	if len(words) > 3 || slices.ContainsFunc(words, func(w string) bool { return !isWord(w) }) {
		return Platform{}, errForm
	}
	if len(words) > 1 {
		return normal(Platform{words[0], words[1], strings.Join(words[2:], "")}), nil
	}
	here := Host()
	if strings.EqualFold(name, here.OS) {
		return here, nil
	}
	p := normal(Platform{OS: here.OS, Architecture: name})
	if !slices.Contains(strings.Fields(architectures), p.Architecture) {
		return Platform{}, errUnknown
	}
	return p, nil
}

// isWord says whether a name may have this between its slashes.
func isWord(w string) bool {
	const letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-"
	return strings.Trim(w, ".") != "" && strings.Trim(w, letters) == ""
}

// normal is the platform under the one name of each that it may have.
func normal(p Platform) Platform {
	if p.OS == "" {
		p.OS = hostOS
	}
	p.OS, p.Architecture, p.Variant = strings.ToLower(p.OS), strings.ToLower(p.Architecture), strings.ToLower(p.Variant)
	switch p.Architecture {
	case "i386":
		p.Architecture, p.Variant = "386", ""
	case "x86_64", "x86-64":
		p.Architecture = "amd64"
	case "aarch64":
		p.Architecture = "arm64"
	case "armhf":
		p.Architecture, p.Variant = "arm", "v7"
	case "armel":
		p.Architecture, p.Variant = "arm", "v6"
	}
	switch p.Architecture + " " + p.Variant {
	case "amd64 v1", "arm64 8", "arm64 v8", "arm64 v8.0":
		p.Variant = ""
	case "arm64 9", "arm64 9.0", "arm64 v9.0":
		p.Variant = "v9"
	case "arm ":
		p.Variant = "v7"
	case "arm 5", "arm 6", "arm 7", "arm 8":
		p.Variant = "v" + p.Variant
	}
	return p
}
