package agent_test

import (
	"strings"
	"testing"

	"github.com/margolite/margolite/runtime"
)

const (
	packageURL = "https://packages.example/demo.tgz"
	keyURL     = "https://packages.example/key.asc"
)

// behindURL is a deployment whose package is behind a URL, signed if there is a key.
func behindURL(key string) string {
	properties := "packageLocation: " + packageURL
	if key != "" {
		properties += ", keyLocation: " + key
	}
	return strings.Replace(document(first, "1.0.0"), `repository: "oci://registry.example/app", revision: 1.0.0`, properties, 1)
}

// A package that has to be signed comes with its key to the runtime, and what was
// fetched without one does not stand in for it.
func TestPKG15SignedPackageIsNotReplacedByAnUnsignedOne(t *testing.T) {
	s := newSite(t)
	s.publish(1, map[string]string{first: behindURL("")})
	s.heard(first, "pending@1", "installing@1", "installed@1")
	s.runtime.await(t, first+"-main "+packageURL)

	signed := "fetch " + packageURL + " " + keyURL
	s.runtime.fail(signed, runtime.Unreachable)
	s.publish(2, map[string]string{first: behindURL(keyURL)})
	s.reason(first, signed)
	s.heard(first, "pending@1", "installing@1", "installed@1", "pending@1")
}

// What was verified when it was fetched starts again without its origin.
func TestPKG15VerifiedPackageNeedsNoOrigin(t *testing.T) {
	s := newSite(t)
	signed := "fetch " + packageURL + " " + keyURL
	s.publish(1, map[string]string{first: behindURL(keyURL)})
	s.heard(first, "pending@1", "installing@1", "installed@1")
	s.runtime.fail(signed, runtime.Unreachable)
	s.reboot()
	s.runtime.await(t, first+"-main "+packageURL+" "+keyURL)
	s.made(signed, 1)
}
