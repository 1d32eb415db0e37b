package compose

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/margolite/margolite/runtime"
	"github.com/margolite/margolite/runtime/health"
	"github.com/margolite/margolite/test/containerdtest"
	"github.com/margolite/margolite/test/expect"
	"github.com/margolite/margolite/test/leftovers"
	"github.com/margolite/margolite/test/plant"
)

// TestKnownTools has ctr and nerdctl look at containers of every kind, and run
// commands in them.
func TestKnownTools(t *testing.T) {
	if testing.Short() {
		t.Skip("in make test-all: other tools")
	}
	const file = `
services:
  web:
    image: ${TOOLS}
    container_name: shop
    command: sh -c 'echo hello; echo bad >&2; exec sleep 1000'
    ports: ["8080:80", "127.0.0.1:8081:81/udp"]
    networks: [front, back]
    healthcheck: {test: [CMD, "true"], interval: 1s}
  term:
    image: ${TOOLS}
    tty: true
    stdin_open: true
    command: sh -c 'echo terminal; exec sleep 1000'
    networks: [back]
  job:
    image: ${TOOLS}
    command: echo done
    network_mode: host
    restart: "no"
  quiet:
    image: ${TOOLS}
    command: sleep 1000
    network_mode: none
    logging: {driver: none}
networks: {front: {}, back: {}}
`
	for _, backend := range containerdtest.Backends() {
		t.Run(backend.Name, func(t *testing.T) {
			d := newDevice(t, backend)
			before := leftovers.Take(t, d.look)
			d.up(t, "app", file)
			check(t, plant.Eventually(t.Context(), func() error {
				if all := d.observe(t, "app"); all["web"].Health.State != health.Healthy || all["job"].State != runtime.Done {
					return errors.New("web is not healthy, or job is not done")
				}
				return nil
			}))
			t.Run("ctr", func(t *testing.T) { d.ctr(t, d.observe(t, "app")) })
			t.Run("nerdctl", func(t *testing.T) { d.nerdctl(t, d.observe(t, "app")) })
			d.remove(t, "app", before)
		})
	}
}

// observe finds the containers of a project by their services.
func (d *device) observe(t *testing.T, project string) map[string]runtime.ObservedContainer {
	t.Helper()
	projects := expect.Value(d.engine.Observe(t.Context()))(t)
	all := make(map[string]runtime.ObservedContainer)
	for _, p := range projects {
		for _, c := range p.Containers {
			if p.Name == project {
				all[c.Service] = c
			}
		}
	}
	return all
}

// tool runs a tool of somebody else on the device.
type tool struct {
	program     string
	flags       []string
	environment []string
}

// try returns what the tool prints, and whether it succeeded.
func (o tool) try(t *testing.T, args ...string) (out, complaint string, ok bool) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(t.Context(), o.program, append(o.flags, args...)...)
	cmd.Env = append(os.Environ(), o.environment...)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	return stdout.String(), stderr.String(), err == nil
}

// run must succeed, and the tool must not complain.
func (o tool) run(t *testing.T, args ...string) string {
	t.Helper()
	out, complaint, ok := o.try(t, args...)
	if !ok || complaint != "" {
		t.Errorf("%s %q: %v, it complains %q", filepath.Base(o.program), args, ok, complaint)
	}
	return out
}

// expect finds something in what the tool prints.
func (o tool) expect(t *testing.T, pattern string, args ...string) {
	t.Helper()
	if out := o.run(t, args...); !regexp.MustCompile(pattern).MatchString(out) {
		t.Errorf("%s %q prints %q, which does not match %s", filepath.Base(o.program), args, out, pattern)
	}
}

func (d *device) ctr(t *testing.T, all map[string]runtime.ObservedContainer) {
	program, err := exec.LookPath("ctr")
	if err != nil {
		t.Fatal(err) // it comes with containerd, which the tests need anyway
	}
	ctr := tool{program: program, flags: []string{"-a", d.socket, "-n", containerdtest.Namespace}}
	list, tasks := ctr.run(t, "containers", "ls"), ctr.run(t, "tasks", "ls")
	for service, c := range all {
		expect.Contains(t, list, c.ID, "ctr does not list %s", service)
		if running := regexp.MustCompile(c.ID + `\s+\d+\s+RUNNING`).MatchString(tasks); running != (service != "job") {
			t.Errorf("%s runs: %v: %s", service, running, tasks)
		}
		var info struct{ Labels map[string]string }
		if err := json.Unmarshal([]byte(ctr.run(t, "containers", "info", c.ID)), &info); err != nil || info.Labels["com.docker.compose.service"] != service {
			t.Errorf("info of %s: %v, %v", service, info, err)
		}
		if service != "job" {
			// ctr loses what is under way when a command ends (containerd's pull request 13931).
			ctr.expect(t, "^in "+service+"\n$", "tasks", "exec", "--exec-id", "by-ctr", c.ID, "sh", "-c", "echo in "+service+"; sleep 0.5")
		}
	}
	ctr.expect(t, regexp.QuoteMeta(d.registry), "images", "ls", "-q")
	ctr.expect(t, all["web"].ID, "snapshots", "ls")
	ctr.expect(t, `memory|usage`, "tasks", "metrics", all["web"].ID)
}

func (d *device) nerdctl(t *testing.T, all map[string]runtime.ObservedContainer) {
	program, err := exec.LookPath("nerdctl")
	if err != nil {
		t.Log("nerdctl is not tried: there is none in PATH")
		return
	}
	settings := expect.Value(os.ReadFile("../../packaging/nerdctl.toml"))(t)
	for _, place := range [][2]string{
		{"/run/margolite/containerd/containerd.sock", d.socket},
		{"/run/margolite/nerdctl", filepath.Join(d.run, "nerdctl")},
		{`"margo"`, `"` + containerdtest.Namespace + `"`},
	} {
		if !bytes.Contains(settings, []byte(place[0])) {
			t.Fatalf("packaging/nerdctl.toml does not name %s", place[0])
		}
		settings = bytes.ReplaceAll(settings, []byte(place[0]), []byte(place[1]))
	}
	toml := filepath.Join(t.TempDir(), "nerdctl.toml")
	check(t, os.WriteFile(toml, settings, 0o600))
	nerdctl := tool{program: program, environment: []string{"NERDCTL_TOML=" + toml}}

	list := nerdctl.run(t, "ps", "-a")
	for service, pattern := range map[string]string{
		"web":   `Up\s+0\.0\.0\.0:8080->80/tcp, 127\.0\.0\.1:8081->81/udp\s+shop\n`,
		"term":  `Up\s+app-term-1\n`,
		"job":   `Exited \(0\) [^\n]+ ago\s+app-job-1\n`,
		"quiet": `Up\s+app-quiet-1\n`,
	} {
		if !regexp.MustCompile(all[service].ID[:12] + `[^\n]+` + pattern).MatchString(list) {
			t.Errorf("%s does not match %s: %s", service, pattern, list)
		}
	}
	nerdctl.expect(t, `^in shop\n$`, "exec", "shop", "echo", "in", "shop")
	nerdctl.expect(t, `^in term\n$`, "exec", "-e", "A=term", "app-term-1", "sh", "-c", "echo in $A")
	nerdctl.expect(t, `80/tcp -> 0\.0\.0\.0:8080`, "port", "shop")
	d.nerdctlInspect(t, nerdctl, all)

	if _, complaint, ok := nerdctl.try(t, "logs", "app-quiet-1"); ok || !strings.Contains(complaint, "none") {
		t.Errorf("logs of quiet: %v, %q", ok, complaint)
	}
	if out, complaint, ok := nerdctl.try(t, "logs", "shop"); !ok || out != "hello\n" || complaint != "bad\n" {
		t.Errorf("logs of web: %v, %q and %q", ok, out, complaint)
	}
	nerdctl.expect(t, `^20\d\d-\S+ terminal\r?\n$`, "logs", "-t", "app-term-1")
	nerdctl.expect(t, `^done\n$`, "logs", "--tail", "1", "app-job-1")
	nerdctl.expect(t, `^$`, "logs", "--until", "1h", "app-job-1")
}

func (d *device) nerdctlInspect(t *testing.T, nerdctl tool, all map[string]runtime.ObservedContainer) {
	var found []struct {
		ID    string `json:"Id"`
		Name  string
		State struct {
			Status    string
			Pid       int
			StartedAt time.Time
		}
		Config struct {
			Hostname    string
			Healthcheck struct {
				Test     []string
				Interval time.Duration
			}
		}
		NetworkSettings struct {
			Ports    map[string][]struct{ HostPort string }
			Networks map[string]struct{ IPAddress string }
		}
	}
	if err := json.Unmarshal([]byte(nerdctl.run(t, "inspect", "shop")), &found); err != nil || len(found) != 1 {
		t.Fatalf("inspect: %d, %v", len(found), err)
	}
	got, web := found[0], all["web"]
	if got.ID != web.ID || got.Name != "shop" || got.State.Status != "running" || got.State.Pid != web.Pid || got.Config.Hostname != "web" {
		t.Errorf("inspect: %+v", got)
	}
	expect.True(t, got.State.StartedAt.Sub(web.Started).Abs() <= 5*time.Second, "started at %s, not %s", got.State.StartedAt, web.Started)
	if check := got.Config.Healthcheck; strings.Join(check.Test, " ") != "CMD true" || check.Interval != time.Second {
		t.Errorf("health check %+v", check)
	}
	if ports := got.NetworkSettings.Ports; len(ports["80/tcp"]) != 1 || ports["80/tcp"][0].HostPort != "8080" {
		t.Errorf("ports %+v", ports)
	}
	addresses := make(map[string]bool)
	for _, n := range got.NetworkSettings.Networks {
		addresses[n.IPAddress] = true
	}
	for _, n := range web.Sandbox.Attached {
		if !addresses[n.Address.String()] {
			t.Errorf("address %s on %s is missing: %+v", n.Address, n.Network.Name, got.NetworkSettings.Networks)
		}
	}
}
