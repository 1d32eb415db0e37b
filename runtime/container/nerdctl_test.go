package container_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/margolite/margolite/runtime/network"
	"github.com/margolite/margolite/test/expect"
)

// TestNerdctlFindsItsFiles looks where nerdctl 2.1 does, below --data-root.
func TestNerdctlFindsItsFiles(t *testing.T) {
	d := onOne(t)
	c := d.config("web", "echo hello; sleep 1000")
	c.Labels.Ports = []network.Port{{Protocol: "tcp", HostPort: 8080, ContainerPort: 80}}
	id := d.up(c)
	record := expect.Value(d.client.ContainerService().Get(d.ctx(), id))(t)
	dir := record.Labels["nerdctl/state-dir"]
	expect.Equal(t, expect.Value(filepath.Match(filepath.Join(d.run, "nerdctl/????????/containers", record.Labels["nerdctl/namespace"], id), dir))(t), true, "state directory %s", dir)
	expect.Eventually(d, "the log is there", func() bool {
		text, err := os.ReadFile(filepath.Join(dir, id+"-json.log"))
		return err == nil && len(text) > 0
	})
	var log struct{ Driver string }
	var ports struct {
		PortMappings []struct{ HostPort, ContainerPort int }
	}
	for name, into := range map[string]any{"log-config.json": &log, "network-config.json": &ports} {
		text := expect.Value(os.ReadFile(filepath.Join(dir, name)))(t)
		check(t, json.Unmarshal(text, into))
	}
	if log.Driver != "json-file" || len(ports.PortMappings) != 1 || ports.PortMappings[0].HostPort != 8080 {
		t.Errorf("got %+v, %+v", log, ports)
	}
	d.delete(id)
	expect.Error(t, expect.ErrorOf(os.Stat(dir)), os.ErrNotExist, "its files after the container")
}
