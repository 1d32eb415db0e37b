package e2e

import (
	"archive/tar"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/margolite/margolite/test/ociimage"
	"github.com/margolite/margolite/test/wfmsim"
)

// The lab is an application that tells what others do not: besides the demo's
// two services it has one with tools, which gives back what it gets on a port.
const (
	labID    = "1ab01ab0-8912-45f4-a523-372358765def"
	echoPort = 8097
	labFile  = `
services:
  web:
    image: ${REGISTRY}/margolite/demoapp:1.0.0
    command: [web]
    environment: {GREETING: "${GREETING:-Hello}"}
    ports: ["8090:8080"]
    restart: unless-stopped
  counter:
    image: ${REGISTRY}/margolite/demoapp:1.0.0
    command: [counter]
    volumes: ["data:/data"]
    restart: unless-stopped
  tools:
    image: ${REGISTRY}/margolite/tools:1.0.0
    command: [nc, -ll, -p, "7", -e, cat]
    stop_signal: SIGKILL
    ports: ["8097:7"]
    restart: unless-stopped
volumes:
  data: {}
`
)

// toolsImage is an image of busybox.
func toolsImage() (*ociimage.Artifact, error) {
	program, err := os.ReadFile("/bin/busybox")
	if err != nil {
		return nil, fmt.Errorf("busybox-static is needed: %w", err)
	}
	entries := []ociimage.Entry{{Name: "bin/", Type: tar.TypeDir}, {Name: "tmp/", Type: tar.TypeDir, Mode: 0o777}, ociimage.Executable("/bin/busybox", program)}
	for name := range strings.FieldsSeq("cat env false grep nc nslookup sh sleep stat test touch wget") {
		entries = append(entries, ociimage.Entry{Name: "bin/" + name, Type: tar.TypeSymlink, Link: "busybox"})
	}
	return ociimage.Build(ociimage.Image{
		Layers: []ociimage.Layer{{Entries: entries}},
		Config: ocispec.ImageConfig{Env: []string{"PATH=/bin"}},
	})
}

// application pushes an application of one Compose file with the image of tools,
// and describes its deployment. Files lie beside the Compose file.
func (r *rig) application(id, version, file string, files ociimage.Files) wfmsim.Deployment {
	r.t.Helper()
	check(r.t, r.Push(r.t.Context(), "margolite/tools", "1.0.0", programs.tools))
	c := compose("lab", version, file)
	for name, content := range files {
		c.Files[name] = content
	}
	r.pushComponent("apps/lab", c)
	d := r.Deployment(id, nil)
	d.Name = "lab-deployment"
	d.Components = []wfmsim.Component{{Name: "lab", Repository: r.Registry.Address() + "/apps/lab", Revision: version}}
	delete(d.Parameters, "PORT")
	return d
}

// inside runs a command where a process runs: with its files, network and
// names, and without asking any agent.
func (r *rig) inside(pid int, env string, command ...string) error {
	cmd := exec.CommandContext(r.t.Context(), "nsenter", append([]string{"-t", strconv.Itoa(pid), "-m", "-n", "--"}, command...)...)
	cmd.Env = append(os.Environ(), env)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%q inside process %d: %w: %s", command, pid, err, out)
	}
	return nil
}
