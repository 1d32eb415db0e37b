package agent_test

import (
	"strings"
	"testing"

	"github.com/margolite/margolite/policy"
	"github.com/margolite/margolite/runtime"
	"github.com/margolite/margolite/runtime/compose"
	"github.com/margolite/margolite/runtime/image"
)

// demandsSignatures makes a site that runs signed images only.
func demandsSignatures(s *site) {
	s.set.ImageKeys = image.Keyring{"*": {"/etc/margolite/cosign.pub"}}
	s.runtime.services = map[string]map[string]*compose.Service{
		"1.0.0": {"web": {Name: "web", Image: "plant.example/web:1"}},
		"2.0.0": {"web": {Name: "web", Image: "plant.example/web:2"}},
		"3.0.0": {"web": {Name: "web", Image: "plant.example/web:2", Privileged: true}},
	}
	s.allows(func(allow *policy.Allow) { allow.UnsignedImages = false })
}

// allows makes the gate admit what every device does, but for a change.
func (s *site) allows(change func(*policy.Allow)) {
	s.t.Helper()
	allow := policy.DefaultAllow()
	change(&allow)
	gate := policy.New(policy.Options{Allow: allow})
	s.gate.admit(func(id string, ask policy.Ask) []policy.Refusal { return gate.Admit(id, ask) })
}

// An image that nobody signed is not fetched, and what runs goes on, until its key
// is one of the device's.
func TestUnsignedImagesAreNotFetched(t *testing.T) {
	s := installedSite(t, demandsSignatures)
	s.runtime.set(func() {
		s.runtime.unsigned = map[string]string{"plant.example/web:2": "there is no signature of sha256:0"}
	})
	s.updates(2, "2.0.0", "pending@1", "installing@1", "installed@1", "pending@1", "failed@2")
	s.heardError(first, "NOT_ALLOWED", "policy.allow.unsignedImages: main/web: runs image plant.example/web:2: there is no signature of sha256:0")
	s.made("stage 2.0.0", 0)
	s.runtime.await(t, first+"-main 1.0.0")

	s.restart()
	s.runtime.await(t, first+"-main 1.0.0")
	s.runtime.set(func() { s.runtime.unsigned = nil })
	s.restart()
	s.heard(first, "pending@1", "installing@1", "installed@1", "pending@1", "failed@2", "pending@2", "installing@2", "installed@2")
}

// Nobody is asked about the images of what may not come in anyway.
func TestNobodyIsAskedAboutWhatIsRefusedAnyway(t *testing.T) {
	s := newSite(t, demandsSignatures)
	s.updates(1, "3.0.0", "pending@1", "failed@1")
	s.heardError(first, "NOT_ALLOWED", "policy.allow.privileged")
	s.made("look 3.0.0", 0)
}

// As long as nobody can tell whether an image is signed, the change waits.
func TestSignaturesThatAreOutOfReachAreAwaited(t *testing.T) {
	s := newSite(t, demandsSignatures)
	s.runtime.fail("look 1.0.0", runtime.Unreachable)
	s.publish(1, map[string]string{first: document(first, "1.0.0")})
	s.reason(first, "look 1.0.0 fails")
	s.heard(first, "pending@1")
	s.runtime.fail("", "")
	s.configure()
	s.heard(first, "pending@1", "installing@1", "installed@1")
}

// What was staged and waits is judged once more before it is applied, by the keys
// of then; where nobody can tell, it waits on, and what runs is left alone.
func TestStagedImagesAreJudgedByTheKeysOfThatTime(t *testing.T) {
	s := installedSite(t, demandsSignatures)
	s.gate.close(true)
	s.updates(2, "2.0.0", "pending@1", "installing@1", "installed@1", "pending@1")
	s.eventually("staged", func() bool { return string(s.deployment(first).Phase) == "staged" })

	s.runtime.fail("look 2.0.0", runtime.Unreachable)
	s.gate.close(false)
	s.configure()
	s.reason(first, "look 2.0.0 fails")
	s.runtime.await(t, first+"-main 1.0.0")
	s.runtime.fail("", "")
	s.runtime.set(func() { s.runtime.unsigned = map[string]string{"plant.example/web:2": "no trusted key made it"} })
	s.configure()
	s.heard(first, "pending@1", "installing@1", "installed@1", "pending@1", "failed@2")
	s.runtime.await(t, first+"-main 1.0.0")
	s.made("apply 2.0.0", 0)
}

// A package that was verified by the keys of the site is signed, and stays so.
func TestPackagesVerifiedByTheKeysOfTheSiteAreSigned(t *testing.T) {
	s := newSite(t, func(s *site) {
		s.runtime.services = map[string]map[string]*compose.Service{packageURL: {"web": {Name: "web", Image: "plant.example/web:1"}}}
		s.allows(func(allow *policy.Allow) { allow.Unsigned = false })
	})
	s.publish(1, map[string]string{first: behindURL("")})
	s.heard(first, "pending@1", "failed@1")
	s.heardError(first, "NOT_ALLOWED", "policy.allow.unsigned: main: comes in an unsigned package")

	s.runtime.set(func() { s.runtime.signed = true })
	s.gate.close(true)
	s.configure()
	s.eventually("staged", func() bool { return string(s.deployment(first).Phase) == "staged" })
	s.restart(func() { s.gate.close(false) })
	s.runtime.await(t, first+"-main "+packageURL)
}

// A package from a registry that has to be signed and is not is refused with the reason, until its signature counts; what
// came before it had to be signed does not stand in for it while its registry is out of reach.
func TestPackagesFromRegistriesHaveToBeSigned(t *testing.T) {
	s := newSite(t, func(s *site) {
		web := map[string]*compose.Service{"web": {Name: "web", Image: "plant.example/web:1"}}
		s.runtime.services = map[string]map[string]*compose.Service{"1.0.0": web, "2.0.0": web}
	})
	s.installed()
	s.allows(func(allow *policy.Allow) { allow.Unsigned = false })
	s.set.Packages = &image.Trust{}
	s.configure()
	s.runtime.fail("fetch 2.0.0", runtime.Unsigned)
	s.updates(2, "2.0.0", "pending@1", "installing@1", "installed@1", "pending@1", "failed@2")
	s.heardError(first, "NOT_ALLOWED", "policy.allow.unsigned: web: fetch 2.0.0 fails")
	s.runtime.await(t, first+"-main 1.0.0")

	s.runtime.fail("fetch 1.0.0", runtime.Unreachable)
	s.publish(3, map[string]string{first: document(first, "1.0.0", "# again")})
	s.reason(first, "fetch 1.0.0 fails")

	s.runtime.fail("", "")
	s.configure()
	s.heard(first, "pending@1", "installing@1", "installed@1", "pending@1", "failed@2", "pending@2", "installing@3", "installed@3")
}

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
