package e2e

import (
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/margolite/margolite/agent/margo"
	"github.com/margolite/margolite/test/ociimage"
	"github.com/margolite/margolite/test/plant"
)

// PKG-15: packages of earlier revisions of the standard are files behind a URL,
// an archive or the Compose file itself.
func TestPackagesBehindURLs(t *testing.T) {
	composeFile := programs.component.Files["compose.yaml"]
	archive, err := ociimage.TarGzip([]ociimage.Entry{{Name: "docker-compose.yml", Data: composeFile}})
	check(t, err)
	served := http.NewServeMux()
	served.HandleFunc("GET /demo.tar.gz", func(w http.ResponseWriter, _ *http.Request) { w.Write(archive) })
	served.HandleFunc("GET /compose.yaml", func(w http.ResponseWriter, _ *http.Request) { w.Write(composeFile) })
	server := httptest.NewServer(served)
	defer server.Close()

	r := newRig(t, "embedded")
	config, err := os.ReadFile(r.ConfigFile())
	check(t, err)
	host := strings.TrimPrefix(server.URL, "http://")
	registries := strings.Replace(string(config), "registries: {", `registries: {"`+host+`": {plainHTTP: true}, `, 1)
	check(t, os.WriteFile(r.ConfigFile(), []byte(registries), 0o600))
	r.running()
	for file, greeting := range map[string]string{"demo.tar.gz": "from an archive", "compose.yaml": "from a file"} {
		document := `apiVersion: application.margo.org/v1alpha1
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
          packageLocation: ` + server.URL + "/" + file + `
  parameters:
    registry: {value: "` + r.Registry.Address() + `", targets: [{pointer: ENV.REGISTRY, components: [demo]}]}
    greeting: {value: ` + greeting + `, targets: [{pointer: ENV.GREETING, components: [demo]}]}
`
		done, err := r.WFM.Publish(plant.Client, []byte(document))
		check(t, err)
		r.await(demoID, margo.Installed, done.Version)
		if a := r.answers(8090); a.Greeting != greeting {
			t.Errorf("%s: the application says %+v", file, a)
		}
	}
}
