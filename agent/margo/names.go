package margo

import (
	"strconv"
	"strings"

	"github.com/google/uuid"
	"golang.org/x/mod/semver"
)

// The specification's patterns, written out: compiled expressions would stay in memory.

const (
	digits   = "0123456789"
	lower    = "abcdefghijklmnopqrstuvwxyz"
	upper    = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
	hexLower = "0123456789abcdef"
)

// only reports whether s is one or more characters of the set.
func only(set, s string) bool {
	return s != "" && strings.Trim(s, set) == ""
}

// SameID compares two deployment ids regardless of case.
func SameID(a, b string) bool {
	return strings.EqualFold(a, b)
}

// maxDeploymentID bounds an id that is not a UUID.
const maxDeploymentID = 128

// IsDeploymentID reports whether s can be the id of a deployment: a UUID, as the standard asks
// for, or another name that is safe in a path, a file name and a log.
func IsDeploymentID(s string) bool {
	return len(s) <= maxDeploymentID && only(lower+upper+digits+"._~-", s) && strings.Contains(lower+upper+digits, s[:1])
}

// canReport reports whether a status can be posted about id, which then is escaped.
func canReport(id string) bool {
	return len(id) <= maxDeploymentID && isPrintable(id) && strings.Trim(id, ".") != ""
}

// IsUUID reports whether s is a UUID, as the id of a deployment should be:
// ^[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}$
func IsUUID(s string) bool {
	return len(s) == 36 && uuid.Validate(s) == nil // other forms have other lengths
}

// isDigest: ^sha256:[0-9a-f]{64}$
func isDigest(s string) bool {
	encoded, ok := strings.CutPrefix(s, "sha256:")
	return ok && len(encoded) == 64 && only(hexLower, encoded)
}

// isDeviceID: ^[A-Za-z0-9._~-]+(\/[A-Za-z0-9._~-]+)*$
func isDeviceID(s string) bool {
	if len(s) > maxName {
		return false
	}
	for segment := range strings.SplitSeq(s, "/") {
		if !only(lower+upper+digits+"._~-", segment) {
			return false
		}
	}
	return true
}

// isTarget is isDeviceID with an optional /* at the end.
func isTarget(s string) bool {
	return isDeviceID(strings.TrimSuffix(s, "/*"))
}

// maxName bounds names that the specification leaves unbounded.
const maxName = 512

// isName, of an application or a component: ^[-a-z0-9]{1,200}$
func isName(s string) bool {
	return len(s) <= 200 && only(lower+digits+"-", s)
}

// isRevision: a Semantic Version without leading "v", with "_" in place of "+", short enough for
// an OCI tag.
func isRevision(s string) bool {
	v := "v" + strings.ReplaceAll(s, "_", "+")
	// Canonical adds missing numbers and leaves the build out.
	return len(s) <= 128 && !strings.Contains(s, "+") && v == semver.Canonical(v)+semver.Build(v)
}

// isTag: ^[a-zA-Z0-9_][a-zA-Z0-9._-]{0,127}$
func isTag(s string) bool {
	return len(s) <= 128 && only(lower+upper+digits+"._-", s) && s[0] != '.' && s[0] != '-'
}

// isRepository: ^oci://.+, without characters that no reference has.
func isRepository(s string) bool {
	rest, ok := strings.CutPrefix(s, "oci://")
	return ok && rest != "" && isPrintable(s)
}

// isPrintable reports whether s is visible ASCII and of reasonable length.
func isPrintable(s string) bool {
	return len(s) <= 2048 && strings.IndexFunc(s, func(c rune) bool { return c <= ' ' || c > '~' }) < 0
}

// isVariable: ^[A-Za-z_][A-Za-z0-9_]*$
func isVariable(s string) bool {
	return only(lower+upper+digits+"_", s) && !strings.ContainsRune(digits, rune(s[0]))
}

// isPortNumber: 1 to 65535 without leading zeros.
func isPortNumber(s string) bool {
	n, err := strconv.ParseUint(s, 10, 16)
	return err == nil && n > 0 && s[0] != '0'
}

// isExtension: ^x-[a-z][a-z0-9-]*-extensions$
func isExtension(s string) bool {
	name, ok := strings.CutPrefix(s, "x-")
	name, ok2 := strings.CutSuffix(name, "-extensions")
	return ok && ok2 && only(lower+digits+"-", name) && strings.ContainsRune(lower, rune(name[0]))
}
