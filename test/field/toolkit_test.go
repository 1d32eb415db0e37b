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
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/margolite/margolite/agent/margo"
	"github.com/margolite/margolite/test/expect"
	"github.com/margolite/margolite/test/pki"
	"github.com/margolite/margolite/test/plant"
)

const (
	// toolkitDir names the directory of the toolkit's mock, with its program
	// device-supplier and its manifests.
	toolkitDir = "MARGOLITE_FIELD_TOOLKIT"

	// What the mock deploys to begin with; what has a template of its own, and is made to
	// be an application that the registry does not have; what has another one; and an id
	// as some of its tests have it.
	first   = "a3e2f5dc-912e-494f-8395-52cf3769bc06"
	missing = "b7f1c3a0-1a2b-4c3d-9e5f-6a7b8c9d0e1a"
	other   = "c8e2d4b1-2b3c-5d4e-0f6a-7b8c9d0e1f2b"
	odd     = "self-test-app"
)

// toolkit is the mock WFM of the conformance toolkit, with a device.
type toolkit struct {
	*lab
	revision margo.Revision
	client   *http.Client // that tells the mock what to deploy
	env      []string
	process  *exec.Cmd
	settings plant.Settings
}

func newToolkit(t *testing.T, revision margo.Revision) *toolkit {
	t.Helper()
	from := os.Getenv(toolkitDir)
	if from == "" {
		t.Skip("no mock is named: make test-field TOOLKIT=DIR")
	}
	k := &toolkit{lab: newLab(t, plant.Way{Revision: revision}), revision: revision}
	expect.Check(t, os.CopyFS(filepath.Join(k.dir, "manifests"), os.DirFS(filepath.Join(from, "manifests"))))
	k.greeting("Hello")
	const another = "manifests/deployment-template-app-a.yaml"
	template := expect.Value(os.ReadFile(filepath.Join(from, another)))(t)
	template = bytes.ReplaceAll(template, []byte("registry.example.com"), []byte(k.Registry.Address()))
	expect.Check(t, os.WriteFile(filepath.Join(k.dir, another), template, 0o600))

	ca, roots := k.server(filepath.Join(k.dir, "certs/server-cert.pem"), filepath.Join(k.dir, "certs/server-key.pem"))
	root := expect.Value(os.ReadFile(ca))(t)
	expect.Check(t, os.WriteFile(filepath.Join(k.dir, "certs/ca-cert.pem"), root, 0o600))
	k.env = []string{"CTT_SAMPLE_REPOSITORY=oci://" + k.Registry.Address() + "/" + plant.Component, "CTT_SAMPLE_REVISION=" + plant.ComponentVersion, "KEEP_DATA=true"}
	k.settings = plant.Settings{
		Poll: time.Hour, Settle: time.Second, LogLevel: "debug", // the test says when
		WFM:  map[string]string{"url": "https://127.0.0.1:3001/v1alpha2/margo", "ca": ca},
		More: "metrics: {otlp: \"http://127.0.0.1:4318\", interval: 10s}\n",
	}
	tlsConfig := &tls.Config{RootCAs: roots}
	if revision == margo.RC3 {
		svid := expect.Value(k.Authority.IssueWFM(plant.WFM, pki.Hosts("127.0.0.1")))(t)
		key := expect.Value(svid.KeyPEM())(t)
		for name, content := range map[string][]byte{"svid.pem": svid.CertificatePEM(), "svid.key": key, "trust.pem": k.Authority.BundlePEM()} {
			expect.Check(t, os.WriteFile(filepath.Join(k.dir, name), content, 0o600))
		}
		k.env = append(k.env, "MIAF_SERVER_CERT=svid.pem", "MIAF_SERVER_KEY=svid.key", "MIAF_TRUST_CA=trust.pem")
		k.settings.WFM = map[string]string{"url": "https://127.0.0.1:3003/v1alpha2/margo"}
		roots.AppendCertsFromPEM(k.Authority.BundlePEM())
		device := expect.Value(tls.LoadX509KeyPair(k.Identity.Certificate, k.Identity.Key))(t)
		tlsConfig.Certificates = []tls.Certificate{device}
	}
	k.client = &http.Client{Timeout: 30 * time.Second, Transport: &http.Transport{TLSClientConfig: tlsConfig}}
	k.mock()
	expect.Check(t, k.Configure(k.settings))
	return k
}

// greeting has the applications of the mock say something from its next manifest on.
func (k *toolkit) greeting(text string) {
	k.t.Helper()
	const name = "manifests/deployment-template.yaml"
	template := expect.Value(os.ReadFile(filepath.Join(os.Getenv(toolkitDir), name)))(k.t)
	components := ""
	for line := range strings.Lines(string(template)) {
		if _, after, ok := strings.Cut(line, "- name: "); ok {
			components = strings.TrimSpace(after)
		}
	}
	parameters := "  parameters:\n"
	for parameter, value := range map[string]string{"REGISTRY": k.Registry.Address(), "GREETING": text} {
		parameters += fmt.Sprintf("    %s: {value: %q, targets: [{pointer: %s, components: [%s]}]}\n", parameter, value, parameter, components)
	}
	expect.Check(k.t, os.WriteFile(filepath.Join(k.dir, name), append(bytes.TrimRight(template, "\n"), "\n"+parameters...), 0o600))
}

// mock starts the WFM.
func (k *toolkit) mock() {
	k.t.Helper()
	k.process = start(k.t, k.dir, k.mockLog(), k.env, filepath.Join(os.Getenv(toolkitDir), "device-supplier"))
	listens(k.t, "127.0.0.1:3001")
	if k.revision == margo.RC3 {
		listens(k.t, "127.0.0.1:3003")
	}
	listens(k.t, "127.0.0.1:4318")
}

func (k *toolkit) mockLog() string { return filepath.Join(k.dir, "mock.log") }

// deploy tells the mock what the device should run, and has the device look.
func (k *toolkit) deploy(fixture string, ids ...string) error {
	k.t.Helper()
	path := "https://127.0.0.1:3003/v1alpha2/margo/api/v1/test/deployments"
	if k.revision != margo.RC3 {
		path = "https://127.0.0.1:3001/v1alpha2/margo/api/v1/test/clients/" + k.known() + "/deployments"
	}
	text := expect.Value(json.Marshal(map[string]any{"deploymentIds": append([]string{}, ids...), "negativeFixture": fixture}))(k.t)
	r := expect.Value(http.NewRequestWithContext(k.t.Context(), http.MethodPut, path, bytes.NewReader(text)))(k.t)
	response := expect.Value(k.client.Do(r))(k.t)
	defer response.Body.Close()
	answer := expect.Value(io.ReadAll(io.LimitReader(response.Body, 1<<20)))(k.t)
	expect.Require(k.t, response.StatusCode == http.StatusOK, "the mock answers %s: %s", response.Status, answer)
	return k.Control().Sync(k.t.Context())
}

// known is the id that the mock gave the device.
func (k *toolkit) known() (id string) {
	k.t.Helper()
	plant.Require(k.t, "the mock knows the device", func() error {
		var clients map[string]any
		text, err := os.ReadFile(filepath.Join(k.dir, "data/clients.json"))
		if err == nil {
			err = json.Unmarshal(text, &clients)
		}
		if err == nil && len(clients) != 1 {
			err = fmt.Errorf("the mock has %d clients", len(clients))
		}
		for id = range clients {
		}
		return err
	})
	return id
}

// took waits until the mock has logged something so many times.
func (k *toolkit) took(what string, n int) {
	k.t.Helper()
	plant.Require(k.t, "the mock logs "+what, func() error {
		log, err := os.ReadFile(k.mockLog())
		if err == nil && strings.Count(string(log), what) < n {
			err = fmt.Errorf("%q is not %d times in the mock's log", what, n)
		}
		return err
	})
}

// heard checks what the mock has heard of deployments: how often, and where it writes
// that down, which states.
func (k *toolkit) heard(want map[string][]string) {
	k.t.Helper()
	log := expect.Value(os.ReadFile(k.mockLog()))(k.t)
	for id, states := range want {
		if n := strings.Count(string(log), "pdate for deployment "+id+" "); n != len(states) {
			k.t.Errorf("of %s the mock heard %d times, want %v", id, n, states)
		}
	}
	if k.revision == margo.RC3 {
		return
	}
	expect.Check(k.t, k.deploy("", odd)) // that is when it writes
	var all map[string]struct {
		ID      string `json:"id"`
		History []struct {
			Status struct{ State string }
		} `json:"status_history"`
	}
	text := expect.Value(os.ReadFile(filepath.Join(k.dir, "data/deployments.json")))(k.t)
	expect.Check(k.t, json.Unmarshal(text, &all))
	for _, d := range all {
		var states []string
		for _, report := range d.History {
			states = append(states, report.Status.State)
		}
		if want, ok := want[d.ID]; ok && !slices.Equal(states, want) {
			k.t.Errorf("of %s the mock heard %v, want %v", d.ID, states, want)
		}
	}
}

// settled waits until the device has told the mock of everything, and a deployment is in
// a state; empty: it is gone.
func (k *toolkit) settled(id, want string) {
	k.t.Helper()
	plant.Require(k.t, "deployment "+id+" is "+want, func() error {
		status, err := k.Control().Status(k.t.Context())
		if err != nil {
			return err
		}
		if status.Outbox > 0 {
			return errors.New("reports wait")
		}
		state := ""
		for _, d := range status.Deployments {
			if d.ID == id {
				state = string(d.State)
			}
		}
		if state != want {
			return fmt.Errorf("%s is %q, want %q", id, state, want)
		}
		return nil
	})
}

// restart starts the agent again with other settings.
func (k *toolkit) restart(change func()) {
	k.t.Helper()
	expect.Check(k.t, k.Stop())
	change()
	expect.Check(k.t, k.Configure(k.settings))
	expect.Check(k.t, k.Run(k.t.Context()))
}

// The main job with the toolkit's mock as it is, and its fixtures of what has to be
// refused.
func TestTheMockOfTheToolkit(t *testing.T) {
	for _, revision := range []margo.Revision{margo.RC3, margo.RC2} {
		t.Run(revision.String(), func(t *testing.T) {
			k := newToolkit(t, revision)
			k.began = time.Now()
			if out, err := k.Margolite(t.Context(), "check"); err != nil && !strings.Contains(out, "is reachable") {
				t.Errorf("check says %s", out)
			}
			expect.Check(t, k.Run(t.Context()))
			k.greets("Hello")
			k.settled(first, "installed")
			k.took("apabilities", 1)
			k.step("onboarded, its capabilities known, the first application installed with its parameters")

			k.greeting("servus")
			expect.Check(t, k.deploy("", first, missing))
			k.greets("servus")
			k.settled(missing, "failed")
			k.settled(first, "installed")
			k.step("updated; what cannot be installed failed alone")

			for _, fixture := range []string{"unsupported_digest_algorithm", "deployment_digest_mismatch", "non_increasing_manifest_version"} {
				expect.True(t, k.deploy(fixture, first, odd) != nil, "fixture %s was accepted", fixture)
				expect.Check(t, k.deploy("", first, missing))
			}
			k.restart(func() { k.settings.WFM["strict"] = "true" })
			if err := k.deploy("bundle_digest_mismatch", first, other); err == nil {
				t.Error("fixture bundle_digest_mismatch was accepted although wfm.strict is set")
			}
			k.restart(func() { delete(k.settings.WFM, "strict") })
			expect.Check(t, k.deploy("wrong_size_bytes", first))
			k.settled(missing, "")
			k.greets("servus")
			k.step("what the toolkit wants refused was refused, and sizes decided nothing")

			expect.Check(t, k.deploy("", odd))
			k.settled(odd, "installed")
			k.greets("servus")
			k.step("a deployment whose id is no UUID took its place")
			k.heard(map[string][]string{
				first: {"pending", "installing", "installed", "pending", "installing", "installed", "removing", "removed"},
				odd:   {"pending", "installing", "installed"},
			})

			expect.Check(t, k.Stop())
			expect.Check(t, k.process.Process.Kill())
			_ = k.process.Wait()
			expect.Check(t, k.Run(t.Context()))
			k.greets("servus")
			k.mock()
			if revision == margo.RC3 { // it has forgotten everything, and begins at version 1
				expect.True(t, k.Control().Sync(t.Context()) != nil, "the manifest of version 1 was accepted")
				k.greets("servus")
				if out, err := k.Margolite(t.Context(), "status"); err != nil || !strings.Contains(out, "margolite accept-rollback") {
					t.Errorf("status does not say what to do: %s", out)
				}
				out, err := k.Margolite(t.Context(), "accept-rollback", "--yes")
				t.Log(out)
				expect.Check(t, err)
				k.settled(first, "installed")
			} else {
				expect.Check(t, k.Control().Sync(t.Context()))
			}
			k.greets("servus")
			k.step("both were restarted, and it runs")

			expect.Check(t, k.deploy(""))
			k.silent()
			k.settled(first, "")
			k.settled(odd, "")
			k.step("removed")

			plant.Require(k.t, "the mock receives telemetry", func() error {
				response, err := k.client.Get("https://127.0.0.1:3001/health/telemetry")
				if err != nil {
					return err
				}
				defer response.Body.Close()
				answer, err := io.ReadAll(response.Body)
				if err == nil && !strings.Contains(string(answer), `"receiving"`) {
					err = fmt.Errorf("its telemetry is %s", answer)
				}
				return err
			})
			k.step("it receives telemetry")
		})
	}
}
