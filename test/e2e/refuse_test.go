package e2e

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/margolite/margolite/test/ociimage"
)

// compose makes a component of one Compose file.
func compose(name, version, file string) ociimage.Component {
	return ociimage.Component{Name: name, Version: version, Files: ociimage.Files{"compose.yaml": []byte(file)}}
}

// What is wrong inside one deployment fails that deployment alone, with code,
// source and message; its former revision keeps running, and so do the others.
func TestST08ST09PKG13BadDeploymentFailsAlone(t *testing.T) {
	long(t, "failures of all kinds")
	const otherID = "b0a7e1c2-0000-4000-8000-000000000002"
	onBackends(t, func(t *testing.T, r *rig) {
		r.pushComponent("apps/demo", compose("demo", "8.0.0", "services: {web: {image: \"${REGISTRY}/margolite/nonesuch:1.0.0\"}}"))
		// It is not installed before it has ended, however long that takes.
		r.pushComponent("apps/demo", compose("demo", "9.0.0", `
services:
  web:
    image: ${REGISTRY}/margolite/demoapp:1.0.0
    command: [nonesuch]
    healthcheck: {test: [CMD, /demoapp, nonesuch], start_period: 24h}
`))
		r.running()
		r.install(r.Deployment(demoID, nil))
		r.install(r.Deployment(otherID, map[string]any{"PORT": 8092}))
		other := r.services(otherID)
		for _, c := range []struct{ revision, code, says string }{
			{"8.0.0", "ARTIFACT_NOT_FOUND", "nonesuch"},
			{"9.0.0", "CONTAINER_EXITED", "web"},
		} {
			before := r.services(demoID)
			d := r.Deployment(demoID, nil)
			d.Components[0].Revision = c.revision
			fault := r.failsWith(demoID, c.code, r.publish(d).Version)
			if fault.Source != "demo-deployment" || !strings.Contains(fault.Message, c.says) {
				t.Errorf("the WFM heard %+v, want one that says %s", fault, c.says)
			}
			r.says(8090, "Hello")
			r.settled(demoID)
			if c.code == "ARTIFACT_NOT_FOUND" {
				r.untouched(demoID, before)
			}
			r.untouched(otherID, other)
		}
		r.install(r.Deployment(demoID, map[string]any{"GREETING": "Mended"}))
		r.says(8090, "Mended")
	})
}

func containsAll(s string, parts ...string) bool {
	for _, part := range parts {
		if !strings.Contains(s, part) {
			return false
		}
	}
	return true
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
