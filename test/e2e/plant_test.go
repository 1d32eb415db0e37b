package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/margolite/margolite/agent/control"
	"github.com/margolite/margolite/agent/identity"
	"github.com/margolite/margolite/agent/margo"
	"github.com/margolite/margolite/test/demoapp/demoimage"
	"github.com/margolite/margolite/test/isolated"
	"github.com/margolite/margolite/test/ociimage"
	"github.com/margolite/margolite/test/pki"
	"github.com/margolite/margolite/test/wfmsim"
	"github.com/margolite/margolite/test/wfmsim/registry"
)

const (
	deviceID = "edge-01"
	wfmID    = "plant"
	clientID = "gateway-7"
	// patience bounds every wait: far more than a slow machine needs.
	patience = 90 * time.Second
)

// programs are built once for all tests.
var programs struct {
	dir       string
	demo      *ociimage.Artifact // 1.0.0
	demo2     *ociimage.Artifact // 2.0.0: another image
	component ociimage.Component
}

func TestMain(m *testing.M) { os.Exit(isolated.Main(tests{m})) }

// tests builds the programs before the tests run, and in their namespaces.
type tests struct{ *testing.M }

func (t tests) Run() int {
	if os.Geteuid() != 0 {
		fmt.Println("end-to-end tests need root: containers are real")
		return 1
	}
	dir, err := os.MkdirTemp("", "margolite-e2e-")
	if err == nil {
		defer os.RemoveAll(dir)
		err = buildPrograms(dir)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "cannot build what the tests run:", err)
		return 1
	}
	return t.M.Run()
}

func buildPrograms(dir string) error {
	programs.dir = dir
	for name, tags := range map[string]string{
		"margolite":               "faults,grpcnotrace,osusergo,netgo,no_rdt",
		"containerd-shim-runc-v2": "no_grpc,osusergo,netgo",
	} {
		cmd := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-tags", tags, "-o", filepath.Join(dir, name), "github.com/margolite/margolite/cmd/"+name)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
	}
	ctx := context.Background()
	var builds ociimage.Programs
	var err error
	if programs.demo, err = demoimage.Image(ctx, demoimage.Options{Programs: &builds, Version: "1.0.0"}); err != nil {
		return err
	}
	if programs.demo2, err = demoimage.Image(ctx, demoimage.Options{Programs: &builds, Version: "2.0.0"}); err != nil {
		return err
	}
	programs.component, err = demoimage.Component(ctx, "1.0.0")
	return err
}

// backends are the containerds that every test runs on.
var backends = []string{"embedded", "debian"}

// onBackends runs a test on each.
func onBackends(t *testing.T, test func(t *testing.T, p *plant)) {
	for _, b := range backends {
		t.Run(b, func(t *testing.T) { test(t, newPlant(t, b)) })
	}
}

// plant is a WFM, a registry, and one device with its agent.
type plant struct {
	t        *testing.T
	dir      string
	backend  string
	wfm      *wfmsim.Server
	registry *registry.Registry
	agent    *agent // nil: it does not run

	containerd *exec.Cmd // of backend debian
}

func newPlant(t *testing.T, backend string) *plant {
	t.Helper()
	// Paths of sockets are short.
	dir, err := os.MkdirTemp("/tmp", "plant-")
	check(t, err)
	p := &plant{t: t, dir: dir, backend: backend}
	t.Cleanup(p.tearDown)

	p.registry, err = registry.New(registry.Options{})
	check(t, err)
	check(t, p.registry.Start(""))
	p.push("margolite/demoapp", "1.0.0", programs.demo)
	p.push("margolite/demoapp", "2.0.0", programs.demo2)
	p.pushComponent("apps/demo", programs.component)

	authority, err := pki.NewAuthority("factory.example", time.Now())
	check(t, err)
	server, err := authority.IssueWFM(wfmID)
	check(t, err)
	id, err := identity.ParseSPIFFEID("spiffe://factory.example/margo/wfm/" + wfmID)
	check(t, err)
	p.wfm, err = wfmsim.New(wfmsim.Options{ID: id, SVID: server.TLS(), Bundle: authority.Bundle(), Clients: []string{clientID}})
	check(t, err)
	check(t, p.wfm.Start(""))
	client, err := authority.IssueClient(wfmID, clientID)
	check(t, err)
	check(t, os.Mkdir(filepath.Join(dir, "identity"), 0o700))
	files, err := pki.WriteFiles(filepath.Join(dir, "identity"), client, authority.Bundle())
	check(t, err)

	containerd := "embedded"
	if backend == "debian" {
		containerd = filepath.Join(dir, "containerd.sock")
		p.startContainerd()
	}
	p.write("config.yaml", fmt.Sprintf(`
device: {id: %s}
wfm:
  url: %s
  certificate: %s
  key: %s
  trustBundle: %s
poll: {interval: 1s}
state: {dir: %s, run: %s}
runtime: {containerd: %s, settle: 200ms}
registries: {%q: {plainHTTP: true}}
log: {level: debug}
`, deviceID, p.wfm.URL(), files.Certificate, files.Key, files.TrustBundle, p.stateDir(), p.runDir(), containerd, p.registry.Address()))
	return p
}

func (p *plant) stateDir() string { return filepath.Join(p.dir, "state") }
func (p *plant) runDir() string   { return filepath.Join(p.dir, "run") }
func (p *plant) config() string   { return filepath.Join(p.dir, "config.yaml") }

func (p *plant) write(name, content string) {
	p.t.Helper()
	check(p.t, os.WriteFile(filepath.Join(p.dir, name), []byte(content), 0o600))
}

// startContainerd starts Debian's containerd with everything of its own.
func (p *plant) startContainerd() {
	p.t.Helper()
	p.write("containerd.toml", fmt.Sprintf(`version = 2
root = %q
state = %q
disabled_plugins = ["io.containerd.grpc.v1.cri"]
[grpc]
  address = %q
`, filepath.Join(p.dir, "containerd-root"), filepath.Join(p.dir, "containerd-run"), filepath.Join(p.dir, "containerd.sock")))
	cmd := exec.Command("containerd", "-c", filepath.Join(p.dir, "containerd.toml"))
	log, err := os.OpenFile(filepath.Join(p.dir, "containerd.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	check(p.t, err)
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	check(p.t, cmd.Start())
	p.containerd = cmd
}

func (p *plant) stopContainerd() {
	if p.containerd != nil {
		p.containerd.Process.Kill()
		p.containerd.Wait()
		p.containerd = nil
	}
}

// tearDown ends everything, and shows the agent's log of a test that failed.
func (p *plant) tearDown() {
	p.t.Helper()
	if p.agent != nil {
		p.kill()
	}
	if p.t.Failed() {
		p.showLog()
	}
	p.powerOff()
	if p.wfm != nil {
		p.wfm.Close()
	}
	if p.registry != nil {
		p.registry.Close()
	}
	os.RemoveAll(p.dir)
}

// showLog shows the end of what the agent logged.
func (p *plant) showLog() {
	log, _ := os.ReadFile(filepath.Join(p.dir, "agent.log"))
	p.t.Logf("agent's log:\n%s", log[max(0, len(log)-24<<10):])
}

// powerOff ends every process of the device and forgets what only memory
// holds, as a power cut does: containers and shims, namespaces, links, rules,
// mounts, and the run directories.
func (p *plant) powerOff() {
	p.stopContainerd()
	for range 3 { // who is killed may just have forked
		for _, pid := range p.processes("containerd-shim", p.dir) {
			for _, child := range append(p.descendants(pid), pid) {
				unix.Kill(child, unix.SIGKILL)
			}
		}
	}
	unmountBelow(p.dir)
	removeNetwork(p.t)
	os.RemoveAll(p.runDir())
	os.RemoveAll(filepath.Join(p.dir, "containerd-run"))
}

// push puts an image into the registry.
func (p *plant) push(repository, tag string, image *ociimage.Artifact) {
	p.t.Helper()
	check(p.t, ociimage.Registry{URL: p.registry.URL()}.Push(p.t.Context(), repository, tag, image))
}

// pushComponent puts a Compose component into the registry.
func (p *plant) pushComponent(repository string, c ociimage.Component) {
	p.t.Helper()
	a, err := c.Build()
	check(p.t, err)
	p.push(repository, c.Version, a)
}

// deployment describes one of the demo application.
func (p *plant) deployment(id string, parameters map[string]any) wfmsim.Deployment {
	d := wfmsim.Deployment{
		ID: id, Name: "demo-deployment", DeviceID: deviceID, ApplicationID: "demo",
		Components: []wfmsim.Component{{Name: "demo", Repository: p.registry.Address() + "/apps/demo", Revision: "1.0.0"}},
		Parameters: map[string]any{"REGISTRY": p.registry.Address(), "PORT": 8090},
	}
	for k, v := range parameters {
		d.Parameters[k] = v
	}
	return d
}

// publish makes a deployment part of the desired state.
func (p *plant) publish(d wfmsim.Deployment) wfmsim.Published {
	p.t.Helper()
	body, err := d.Document()
	check(p.t, err)
	done, err := p.wfm.Publish(clientID, body)
	check(p.t, err)
	return done
}

// remove takes a deployment out of the desired state.
func (p *plant) remove(id string) uint64 {
	p.t.Helper()
	version, err := p.wfm.Remove(clientID, id)
	check(p.t, err)
	return version
}

// await waits until the WFM heard that a deployment has a state for a version.
func (p *plant) await(id string, state margo.State, version uint64) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), patience)
	defer cancel()
	if err := p.wfm.WaitState(ctx, id, state, version); err != nil {
		var heard []string
		for _, r := range p.wfm.Statuses(id) {
			heard = append(heard, fmt.Sprintf("%s@%d", r.Status.State, r.Status.AdoptedVersion))
		}
		p.t.Fatalf("deployment %s did not become %s@%d: %v; heard %v", id, state, version, err, heard)
	}
}

// install publishes and waits until it runs.
func (p *plant) install(d wfmsim.Deployment) wfmsim.Published {
	p.t.Helper()
	done := p.publish(d)
	p.await(d.ID, margo.Installed, done.Version)
	return done
}

// agent is one run of margolite.
type agent struct {
	cmd  *exec.Cmd
	done chan struct{} // closed when it ended

	mu  sync.Mutex
	err error
}

// start starts the agent, with more environment if given.
func (p *plant) start(env ...string) {
	p.t.Helper()
	if p.agent != nil {
		p.t.Fatal("the agent runs already")
	}
	log, err := os.OpenFile(filepath.Join(p.dir, "agent.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	check(p.t, err)
	defer log.Close()
	fmt.Fprintf(log, "--- start %v\n", env)
	cmd := exec.Command(filepath.Join(programs.dir, "margolite"), "run", "--config", p.config())
	cmd.Env = append(os.Environ(), env...)
	cmd.Stderr = log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	check(p.t, cmd.Start())
	a := &agent{cmd: cmd, done: make(chan struct{})}
	go func() {
		err := cmd.Wait()
		a.mu.Lock()
		a.err = err
		a.mu.Unlock()
		close(a.done)
	}()
	p.agent = a
}

// running starts the agent and waits until its socket answers.
func (p *plant) running(env ...string) {
	p.t.Helper()
	p.start(env...)
	p.eventually("the control socket answers", func() error { return p.control().Ping(p.t.Context()) })
}

func (p *plant) control() *control.Client {
	return control.Dial(filepath.Join(p.runDir(), "control.sock"))
}

// stop asks the agent to end, and waits.
func (p *plant) stop() {
	p.t.Helper()
	p.agent.cmd.Process.Signal(syscall.SIGTERM)
	p.ended()
	if p.agent != nil {
		p.t.Fatal("the agent did not stop")
	}
}

// kill ends the agent as kill -9 does.
func (p *plant) kill() {
	p.agent.cmd.Process.Kill()
	<-p.agent.done
	p.agent = nil
}

// ended waits for the agent to end by itself.
func (p *plant) ended() {
	p.t.Helper()
	select {
	case <-p.agent.done:
		p.agent = nil
	case <-time.After(patience):
		p.t.Fatal("the agent goes on and on")
	}
}

// margolite runs the command line and returns what it printed.
func (p *plant) margolite(args ...string) (string, error) {
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(p.t.Context(), filepath.Join(programs.dir, "margolite"), append(args, "--config", p.config())...)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	if err != nil {
		err = fmt.Errorf("margolite %s: %w: %s", strings.Join(args, " "), err, stderr.String())
	}
	return stdout.String(), err
}

// status asks the agent for its status.
func (p *plant) status() *control.Status {
	p.t.Helper()
	out, err := p.margolite("status", "--json")
	check(p.t, err)
	var s control.Status
	check(p.t, json.Unmarshal([]byte(out), &s))
	return &s
}

// services are what runs for a deployment, by name.
func (p *plant) services(id string) map[string]control.Service {
	p.t.Helper()
	all, err := p.servicesOnce(id)
	check(p.t, err)
	return all
}

// servicesOnce is services, with an error where one is there twice: while it is
// replaced it may be.
func (p *plant) servicesOnce(id string) (map[string]control.Service, error) {
	p.t.Helper()
	all := map[string]control.Service{}
	for _, d := range p.status().Deployments {
		if d.ID != id {
			continue
		}
		for _, c := range d.Components {
			for _, s := range c.Services {
				if other, twice := all[s.Name]; twice {
					return nil, fmt.Errorf("service %s is there twice: %+v and %+v", s.Name, s, other)
				}
				all[s.Name] = s
			}
		}
	}
	return all, nil
}

// answer is what the demo application says.
type answer struct {
	Text     string `json:"text"`
	Greeting string `json:"greeting"`
	Version  string `json:"version"`
	Visit    uint64 `json:"visit"`
}

// ask calls the demo application on its published port.
func (p *plant) ask(port int) (answer, error) {
	client := http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	var a answer
	req, err := http.NewRequest(http.MethodGet, fmt.Sprintf("http://127.0.0.1:%d/", port), nil)
	if err != nil {
		return a, err
	}
	req.Header.Set("Accept", "application/json")
	res, err := client.Do(req)
	if err != nil {
		return a, err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(io.LimitReader(res.Body, 64<<10))
	if err != nil {
		return a, err
	}
	if res.StatusCode != http.StatusOK {
		return a, fmt.Errorf("%s: %s", res.Status, body)
	}
	return a, json.Unmarshal(body, &a)
}

// answers waits until the demo application answers, and gives the answer.
func (p *plant) answers(port int) answer {
	p.t.Helper()
	var a answer
	p.eventually("the application answers", func() (err error) {
		a, err = p.ask(port)
		return err
	})
	return a
}

// eventually repeats what has no event to wait for until it succeeds.
func (p *plant) eventually(what string, try func() error) {
	p.t.Helper()
	deadline := time.Now().Add(patience)
	for {
		err := try()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			p.t.Fatalf("not so after %s: %s: %v", patience, what, err)
		}
		select {
		case <-p.t.Context().Done():
			p.t.Fatal(p.t.Context().Err())
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// nothingLeft says what of workloads is still on the device, or nil.
func (p *plant) nothingLeft() error {
	var left []error
	if pids := p.processes("containerd-shim", p.dir); len(pids) > 0 {
		left = append(left, fmt.Errorf("shims %v", pids))
	}
	left = append(left, networkLeft()...)
	for _, dir := range []string{"netns", "hosts", "logs"} {
		entries, _ := os.ReadDir(filepath.Join(p.runDir(), dir))
		for _, e := range entries {
			left = append(left, fmt.Errorf("%s/%s", dir, e.Name()))
		}
	}
	projects, _ := os.ReadDir(filepath.Join(p.stateDir(), "projects"))
	for _, e := range projects {
		left = append(left, fmt.Errorf("project %s", e.Name()))
	}
	return errors.Join(left...)
}
