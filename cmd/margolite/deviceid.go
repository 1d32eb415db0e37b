package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/margolite/margolite/agent"
	"github.com/margolite/margolite/capability"
	"github.com/margolite/margolite/cmd/command"
	"github.com/margolite/margolite/cmd/margolite/config"
	"github.com/margolite/margolite/store"
)

// deviceOf is this device's identity: configured, else generated earlier, else the machine's.
func deviceOf(ctx context.Context, cfg *config.Config) (agent.Device, error) {
	return deviceAs(cfg, "/", discover(ctx, cfg, "/"))
}

// deviceAs is deviceOf for a device with another root.
func deviceAs(cfg *config.Config, root string, discover func() (capability.Facts, error)) (agent.Device, error) {
	d := cfg.Device
	if d.ID != "" {
		return d, nil
	}
	made, err := os.ReadFile(madeDeviceID(root, cfg))
	switch {
	case err == nil:
		if d.ID = strings.TrimSpace(string(made)); d.ID == "" || d.ID != agent.DeviceID(capability.Identity{SerialNumber: d.ID}) {
			err = command.Hint(fmt.Errorf("cannot use %s: it holds no device id", madeDeviceID(root, cfg)), "write the id there by which the WFM knows this device")
		}
		return d, err
	case !errors.Is(err, fs.ErrNotExist):
		return d, fmt.Errorf("cannot read the device id: %w", err)
	}
	facts, _ := discover() // missing facts are handled below
	if d.ID = agent.DeviceID(facts.Identity); d.ID == "" {
		return d, command.Hint(errNoIdentity, "set device.id in the configuration, or start the agent, which makes one")
	}
	return d, nil
}

var errNoIdentity = errors.New("cannot derive a device id: this machine has no identity of its own")

func madeDeviceID(root string, cfg *config.Config) string {
	return filepath.Join(root, cfg.State.Dir, "device-id")
}

// identified returns d, with a new id if it has none. The id stays from then on, whatever the
// machine reports later. The caller holds the store, and thereby the folder.
func identified(cfg *config.Config, d agent.Device, err error) (agent.Device, error) {
	if !errors.Is(err, errNoIdentity) {
		return d, err
	}
	d.ID = strings.ToLower(rand.Text())
	if err := store.ReplaceFile(madeDeviceID("/", cfg), 0o600, strings.NewReader(d.ID+"\n")); err != nil {
		return d, fmt.Errorf("cannot keep the device id: %w", err)
	}
	return d, nil
}
