package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/margolite/margolite/agent/control"
	"github.com/margolite/margolite/test/pki"
	"github.com/margolite/margolite/test/plant"
)

// benchImage is what every service of every contender runs.
const benchImage = "bench.example/sleeper:1"

// agentName is the contender that the goals are about.
const agentName = "margolite"

// contender is a program that runs Compose files.
type contender struct {
	name    string
	ours    bool
	place   *place   // where its commands are started; nil: here
	compose []string // the program, with what goes before the verb
	up      []string // verb and flags that start a project and return
}

// contest is the contenders side by side on this machine.
type contest struct {
	method
	*site
	native     string // directory of our programs
	contenders []*contender
	missing    []string // peers that are not there
	archive    string   // of the image, in a directory of its own
}

// command is one of a contender's.
func (c *contender) command(ctx context.Context, args ...string) *exec.Cmd {
	all := slices.Concat(c.compose[1:], args)
	return exec.CommandContext(ctx, c.compose[0], all...)
}

// newContest starts whoever is there.
func newContest(ctx context.Context, dir, native string, m method) (_ *contest, err error) {
	c := &contest{method: m}
	if c.native, err = filepath.Abs(native); err != nil {
		return nil, err
	}
	if c.site, err = newSite(dir); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.close())
		}
	}()
	if err := c.buildImage(); err != nil {
		return nil, err
	}
	for _, start := range []func(context.Context) error{c.onContainerd, c.embedded, c.dockerCompose} {
		if err := start(ctx); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// buildImage makes the image that all services run: what is measured is not the image.
func (c *contest) buildImage() error {
	c.archive = filepath.Join(c.dir, "images", "sleeper.tar")
	if err := os.MkdirAll(filepath.Dir(c.archive), 0o755); err != nil {
		return err
	}
	return saveServer(benchImage, c.archive)
}

// onContainerd starts the installed containerd, and whoever runs on it: nerdctl
// beside it, for its hooks run in the namespaces of containerd.
func (c *contest) onContainerd(ctx context.Context) error {
	program, err := exec.LookPath("containerd")
	if err != nil {
		c.missing = append(c.missing, "containerd: margolite and nerdctl on it")
		return nil
	}
	socket := filepath.Join(c.volatile, "containerd.sock")
	config := filepath.Join(c.volatile, "containerd.toml")
	if err := os.WriteFile(config, fmt.Appendf(nil, `version = 2
root = %q
state = %q
disabled_plugins = ["io.containerd.grpc.v1.cri"]
[grpc]
  address = %q
`, filepath.Join(c.dir, "containerd"), filepath.Join(c.volatile, "containerd"), socket), 0o600); err != nil {
		return err
	}
	if _, err := c.daemon(nil, "containerd.log", nil, program, "-c", config); err != nil {
		return err
	}
	answers := func() error {
		conn, err := net.Dial("unix", socket)
		if err == nil {
			err = conn.Close()
		}
		return err
	}
	if err := plant.Eventually(ctx, answers); err != nil {
		return fmt.Errorf("containerd did not start: %w", err)
	}
	if err := c.margolite(ctx, agentName, "agent", socket); err != nil {
		return err
	}
	return c.nerdctl(ctx, socket)
}

func (c *contest) embedded(ctx context.Context) error {
	return c.margolite(ctx, "margolite, embedded", "embedded", "embedded")
}

// margolite is one of ours, in a network namespace of its own, for one margolite
// looks after the containers of a machine. Its agent has no WFM to speak to.
func (c *contest) margolite(ctx context.Context, name, id, containerd string) error {
	p, err := c.place()
	if err != nil {
		return err
	}
	home := filepath.Join(c.volatile, id)
	if err := os.MkdirAll(home, 0o755); err != nil {
		return err
	}
	authority, err := pki.NewAuthority(plant.TrustDomain, time.Now())
	if err != nil {
		return err
	}
	own, err := authority.IssueClient(plant.WFM, plant.Client)
	if err != nil {
		return err
	}
	files, err := pki.WriteFiles(home, own, authority.Bundle())
	if err != nil {
		return err
	}
	config := filepath.Join(home, "config.yaml")
	run := filepath.Join(home, "run")
	if err := os.WriteFile(config, fmt.Appendf(nil, `device: {id: %s}
wfm: {url: "https://127.0.0.1:9", certificate: %s, key: %s, trustBundle: %s}
state: {dir: %s, run: %s}
runtime: {containerd: %s, namespace: %s, settle: 0s, preload: %s}
log: {level: warn}
`, plant.Device, files.Certificate, files.Key, files.TrustBundle, filepath.Join(c.dir, id), run, containerd, id, filepath.Dir(c.archive)), 0o600); err != nil {
		return err
	}
	program := filepath.Join(c.native, "margolite")
	if _, err := c.daemon(p, id+".log", nil, program, "run", "--config", config); err != nil {
		return err
	}
	client := control.Dial(filepath.Join(run, "control.sock"))
	if err := plant.Eventually(ctx, func() error { return client.Ping(ctx) }); err != nil {
		return fmt.Errorf("%s did not start: %w", name, err)
	}
	c.contenders = append(c.contenders, &contender{
		name: name, ours: true, place: p, compose: []string{program, "compose"}, up: []string{"up", "--config", config},
	})
	return nil
}

// nerdctl is the one on PATH, with the CNI plugins of the distribution.
func (c *contest) nerdctl(ctx context.Context, socket string) error {
	program, err := exec.LookPath("nerdctl")
	if err != nil {
		c.missing = append(c.missing, "nerdctl: not on PATH")
		return nil
	}
	plugins := ""
	for _, dir := range []string{os.Getenv("CNI_PATH"), "/opt/cni/bin", "/usr/lib/cni", "/usr/libexec/cni"} {
		if _, err := os.Stat(filepath.Join(dir, "bridge")); dir != "" && err == nil {
			plugins = dir
			break
		}
	}
	if plugins == "" {
		c.missing = append(c.missing, "nerdctl: no CNI plugins")
		return nil
	}
	home := filepath.Join(c.dir, "nerdctl")
	if err := os.MkdirAll(home, 0o755); err != nil {
		return err
	}
	if err := c.keepHere("/var/lib"); err != nil { // where the plugins write
		return err
	}
	n := &contender{
		name: "nerdctl compose",
		compose: []string{
			program, "--address", socket, "--namespace", "nerdctl", "--data-root", home, "--cgroup-manager", "cgroupfs",
			"--cni-path", plugins, "--cni-netconfpath", filepath.Join(home, "cni"),
		},
	}
	if err := n.place.run(ctx, n.command(ctx, "load", "-i", c.archive)); err != nil {
		return err
	}
	n.compose = append(n.compose, "compose")
	n.up = []string{"up", "-d"}
	c.contenders = append(c.contenders, n)
	return nil
}

// dockerCompose is the one on PATH.
func (c *contest) dockerCompose(ctx context.Context) error {
	d, missing, err := c.docker(ctx)
	if missing != "" {
		c.missing = append(c.missing, "docker compose: "+missing)
	}
	if err != nil || missing != "" {
		return err
	}
	c.contenders = append(c.contenders, &contender{
		name: "docker compose", place: d.place, compose: d.compose, up: []string{"up", "-d"},
	})
	return d.run(ctx, d.client, "load", "-i", c.archive)
}

// keepHere lets nothing that is written below a directory of the machine get
// there. The mounts are those of this program alone.
func (c *contest) keepHere(dir string) error {
	upper, work := filepath.Join(c.volatile, "upper"), filepath.Join(c.volatile, "work")
	for _, d := range []string{upper, work} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return err
		}
	}
	options := fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s", dir, upper, work)
	if err := syscall.Mount("overlay", dir, "overlay", 0, options); err != nil {
		return fmt.Errorf("cannot mount over %s: %w", dir, err)
	}
	return nil
}
