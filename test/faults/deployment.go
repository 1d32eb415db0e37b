package faults

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/margolite/margolite/agent/margo"
	"github.com/margolite/margolite/test/expect"
	"github.com/margolite/margolite/test/ociimage"
	"github.com/margolite/margolite/test/plant"
	"github.com/margolite/margolite/test/wfmsim"
)

// deployment is what the WFM wants and wanted of one, and what is known of it.
type deployment struct {
	id       string
	name     string
	port     int
	services []string

	published []revision
	next      int    // number of the next revision
	counted   uint64 // the last number that it gave out
}

// revision is a revision that was published, or that there is none.
type revision struct {
	number   int
	version  uint64 // of the manifest
	kind     kind
	digest   string
	kills    int // that had been before
	failures int // of the medium that had been before
}

// kind says what becomes of a revision.
type kind string

const (
	good    kind = "good"
	stuck   kind = "stuck"   // its program cannot be started
	absent  kind = "absent"  // its image does not exist
	removed kind = "removed" // the deployment is taken back
)

// The applications: all count what they are asked for on a volume, one of them
// behind another service.
const (
	pairFile = `
services:
  web:
    image: ${REGISTRY}/margolite/demoapp:${TAG}
    entrypoint: ["${PROGRAM}"]
    command: [web]
    environment: {FAULTS_NAME: "${NAME}", FAULTS_REVISION: "${REVISION}", FAULTS_SERVICE: web}
    ports: ["${PORT}:8080"]
    depends_on: [counter]
    stop_grace_period: 1s
    restart: unless-stopped` + counter
	soloFile = `
services:` + counter + `
    entrypoint: ["${PROGRAM}"]
    ports: ["${PORT}:9090"]`
	counter = `
  counter:
    image: ${REGISTRY}/margolite/demoapp:${TAG}
    command: [counter]
    environment: {FAULTS_NAME: "${NAME}", FAULTS_REVISION: "${REVISION}", FAULTS_SERVICE: counter}
    volumes: ["data:/data"]
    stop_grace_period: 1s
    restart: unless-stopped`
	volumes          = "\nvolumes: {data: {}}\n"
	componentVersion = "1.0.0"
)

func (r *Rig) deploymentsOf() []*deployment {
	return []*deployment{
		{id: "fa017500-0000-4000-8000-000000000001", name: "pair", port: 8101, services: []string{"counter", "web"}},
		{id: "fa017500-0000-4000-8000-000000000002", name: "solo", port: 8102, services: []string{"counter"}},
		{id: "fa017500-0000-4000-8000-000000000003", name: "lone", port: 8103, services: []string{"counter"}},
	}
}

// pushComponents puts into the registry what deployments are made of, besides images.
func (r *Rig) pushComponents() {
	r.T.Helper()
	for name, file := range map[string]string{"pair": pairFile, "solo": soloFile, "lone": soloFile} {
		c := ociimage.Component{Name: name, Version: componentVersion, Files: ociimage.Files{"compose.yaml": []byte(file + volumes)}}
		component := expect.Value(c.Build())(r.T)
		check(r.T, r.Push(r.T.Context(), "apps/"+name, componentVersion, component))
	}
}

// now is the newest revision; removed where there has been none.
func (d *deployment) now() revision {
	if len(d.published) == 0 {
		return revision{kind: removed}
	}
	return d.published[len(d.published)-1]
}

// change publishes another revision of a deployment, or takes it back.
func (r *Rig) change(d *deployment, k kind) {
	r.T.Helper()
	next := revision{kind: k, kills: r.kills, failures: r.failures}
	if k == removed {
		next.version = expect.Value(r.Remove(d.id))(r.T)
	} else {
		d.next++
		next.number = d.next
		done := expect.Value(r.Publish(r.document(d, next)))(r.T)
		next.version, next.digest = done.Version, done.Digest.String()
	}
	d.published = append(d.published, next)
	r.T.Logf("manifest %d: %s is %s %d", next.version, d.name, next.kind, next.number)
}

func (r *Rig) document(d *deployment, next revision) wfmsim.Deployment {
	w := r.Deployment(d.id, map[string]any{
		"NAME": d.name, "REVISION": next.number, "PORT": d.port, "PROGRAM": "/demoapp",
		"TAG": versions[next.number/2%len(versions)], // not with each
	})
	switch next.kind {
	case stuck:
		w.Parameters["PROGRAM"] = "/nothing"
	case absent:
		w.Parameters["TAG"] = "0.0.0"
	}
	w.Name = d.name
	w.Components = []wfmsim.Component{{Name: d.name, Repository: r.Registry.Address() + "/apps/" + d.name, Revision: componentVersion}}
	return w
}

// ends are the states that the WFM may hear in the end.
func (k kind) ends() margo.State {
	switch k {
	case removed:
		return margo.Removed
	case good:
		return margo.Installed
	default:
		return margo.Failed
	}
}

// count asks the application for its next number.
func (d *deployment) count(ctx context.Context) (uint64, error) {
	if len(d.services) > 1 {
		a, err := plant.Ask(ctx, d.port)
		return a.Visit, err
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, fmt.Sprintf("http://127.0.0.1:%d/next", d.port), nil)
	if err != nil {
		return 0, err
	}
	req.Close = true
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return 0, fmt.Errorf("%s", res.Status)
	}
	var n uint64
	_, err = fmt.Fscan(io.LimitReader(res.Body, 64), &n)
	return n, err
}
