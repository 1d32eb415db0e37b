package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"time"

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
	plants     []*plant.Plant
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
	p, err := c.margolite(ctx, agentName, "agent", program)
	if err != nil {
		return err
	}
	return c.nerdctl(ctx, p.Containers())
}

func (c *contest) embedded(ctx context.Context) error {
	_, err := c.margolite(ctx, "margolite, embedded", "embedded", "")
	return err
}

// margolite is one of ours, in a network namespace of its own, for one margolite
// looks after the containers of a machine. From there its agent reaches no WFM.
func (c *contest) margolite(ctx context.Context, name, id, containerd string) (*plant.Plant, error) {
	at, err := c.place(ctx)
	if err != nil {
		return nil, err
	}
	home := filepath.Join(c.volatile, id)
	if err := os.MkdirAll(home, 0o755); err != nil {
		return nil, err
	}
	program := filepath.Join(c.native, "margolite")
	p, err := plant.New(ctx, plant.Options{Dir: home, State: filepath.Join(c.dir, id), Margolite: program, Containerd: containerd, Launch: at.start})
	if err != nil {
		return nil, err
	}
	c.plants = append(c.plants, p)
	err = p.Configure(plant.Settings{Poll: time.Hour, LogLevel: "warn", Runtime: map[string]string{"preload": filepath.Dir(c.archive)}})
	if err := errors.Join(err, p.Run(ctx)); err != nil {
		return nil, fmt.Errorf("%s did not start: %w", name, err)
	}
	c.contenders = append(c.contenders, &contender{
		name: name, ours: true, place: at, compose: []string{program, "compose"}, up: []string{"up", "--config", p.ConfigFile()},
	})
	return p, nil
}

// close ends everything.
func (c *contest) close() error {
	var errs []error
	for _, p := range c.plants {
		errs = append(errs, p.Close())
	}
	c.site.close()
	return errors.Join(errs...)
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
