package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/margolite/margolite/agent/identity"
	"github.com/margolite/margolite/agent/margo"
	"github.com/margolite/margolite/cmd/command"
	"github.com/margolite/margolite/test/expect"
)

const deploymentID = "a3e2f5dc-912e-494f-8395-52cf3769bc06"

// lines are those that a command prints which goes on running.
type lines struct{ *bufio.Scanner }

// await reads lines up to one that has what it should have, which is not read again.
func (l lines) await(t *testing.T, has string) (read []string) {
	t.Helper()
	for l.Scan() {
		read = append(read, l.Text())
		if strings.Contains(l.Text(), has) {
			return read
		}
	}
	t.Fatalf("no %q in %q, %v", has, read, l.Err())
	return nil
}

// start runs a command until stop, which returns its exit code.
func start(args ...string) (out lines, stop func() int) {
	ctx, cancel := context.WithCancel(context.Background())
	r, w := io.Pipe()
	ended := make(chan int, 1)
	go func() {
		code := run(ctx, args, w, os.Stderr)
		_ = w.Close()
		ended <- code
	}()
	return lines{bufio.NewScanner(r)}, func() int {
		cancel()
		return <-ended
	}
}

// server is a "wfmsim serve" within the test.
type server struct {
	wfm, admin, mis string // URLs
	stop            func()
}

func serve(t *testing.T, dir string, more ...string) server {
	t.Helper()
	out, stop := start(append([]string{
		"serve", "--dir", dir, "--listen", "127.0.0.1:0",
		"--admin", "127.0.0.1:0", "--registry", "127.0.0.1:0", "--prefix", "/margo",
	}, more...)...)
	s := server{stop: sync.OnceFunc(func() {
		expect.Equal(t, stop(), command.Done, "serve ended with")
	})}
	t.Cleanup(s.stop)
	for _, line := range out.await(t, "config ") {
		switch fields := strings.Fields(line); fields[0] {
		case "WFM":
			s.wfm = fields[1]
		case "MIS":
			s.mis = fields[1]
		case "admin":
			s.admin = fields[1]
		}
	}
	return s
}

// do runs a command against the server.
func (s server) do(t *testing.T, args ...string) string {
	t.Helper()
	var out, talk bytes.Buffer
	if code := run(context.Background(), append(args, "--admin", s.admin), &out, &talk); code != command.Done {
		t.Fatalf("wfmsim %q: %d\n%s", args, code, talk.String())
	}
	return out.String()
}

// reply is what a server answers.
type reply struct {
	status int
	body   string
}

// is expects a status, and returns the body.
func (r reply) is(t *testing.T, status int) string {
	t.Helper()
	expect.Equal(t, r.status, status, "status of %s", r.body)
	return r.body
}

// device asks the WFM as the device does whose files serve has written.
func device(t *testing.T, dir, method, url string, body string) reply {
	t.Helper()
	id := expect.Value(identity.Load(identity.Options{
		Certificate: filepath.Join(dir, "device.pem"), Key: filepath.Join(dir, "device.key"),
		TrustBundle: filepath.Join(dir, "trust-bundle.json"),
	}))(t)
	return ask(t, id.TLS(), method, url, body, func(*http.Request) error { return nil })
}

// ask sends a request that prepare has completed.
func ask(t *testing.T, config *tls.Config, method, url, body string, prepare func(*http.Request) error) reply {
	t.Helper()
	request := expect.Value(http.NewRequest(method, url, strings.NewReader(body)))(t)
	request.Header.Set("Content-Type", "application/json")
	check(t, prepare(request))
	transport := &http.Transport{TLSClientConfig: config}
	defer transport.CloseIdleConnections()
	answer := expect.Value((&http.Client{Transport: transport}).Do(request))(t)
	defer answer.Body.Close()
	return reply{answer.StatusCode, string(expect.Value(io.ReadAll(answer.Body))(t))}
}

func TestAFirstTrial(t *testing.T) {
	dir := t.TempDir()
	s := serve(t, dir)

	config := expect.Value(os.ReadFile(filepath.Join(dir, "margolite.yaml")))(t)
	for _, line := range []string{"url: " + s.wfm, filepath.Join(dir, "device.key"), "plainHTTP: true", "id: device-01"} {
		expect.Contains(t, string(config), line, "configuration")
	}

	program := filepath.Join(t.TempDir(), "app")
	check(t, os.WriteFile(program, []byte("a program"), 0o755))
	expect.Contains(t, s.do(t, "push-image", "--name", "demo/app", "--binary", program, "--padding", "1"), "/demo/app:1.0.0 is sha256:", "push-image")
	pack := t.TempDir()
	check(t, os.WriteFile(filepath.Join(pack, "compose.yaml"), []byte("services: {app: {image: \"${REGISTRY}/demo/app\"}}"), 0o644))
	said := s.do(t, "publish-compose", "--id", deploymentID, "--name", "app", "--package", pack, "--param", "GREETING=Hi there")
	expect.Contains(t, said, deploymentID+" is part of manifest 2", "publish-compose")

	// The device finds it, and what it finds is right.
	body := device(t, dir, http.MethodGet, s.wfm+"/api/v1/deployments", "").is(t, http.StatusOK)
	manifest, err := margo.ParseStateManifest([]byte(body))
	expect.Require(t, err == nil && len(manifest.Deployments) == 1, "manifest: %s, %v", body, err)
	body = device(t, dir, http.MethodGet, "https://"+strings.Split(s.wfm, "/")[2]+manifest.Deployments[0].URL, "").is(t, http.StatusOK)
	deployment, err := margo.ParseDeployment([]byte(body))
	expect.Require(t, err == nil && deployment.DeviceID == "device-01", "document %s: %v", body, err)
	settings, _, err := deployment.Settings("app")
	environment := settings.Environment
	if err != nil || environment["GREETING"] != "Hi there" || !strings.HasPrefix(environment["REGISTRY"], "127.0.0.1:") {
		t.Errorf("environment %v, %v", environment, err)
	}
	component := deployment.Components[0]
	where := strings.Replace(component.Repository, "oci://"+environment["REGISTRY"]+"/", "http://"+environment["REGISTRY"]+"/v2/", 1)
	answer := expect.Value(http.Get(where + "/manifests/" + component.Revision))(t)
	_ = answer.Body.Close()
	expect.Equal(t, answer.StatusCode, http.StatusOK, "component %s", where)

	// What it reports is shown.
	report := `{"deploymentId":"` + deploymentID + `","adoptedManifestVersion":2,"status":{"state":"installing"},"components":[{"name":"app","state":"installing"}]}`
	device(t, dir, http.MethodPost, s.wfm+"/api/v1/deployments/"+deploymentID+"/status", report).is(t, http.StatusCreated)
	for command, want := range map[string]string{
		"list":            deploymentID + "  app",
		"statuses":        "manifest 2  installing\n          app installing",
		"statuses --json": `"number":1`,
		"requests":        "device-01  GET /margo/api/v1/deployments",
		"capabilities":    "[]",
		"fault":           "[]",
	} {
		expect.Contains(t, s.do(t, strings.Fields(command)...), want, "%s", command)
	}

	// A restart goes on where it ended.
	s.stop()
	s = serve(t, dir)
	expect.Contains(t, s.do(t, "remove", deploymentID), "removed from manifest 3 on", "remove")
	device(t, dir, http.MethodGet, s.wfm+"/api/v1/deployments", "").is(t, http.StatusOK)
	if said := s.do(t, "requests", "--server", "registry"); strings.Contains(said, "/v2/") {
		t.Errorf("requests of an earlier run: %q", said)
	}
}

// ordinary asks as a device does that checks the server by ca.pem and signs what
// it sends with its key.
func ordinary(t *testing.T, dir, method, url, body, authorization string) reply {
	t.Helper()
	root := expect.Value(os.ReadFile(filepath.Join(dir, "ca.pem")))(t)
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(root)
	pair := expect.Value(tls.LoadX509KeyPair(filepath.Join(dir, "device.pem"), filepath.Join(dir, "device.key")))(t)
	signer := expect.Value(identity.NewSigner(pair.PrivateKey.(crypto.Signer), nil))(t)
	return ask(t, &tls.Config{RootCAs: roots}, method, url, body, func(request *http.Request) error {
		if authorization != "" {
			request.Header.Set("Authorization", authorization)
		}
		return signer.Sign(request, []byte(body))
	})
}

func TestEarlierRevisionsAreServed(t *testing.T) {
	dir := t.TempDir()
	s := serve(t, dir, "--revision", "1.0.0-rc.2", "--mis", "127.0.0.1:0")
	manifest := s.wfm + "/api/v1/clients/device-01/deployments"
	ordinary(t, dir, http.MethodGet, manifest, "", "").is(t, http.StatusOK)
	config := expect.Value(os.ReadFile(filepath.Join(dir, "margolite.yaml")))(t)
	for _, line := range []string{"revision: 1.0.0-rc.2", "ca: " + filepath.Join(dir, "ca.pem"), "discovery: " + s.mis} {
		expect.Contains(t, string(config), line, "configuration")
	}
	expect.Contains(t, ordinary(t, dir, http.MethodGet, s.mis, "", "").is(t, http.StatusOK), "wfmsim.example", "MIS")
	// Flags may come after the kind.
	said := s.do(t, "fault", "answer", "--server", "mis", "--status", "503", "--endpoint", "discovery", "--retry-after", "9")
	expect.Equal(t, said, `{"id":1,"endpoint":"discovery","kind":"answer","status":503,"retryAfter":"9"}`+"\n", "fault")
	ordinary(t, dir, http.MethodGet, s.mis, "", "").is(t, http.StatusServiceUnavailable)
	s.do(t, "clear", "--server", "mis")
	ordinary(t, dir, http.MethodGet, s.mis, "", "").is(t, http.StatusOK)
	s.do(t, "version", "device-01", "18446744073709551615")
	expect.Contains(t, ordinary(t, dir, http.MethodGet, manifest, "", "").is(t, http.StatusOK), "18446744073709551615", "manifest")
	s.do(t, "restart", "device-01")
	s.do(t, "forget", "device-01")
	ordinary(t, dir, http.MethodGet, manifest, "", "").is(t, http.StatusNotFound)
}

func TestClientsAreApproved(t *testing.T) {
	dir := t.TempDir()
	s := serve(t, dir, "--revision", "1.0.0-rc.1", "--approval")
	certificate := expect.Value(os.ReadFile(filepath.Join(dir, "device.pem")))(t)
	body := `{"apiVersion":"a","kind":"OnboardingRequest","certificate":"` + base64.StdEncoding.EncodeToString(certificate) + `"}`
	ordinary(t, dir, http.MethodPost, s.wfm+"/api/v1/onboarding", body, "").is(t, http.StatusForbidden)
	if said := s.do(t, "pending"); !strings.Contains(said, "FINGERPRINT") || len(strings.Split(said, "\n")) != 3 {
		t.Errorf("pending said %q", said)
	}
	expect.Contains(t, s.do(t, "approve"), "is approved", "approve")
	said := ordinary(t, dir, http.MethodPost, s.wfm+"/api/v1/onboarding", body, "").is(t, http.StatusCreated)
	var client struct{ ClientID string }
	check(t, json.Unmarshal([]byte(said), &client))
	// What is published without naming a client is for this one.
	expect.Equal(t, strings.TrimSpace(s.do(t, "list", "--json", "--client", client.ClientID)), "[]", "list")
}

func TestAGatewayStandsBefore(t *testing.T) {
	dir := t.TempDir()
	s := serve(t, dir, "--basic", "device:secret")
	ordinary(t, dir, http.MethodGet, s.wfm+"/api/v1/deployments", "", "").is(t, http.StatusUnauthorized)
	ordinary(t, dir, http.MethodGet, s.wfm+"/api/v1/deployments", "", "Basic ZGV2aWNlOnNlY3JldA==").is(t, http.StatusOK)
	config, err := os.ReadFile(filepath.Join(dir, "margolite.yaml"))
	if err != nil || !bytes.Contains(config, []byte("basic: ")) || bytes.Contains(config, []byte("secret")) || bytes.Contains(config, []byte("trustBundle")) {
		t.Errorf("%s, %v", config, err)
	}
}

func TestStatusesAreFollowed(t *testing.T) {
	dir := t.TempDir()
	s := serve(t, dir)
	file := filepath.Join(t.TempDir(), "deployment.yaml")
	document := "id: " + deploymentID + "\nmetadata: {name: app, namespace: n, deviceId: device-01}\nspec:\n  applicationId: app\n" +
		"  deploymentProfile:\n    type: compose\n    components:\n    - {name: app, properties: {repository: oci://r.example/app, revision: 1.0.0}}\n"
	check(t, os.WriteFile(file, []byte(document), 0o644))
	s.do(t, "publish", file)

	out, stop := start("statuses", "--follow", "--admin", s.admin)
	for _, state := range []string{"pending", "installing"} {
		body := `{"deploymentId":"` + deploymentID + `","adoptedManifestVersion":2,"status":{"state":"` + state + `"},"components":[{"name":"app","state":"` + state + `"}]}`
		device(t, dir, http.MethodPost, s.wfm+"/api/v1/deployments/"+deploymentID+"/status", body)
		out.await(t, "manifest 2  "+state)
		out.await(t, "app "+state)
	}
	expect.Equal(t, stop(), command.Done, "ended with")
}

func TestWrongUseIsExplained(t *testing.T) {
	for _, c := range []struct {
		args []string
		code int
		says string
	}{
		{nil, command.Usage, "Commands:"},
		{[]string{"help"}, command.Done, "publish-compose"},
		{[]string{"serve", "--help"}, command.Done, "--dir DIR"},
		{[]string{"serve"}, command.Usage, "give --dir"},
		{[]string{"publish"}, command.Usage, "give publish FILE"},
		{[]string{"serve", "--dir", t.TempDir(), "--revision", "9"}, command.Usage, "cannot use revision"},
		{[]string{"version", "x", "y"}, command.Usage, "invalid version"},
		{[]string{"publish-compose"}, command.Usage, "give --package"},
		{[]string{"list", "--admin", "http://127.0.0.1:1"}, command.Failed, `fix: start one with "wfmsim serve`},
		{[]string{"publish", "/nonexistent.yaml"}, command.Failed, "cannot read document"},
		{[]string{"serve", "--dir", t.TempDir(), "--admin", "0.0.0.0:0"}, command.Failed, "loopback"},
	} {
		var both bytes.Buffer
		if code := run(context.Background(), c.args, &both, &both); code != c.code || !strings.Contains(both.String(), c.says) {
			t.Errorf("wfmsim %q: %d\n%s", c.args, code, both.String())
		}
	}
}

var check = expect.Check
