//go:build field

package field

import (
	"bytes"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/margolite/margolite/agent/margo"
	"github.com/margolite/margolite/test/demoapp/demoimage"
	"github.com/margolite/margolite/test/expect"
	"github.com/margolite/margolite/test/plant"
)

const (
	// sandboxDir names the directory of the WFM's API, with its program symphony-api
	// and its configuration symphony-api-margo.json.
	sandboxDir = "MARGOLITE_FIELD_SANDBOX"

	sandboxURL = "https://127.0.0.1:8082/v1alpha2/margo"
	redis      = "127.0.0.1:6379"
	// rebuild is how long the WFM takes to publish a change. A poll in between makes it
	// keep an empty manifest for good.
	rebuild = 4 * time.Second
)

// sandbox is the WFM of the Margo sandbox, with a device.
type sandbox struct {
	*lab
	client  *http.Client // of its northbound API
	process *exec.Cmd
}

func newSandbox(t *testing.T) *sandbox {
	t.Helper()
	from := os.Getenv(sandboxDir)
	if from == "" {
		t.Skip("no WFM is named: make test-field SANDBOX=DIR")
	}
	s := &sandbox{lab: newLab(t, plant.Way{Revision: margo.RC1})}
	t.Cleanup(func() {
		if t.Failed() {
			log, _ := os.ReadFile(filepath.Join(s.dir, "wfm.log"))
			t.Logf("the WFM's log:\n%s", log[max(0, len(log)-12<<10):])
		}
	})
	start(t, s.dir, filepath.Join(s.dir, "redis.log"), nil, "redis-server", "--port", "6379", "--bind", "127.0.0.1", "--save", "", "--dir", s.dir)
	listens(t, redis)
	ca, roots := s.server(filepath.Join(s.dir, "certificates/server-cert.pem"), filepath.Join(s.dir, "certificates/server-key.pem"))
	s.client = &http.Client{Timeout: 30 * time.Second, Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}}}
	s.wfm()

	program := expect.Value(demoimage.Component(t.Context(), "1.0.0"))(t)
	files := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/compose.yaml" {
			http.NotFound(w, r)
			return
		}
		_, _ = w.Write(program.Files["compose.yaml"])
	}))
	t.Cleanup(files.Close)
	s.packages(files.URL)
	expect.Check(t, s.Configure(plant.Settings{
		Poll: time.Hour, Settle: time.Second, LogLevel: "debug", // the test says when
		WFM:        map[string]string{"url": sandboxURL, "ca": ca},
		Registries: []string{strings.TrimPrefix(files.URL, "http://")},
		More:       "reports: {interval: 2s}\n",
	}))
	return s
}

// wfm starts the WFM.
func (s *sandbox) wfm() {
	s.t.Helper()
	from := os.Getenv(sandboxDir)
	s.process = start(s.t, s.dir, filepath.Join(s.dir, "wfm.log"), []string{"PATH=" + filepath.Join(s.dir, "bin") + ":" + os.Getenv("PATH")},
		filepath.Join(from, "symphony-api"), "-c", filepath.Join(from, "symphony-api-margo.json"), "-l", "Error")
	listens(s.t, "127.0.0.1:8082")
}

// packages stands in for the program oras, which the WFM calls for packages: it has the
// one package of this test.
func (s *sandbox) packages(url string) {
	s.t.Helper()
	description := `apiVersion: margo.org/v1-alpha1
kind: ApplicationDescription
metadata:
  id: demo
  name: Demo
  description: the demonstration
  version: 1.0.0
  catalog:
    application: {tagline: demo, site: https://example.com, tags: [demo]}
    author: [{name: a, email: a@example.com}]
    organization: [{name: o, site: https://example.com}]
deploymentProfiles:
  - type: compose
    id: demo-compose
    components: [{name: demo, properties: {packageLocation: ` + url + `/compose.yaml}}]
parameters:
  registry: {value: ` + s.Registry.Address() + `, targets: [{pointer: ENV.REGISTRY, components: [demo]}]}
  greeting: {value: Hello, targets: [{pointer: ENV.GREETING, components: [demo]}]}
configuration:
  sections: [{name: s, settings: [{parameter: greeting, name: g, description: d, schema: text}]}]
  schema: [{name: text, dataType: string, maxLength: 45, allowEmpty: false}]
`
	expect.Check(s.t, os.Mkdir(filepath.Join(s.dir, "bin"), 0o755))
	expect.Check(s.t, os.WriteFile(filepath.Join(s.dir, "margo.yaml"), []byte(description), 0o644))
	expect.Check(s.t, os.WriteFile(filepath.Join(s.dir, "bin", "oras"), []byte("#!/bin/sh\n[ \"$1\" != pull ] || cp "+s.dir+"/margo.yaml .\n"), 0o755))
}

// call calls the northbound API.
func (s *sandbox) call(method, path string, body, answer any) error {
	text, err := json.Marshal(body)
	if err != nil {
		return err
	}
	r, err := http.NewRequestWithContext(s.t.Context(), method, sandboxURL+"/nbi/v1/"+path, bytes.NewReader(text))
	if err != nil {
		return err
	}
	r.Header.Set("Content-Type", "application/json")
	response, err := s.client.Do(r)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	got, err := io.ReadAll(io.LimitReader(response.Body, 1<<20))
	switch {
	case err != nil:
		return err
	case response.StatusCode >= 300:
		return fmt.Errorf("%s %s: %s: %.300s", method, path, response.Status, got)
	case answer != nil:
		return json.Unmarshal(got, answer)
	}
	return nil
}

// items is how the API lists things.
type items struct {
	Items []struct {
		Metadata struct{ ID, Name string }
		Status   struct{ State string }
	}
}

// awaits waits until the list at path has what is wanted.
func (s *sandbox) awaits(path string, want func(items) error) {
	s.t.Helper()
	plant.Require(s.t, "the list of "+path+" is as it should be", func() error {
		var list items
		if err := s.call(http.MethodGet, path, nil, &list); err != nil {
			return err
		}
		return want(list)
	})
}

// state waits until the WFM shows a state of a deployment; empty: it shows none. The
// device polls meanwhile and tells its states again: two reports in quick succession
// may leave the WFM with the first.
func (s *sandbox) state(id, want string) {
	s.t.Helper()
	s.awaits("app-deployments", func(list items) error {
		expect.Check(s.t, s.Control().Sync(s.t.Context()))
		state := ""
		for _, d := range list.Items {
			if d.Metadata.ID == id {
				state = d.Status.State
			}
		}
		if state != want {
			return fmt.Errorf("deployment %s is %q, want %q", id, state, want)
		}
		return nil
	})
}

// settled lets the WFM publish a change, and the device poll.
func (s *sandbox) settled() {
	s.t.Helper()
	time.Sleep(rebuild) // nothing tells when it is done, and asking too early spoils it
	expect.Check(s.t, s.Control().Sync(s.t.Context()))
}

// The main job with the public WFM as it is.
func TestTheWFMOfTheSandbox(t *testing.T) {
	s := newSandbox(t)
	s.began = time.Now()
	expect.Check(t, s.Run(t.Context()))
	var device string
	s.awaits("devices", func(list items) error {
		if len(list.Items) == 0 {
			return errors.New("there is no device")
		}
		device = list.Items[0].Metadata.ID
		return nil
	})
	s.step("onboarded, and its capabilities are known: " + device)

	pkg := map[string]any{
		"apiVersion": "non-margo.org", "kind": "ApplicationPackage", "metadata": map[string]any{"name": "demo"},
		"spec": map[string]any{"sourceType": "OCI_REPO", "source": map[string]any{"registryUrl": s.Registry.Address(), "repository": "demo", "tag": "1.0.0"}},
	}
	expect.Check(t, s.call(http.MethodPost, "app-packages", pkg, nil))
	var pkgID string
	s.awaits("app-packages", func(list items) error {
		if len(list.Items) != 1 || list.Items[0].Status.State != "ONBOARDED" {
			return fmt.Errorf("packages are %+v", list.Items)
		}
		pkgID = list.Items[0].Metadata.ID
		return nil
	})
	deploy := func(name, location, greeting string) (id string) {
		t.Helper()
		var answer struct{ Metadata struct{ ID string } }
		components := []string{"demo"}
		spec := map[string]any{
			"appPackageRef": map[string]any{"id": pkgID}, "deviceRef": map[string]any{"id": device},
			"deploymentProfile": map[string]any{"type": "compose", "components": []any{
				map[string]any{"name": "demo", "properties": map[string]any{"packageLocation": location}},
			}},
			"parameters": map[string]any{
				"greeting": map[string]any{"value": greeting, "targets": []any{map[string]any{"pointer": "ENV.GREETING", "components": components}}},
				"registry": map[string]any{"value": s.Registry.Address(), "targets": []any{map[string]any{"pointer": "ENV.REGISTRY", "components": components}}},
			},
		}
		body := map[string]any{"apiVersion": "non-margo.org", "kind": "ApplicationDeployment", "metadata": map[string]any{"name": name}, "spec": spec}
		expect.Check(t, s.call(http.MethodPost, "app-deployments", body, &answer))
		s.settled()
		return answer.Metadata.ID
	}
	location := s.location()
	good := deploy("good", location+"/compose.yaml", "servus")
	s.state(good, "INSTALLED")
	s.greets("servus")
	s.step("installed, with its parameters")

	bad := deploy("bad", location+"/none.yaml", "nobody")
	s.state(bad, "FAILED")
	s.state(good, "INSTALLED")
	s.step("a failure is a failure there")
	expect.Check(t, s.call(http.MethodDelete, "app-deployments/"+bad, nil, nil))
	s.settled()
	s.state(bad, "")
	s.step("what failed is removed")

	expect.Check(t, s.Stop())
	expect.Check(t, s.process.Process.Kill())
	_ = s.process.Wait()
	expect.Check(t, s.Run(t.Context()))
	s.greets("servus")
	s.wfm()
	expect.Check(t, s.Control().Sync(t.Context()))
	s.state(good, "INSTALLED")
	s.step("both were restarted, and it runs")

	expect.Check(t, s.call(http.MethodDelete, "app-deployments/"+good, nil, nil))
	s.settled()
	s.state(good, "")
	s.silent()
	s.step("removed")
}

// location is where the Compose file is.
func (s *sandbox) location() string {
	s.t.Helper()
	text := expect.Value(os.ReadFile(filepath.Join(s.dir, "margo.yaml")))(s.t)
	_, after, _ := strings.Cut(string(text), "packageLocation: ")
	before, _, _ := strings.Cut(after, "/compose.yaml")
	return before
}
