package e2e

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/margolite/margolite/agent/margo"
	"github.com/margolite/margolite/test/ociimage"
	"github.com/margolite/margolite/test/plant"
)

// A device that comes with the images of its applications installs them where
// there is no registry at all. Their package is a Compose file behind a URL, as
// early revisions of the standard have it.
func TestPOL09PKG15PreloadedImagesNeedNoRegistry(t *testing.T) {
	long(t, "preloaded images")
	layout, err := ociimage.Layout(map[string]*ociimage.Artifact{
		"registry.example/margolite/demoapp:1.0.0": programs.application.Image("1.0.0"),
	})
	check(t, err)
	onBackends(t, func(t *testing.T, r *rig) {
		dir := t.TempDir()
		check(t, os.WriteFile(filepath.Join(dir, "images.tar"), layout, 0o600))
		settings := usual
		settings.Runtime = map[string]string{"preload": dir}
		url := r.serve(settings)
		check(t, r.Registry.Close())
		r.running()
		done, err := r.WFM.Publish(plant.Client, []byte(documentFor(url+"/compose.yaml", "registry.example", "from the archive")))
		check(t, err)
		r.await(demoID, margo.Installed, done.Version)
		r.says(8090, "from the archive")
	})
}

// documentFor is a deployment of the demo whose package is behind a URL.
func documentFor(url, registry, greeting string) string {
	return `apiVersion: application.margo.org/v1alpha1
kind: ApplicationDeployment
id: ` + demoID + `
metadata:
  annotations: {applicationId: demo}
  name: demo-deployment
  namespace: margo
spec:
  deploymentProfile:
    type: compose
    components:
      - name: demo
        properties:
          packageLocation: ` + url + `
  parameters:
    registry: {value: "` + registry + `", targets: [{pointer: ENV.REGISTRY, components: [demo]}]}
    greeting: {value: ` + greeting + `, targets: [{pointer: ENV.GREETING, components: [demo]}]}
`
}

// serve serves the Compose file of the demonstration over plain HTTP, as /compose.yaml. The
// agent, which is not started yet, is configured for it.
func (r *rig) serve(s plant.Settings) (url string) {
	r.t.Helper()
	mux := http.NewServeMux()
	mux.HandleFunc("GET /compose.yaml", func(w http.ResponseWriter, _ *http.Request) { w.Write(programs.application.Compose()) })
	server := httptest.NewServer(mux)
	r.t.Cleanup(server.Close)
	s.Registries = append(s.Registries, strings.TrimPrefix(server.URL, "http://"))
	check(r.t, r.Configure(s))
	return server.URL
}
