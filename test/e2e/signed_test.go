package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/margolite/margolite/agent/margo"
	"github.com/margolite/margolite/test/cosigned"
	"github.com/margolite/margolite/test/wfmsim/registry"
)

// signs makes a key, and gives the file of its public half.
func signs(t *testing.T) (key *cosigned.Key, file string) {
	t.Helper()
	key, err := cosigned.NewKey("p256")
	check(t, err)
	public, err := key.Public()
	check(t, err)
	file = filepath.Join(t.TempDir(), "cosign.pub")
	check(t, os.WriteFile(file, public, 0o600))
	return key, file
}

// On a device that demands it, a signed image runs, and goes on without a
// registry; an update whose image is not signed by a key of the device is refused
// before anything of the image is fetched, and what runs is left alone. With the
// key of who signed it, it is let in.
func TestPOL07ImagesAreSignedByAKeyOfTheDevice(t *testing.T) {
	long(t, "the rest of policy")
	own, ownFile := signs(t)
	vendor, vendorFile := signs(t)
	signed := func(files string) map[string]string {
		return map[string]string{"imageKeys": `{"*": [` + files + "]}", "allow": "{unsignedImages: false}"}
	}
	r := newRigRuled(t, signed(ownFile))
	sign := func(repository string, key *cosigned.Key) {
		a := programs.tools
		if repository == "margolite/demoapp" {
			a = programs.application.Image("2.0.0")
		}
		signature, err := cosigned.Simple(r.Registry.Address()+"/"+repository, a.Digest, key)
		check(t, err)
		check(t, r.Push(t.Context(), repository, cosigned.Tag(a.Digest), signature))
	}
	refused := func(version uint64, says string, asked int) {
		t.Helper()
		if fault := r.failsWith(labID, "NOT_ALLOWED", version); !containsAll(fault.Message, "policy.allow.unsignedImages", "tools", "demoapp:2.0.0", says) {
			t.Errorf("the WFM heard %q, want the rule, the service and the image", fault.Message)
		}
		image := programs.application.Image("2.0.0")
		for _, q := range r.Registry.Requests().Requests()[asked:] {
			for d := range image.Blobs {
				if q.Endpoint == registry.EndpointBlob && strings.Contains(q.Path, d.String()) {
					t.Errorf("the image of what is refused was asked for: %s", q.Path)
				}
			}
		}
	}
	update := strings.NewReplacer("tools:1.0.0", "demoapp:2.0.0", `[sleep, "100000"]`, "[web]").Replace(admittedFile)

	first := r.application(labID, "1.0.0", admittedFile, nil)
	sign("margolite/tools", own)
	r.install(first)
	before := r.services(labID)

	asked := len(r.Registry.Requests().Requests())
	refused(r.publish(r.application(labID, "2.0.0", update, nil)).Version, "nobody has signed", asked)
	r.untouched(labID, before)

	sign("margolite/demoapp", vendor)
	asked = len(r.Registry.Requests().Requests())
	done := r.publish(r.application(labID, "3.0.0", update, nil))
	refused(done.Version, "none of the keys", asked)
	r.Kill()
	r.running()
	r.settled(labID)
	r.untouched(labID, before)

	check(t, r.Reconfigure(ruled(signed(ownFile+", "+vendorFile))))
	r.await(labID, margo.Installed, done.Version)

	// What was accepted needs no registry, nor a key that is gone by now.
	before = r.services(labID)
	check(t, r.Registry.Close())
	check(t, r.Configure(ruled(signed(ownFile))))
	r.Kill()
	r.powerOff()
	r.running()
	r.settled(labID)
	if after := r.services(labID); after["tools"].Image != before["tools"].Image || !strings.Contains(after["tools"].Image, "demoapp") {
		t.Errorf("after a power cut runs %+v, before it %+v", after, before)
	}
}
