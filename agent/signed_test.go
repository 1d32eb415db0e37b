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

// What a signature does not allow fails for good, and is not asked for again.
func TestPKG15BadSignatureFailsTheComponent(t *testing.T) {
	s := newSite(t)
	signed := "fetch " + packageURL + " " + keyURL
	s.runtime.fail(signed, runtime.InvalidPackage)
	s.publish(1, map[string]string{first: behindURL(keyURL)})
	s.heard(first, "pending@1", "failed@1")
	last := s.wfm.last(first)
	if last.Error == nil || last.Error.Code != "INVALID_PACKAGE" || len(last.Components) != 1 || last.Components[0].Error == nil {
		t.Errorf("the WFM heard %+v", last)
	}
	s.restart()
	s.publish(2, map[string]string{first: behindURL(keyURL), second: document(second, "1.0.0")})
	s.heard(second, "pending@2", "installing@2", "installed@2")
	s.made(signed, 1)
}

// What was verified when it was fetched starts again without its origin.
func TestPKG15VerifiedPackageNeedsNoOrigin(t *testing.T) {
	s := newSite(t)
	signed := "fetch " + packageURL + " " + keyURL
	s.publish(1, map[string]string{first: behindURL(keyURL)})
	s.heard(first, "pending@1", "installing@1", "installed@1")
	s.runtime.fail(signed, runtime.Unreachable)
	s.stop()
	s.runtime.reset()
	s.start()
	s.runtime.await(t, first+"-main "+packageURL+" "+keyURL)
	s.made(signed, 1)
}
