package main

import (
	"errors"
	"os"
	"testing"

	"github.com/margolite/margolite/agent"
	"github.com/margolite/margolite/capability"
	"github.com/margolite/margolite/cmd/margolite/config"
	"github.com/margolite/margolite/test/expect"
)

// A device that nothing tells from others gets an id once, and stays with it.
func TestADeviceWithoutAnIdentityKeepsTheIDMadeForIt(t *testing.T) {
	cfg := config.Default()
	cfg.State.Dir = t.TempDir()
	machine := capability.Identity{Hostname: "localhost"}
	is := func() (string, error) {
		d, err := deviceAs(cfg, "/", func() (capability.Facts, error) { return capability.Facts{Identity: machine}, nil })
		return d.ID, err
	}
	expect.Error(t, expect.ErrorOf(is()), errNoIdentity, "without any")
	device, err := identified(cfg, agent.Device{}, errNoIdentity)
	if err != nil || len(device.ID) < 26 {
		t.Fatalf("made is %q, %v", device.ID, err)
	}
	machine = capability.Identity{SerialNumber: "4711", MachineID: "0123456789abcdef0123456789abcdef"} // after its first start
	expect.Equal(t, expect.Value(is())(t), device.ID, "it becomes")
	expect.Equal(t, expect.Value(identified(cfg, device, nil))(t).ID, device.ID, "at the next start it becomes")
	for _, content := range []string{"", "a b", "../x\n\x00"} {
		check(t, os.WriteFile(madeDeviceID("/", cfg), []byte(content), 0o600))
		if id, err := is(); err == nil || errors.Is(err, errNoIdentity) {
			t.Errorf("with a file of %q it is %q, %v", content, id, err)
		}
	}
	cfg.Device.ID = "edge-01"
	expect.Equal(t, expect.Value(is())(t), "edge-01", "with one in the configuration it")
}
