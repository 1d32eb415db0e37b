package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/margolite/margolite/test/expect"
)

// awaiting is a command line on a device without a WFM, with a directory for
// provisioning files, and what it logs.
func awaiting(t *testing.T) (c *cli, provision string, log *bytes.Buffer) {
	t.Helper()
	dir := t.TempDir()
	provision, log = filepath.Join(dir, "provision.d"), &bytes.Buffer{}
	file := write(t, filepath.Join(dir, "config.yaml"), fmt.Sprintf("state: {dir: %s/state, run: %s/run}\nprovision: {from: [%s]}\n", dir, dir, provision))
	return &cli{configFile: file, out: &bytes.Buffer{}, err: log}, provision, log
}

func TestWithoutWFMAndPlaceForProvisioningTheAgentSaysWhatIsMissing(t *testing.T) {
	c, _, _ := awaiting(t)
	expect.ErrorWith(t, expect.ErrorOf(c.awaitWFM(t.Context(), &service{})), "wfm.url: required here", "it ends")
}

func TestTheAgentIsEnrolledByWhatLiesThere(t *testing.T) {
	c, provision, log := awaiting(t)
	check(t, os.Mkdir(provision, 0o755))
	write(t, filepath.Join(provision, "plant.yaml"), "wfm: {url: https://wfm.example.com}\n")
	for range 2 { // it is the same after a restart
		expect.Equal(t, expect.Value(c.awaitWFM(t.Context(), &service{}))(t).WFM.URL, "https://wfm.example.com", "the WFM")
	}
	expect.Equal(t, strings.Count(log.String(), "this device is enrolled"), 1, "times that it was enrolled")
}

func TestTheAgentWaitsToBeEnrolled(t *testing.T) {
	c, provision, log := awaiting(t)
	check(t, os.Mkdir(provision, 0o755))
	write(t, filepath.Join(provision, "plant.yaml"), "policy: {}\n")
	ctx, stop := context.WithCancel(t.Context())
	stop()
	if cfg, err := c.awaitWFM(ctx, &service{}); cfg != nil || err != nil {
		t.Errorf("it goes on with %+v: %v", cfg, err)
	}
	for _, want := range []string{"waiting for provisioning files", provision, "cannot enrol this device", "policy: unknown key"} {
		expect.Contains(t, log.String(), want, "the log")
	}
}
