package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/margolite/margolite/agent/margo"
	"github.com/margolite/margolite/test/expect"
	"github.com/margolite/margolite/test/plant"
)

// A device burns down. The one that replaces it gets its backup, and is the same to the
// WFM: workloads, approvals, the counter against rollbacks. An older backup is refused.
func TestABackupIsRestoredOnASecondDevice(t *testing.T) {
	r := newRigRuled(t, map[string]string{"approval": "updates"})
	first := r.install(r.Deployment(demoID, map[string]any{"GREETING": "first"}))
	passphrase := filepath.Join(r.Dir(), "passphrase")
	expect.Check(t, os.WriteFile(passphrase, []byte("correct horse battery staple\n"), 0o600))
	backup := func(name string) string {
		file := filepath.Join(r.Dir(), name)
		expect.Value(r.margolite("backup", file, "--identity", passphrase))(t)
		return file
	}
	stale := backup("stale.tar")
	second := r.publish(r.Deployment(demoID, map[string]any{"GREETING": "second"}))
	r.waits(demoID, second.Digest, "approval")
	r.approve(demoID, second.Digest)
	r.await(demoID, margo.Installed, second.Version)
	r.quiet()
	fresh, held := backup("fresh.tar"), r.status().Manifest
	expect.Require(t, held.Version > first.Version, "the device holds %+v after %+v", held, first)

	r.stop()
	r.powerOff()
	expect.Check(t, os.RemoveAll(r.StateDir()))
	identity := map[string][]byte{}
	for _, file := range []string{r.Identity.Certificate, r.Identity.Key} {
		content := expect.Value(os.ReadFile(file))(t)
		identity[file] = content
		expect.Check(t, os.Remove(file))
	}
	config := expect.Value(os.ReadFile(r.ConfigFile()))(t)
	spare := strings.Replace(string(config), "id: "+plant.Device, "vendor: spare", 1)
	expect.Check(t, os.WriteFile(r.ConfigFile(), []byte(spare), 0o600))

	expect.ErrorWith(t, expect.ErrorOf(r.margolite("restore", fresh)), "--another-device", "the backup of another device")
	expect.Value(r.margolite("restore", fresh, "--another-device", "--identity", passphrase))(t)
	for file, want := range identity {
		expect.Equal(t, string(expect.Value(os.ReadFile(file))(t)), string(want), "%s is not what it was", file)
	}
	expect.ErrorWith(t, expect.ErrorOf(r.margolite("restore", stale, "--another-device")), "this device has accepted version", "a stale backup")

	r.running()
	r.says(8090, "second")
	r.synced()
	r.quiet()
	s := r.status()
	if s.Device != plant.Device || s.Manifest.Version != held.Version || s.Manifest.Digest != held.Digest {
		t.Errorf("the new device is %s with %+v, was %s with %+v", s.Device, s.Manifest, plant.Device, held)
	}
	if d := r.deployment(demoID); d == nil || d.Change != nil || d.Active != second.Digest.String() || d.Former != first.Digest.String() {
		t.Errorf("the deployment is %+v, want one that was approved and may be rolled back", d)
	}
	r.shows("history --json", "change.approved", "device.restored")
	r.shows("history --verify")
	expect.Check(t, os.Remove(filepath.Join(r.StateDir(), "device-id"))) // of no use with the configuration that follows
}
