package compose

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/margolite/margolite/runtime"
	"github.com/margolite/margolite/runtime/container"
	"github.com/margolite/margolite/test/containerdtest"
	"github.com/margolite/margolite/test/expect"
	"github.com/margolite/margolite/test/leftovers"
)

// TestExternal has one project use the network and the volume of another, which
// may go first: what they share stays until the last of them has gone.
func TestExternal(t *testing.T) {
	if testing.Short() {
		t.Skip("in make test-all: projects that share")
	}
	const maker = `
services:
  db:
    image: ${TOOLS}
    command: sh -c 'echo shared > /data/f; exec sleep 1000'
    volumes: [data:/data]
    networks: [plant]
networks: {plant: {name: plant-net}}
volumes: {data: {}}
`
	const user = `
services:
  web:
    image: ${TOOLS}
    volumes: [theirs:/theirs]
    networks: [shared]
networks: {shared: {external: true, name: plant-net}}
volumes: {theirs: {external: true, name: maker_data}}
`
	for _, backend := range containerdtest.Backends() {
		t.Run(backend.Name, func(t *testing.T) {
			d := newDevice(t, backend)
			before := leftovers.Take(t, d.look)
			d.up(t, "maker", maker)
			d.up(t, "user", user)
			if out := d.sh(t, "user", "web", "cat /theirs/f; ping -c 1 db"); !strings.HasPrefix(out, "shared") || !strings.Contains(out, "1 packets received") {
				t.Errorf("web sees %s", out)
			}
			check(t, d.engine.Remove(t.Context(), "maker"))
			if out := d.sh(t, "user", "web", "cat /theirs/f; ip -o address show eth0"); !strings.HasPrefix(out, "shared") || !strings.Contains(out, "inet ") {
				t.Errorf("after its maker has gone, web sees %s", out)
			}
			check(t, d.engine.RemoveWith(t.Context(), "user", runtime.RemoveOptions{Volumes: true}))
			expect.Equal(t, string(expect.Value(os.ReadFile(filepath.Join(d.state, "volumes/maker/data/f")))(t)), "shared\n", "the volume of maker")
			d.remove(t, "maker", before)
		})
	}
}

// up runs a Compose file.
func (d *device) up(t *testing.T, project, text string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "compose.yaml")
	check(t, os.WriteFile(file, []byte(text), 0o600))
	p := expect.Value(d.load(t.Context(), runtime.Source{Project: project, File: file, Environment: d.environment}))(t)
	check(t, d.engine.Apply(t.Context(), p, runtime.ApplyOptions{}))
}

// sh runs a shell command in a service and returns what it prints.
func (d *device) sh(t *testing.T, project, service, command string) string {
	t.Helper()
	var out bytes.Buffer
	expect.Value(d.engine.Exec(t.Context(), d.observe(t, project)[service], container.Exec{Args: []string{"/bin/sh", "-c", command}, Stdout: &out, Stderr: &out}))(t)
	return out.String()
}
