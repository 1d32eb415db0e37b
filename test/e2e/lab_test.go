package e2e

import (
	"archive/tar"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/margolite/margolite/test/expect"
	"github.com/margolite/margolite/test/ociimage"
	"github.com/margolite/margolite/test/wfmsim"
)

// labID is the deployment of an application that a test writes itself.
const labID = "1ab01ab0-8912-45f4-a523-372358765def"

// toolsImage is an image of busybox.
func toolsImage() (*ociimage.Artifact, error) {
	entries, err := ociimage.Busybox("cat", "nc", "sh", "sleep", "stat", "test", "touch", "wget")
	if err != nil {
		return nil, err
	}
	return ociimage.Build(ociimage.Image{
		Layers: []ociimage.Layer{{Entries: append(entries, ociimage.Entry{Name: "tmp/", Type: tar.TypeDir, Mode: 0o777})}},
		Config: ocispec.ImageConfig{Env: []string{"PATH=/bin"}},
	})
}

// application pushes an application of one Compose file with the image of tools,
// and describes its deployment. Files lie beside the Compose file.
func (r *rig) application(id, version, file string, files ociimage.Files) wfmsim.Deployment {
	r.t.Helper()
	expect.Check(r.t, r.Push(r.t.Context(), "margolite/tools", "1.0.0", programs.tools))
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

// compose makes a component of one Compose file.
func compose(name, version, file string) ociimage.Component {
	return ociimage.Component{Name: name, Version: version, Files: ociimage.Files{"compose.yaml": []byte(file)}}
}

func containsAll(s string, parts ...string) bool {
	for _, part := range parts {
		if !strings.Contains(s, part) {
			return false
		}
	}
	return true
}

// shows fails the test unless the command line succeeds and prints all parts.
func (r *rig) shows(command string, parts ...string) (out string) {
	r.t.Helper()
	out, err := r.margolite(strings.Fields(command)...)
	expect.True(r.t, err == nil && containsAll(out, parts...), "margolite %s prints %s, %v; want it with %q", command, out, err, parts)
	return out
}

// decode reads JSON that the command line printed.
func decode[T any](t *testing.T, text string) T {
	t.Helper()
	var v T
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Fatalf("cannot read %q: %v", text, err)
	}
	return v
}
