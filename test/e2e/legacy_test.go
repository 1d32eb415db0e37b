package e2e

import (
	"testing"

	"github.com/margolite/margolite/agent/margo"
	"github.com/margolite/margolite/test/ociimage"
	"github.com/margolite/margolite/test/plant"
)

// PKG-15: packages of earlier revisions of the standard are files behind a URL,
// an archive or the Compose file itself.
func TestPKG15PackagesBehindURLs(t *testing.T) {
	long(t, "early revisions")
	composeFile := programs.component.Files["compose.yaml"]
	archive, err := ociimage.TarGzip([]ociimage.Entry{{Name: "docker-compose.yml", Data: composeFile}})
	check(t, err)
	r := newRig(t, "embedded")
	url := r.serve(map[string][]byte{"/demo.tar.gz": archive, "/compose.yaml": composeFile})
	r.running()
	for file, greeting := range map[string]string{"demo.tar.gz": "from an archive", "compose.yaml": "from a file"} {
		done, err := r.WFM.Publish(plant.Client, []byte(documentFor(url+"/"+file, r.Registry.Address(), greeting)))
		check(t, err)
		r.await(demoID, margo.Installed, done.Version)
		if a := r.answers(8090); a.Greeting != greeting {
			t.Errorf("%s: the application says %+v", file, a)
		}
	}
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
