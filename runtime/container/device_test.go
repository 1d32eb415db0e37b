package container_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	official "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/defaults"
	"github.com/opencontainers/image-spec/identity"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/margolite/margolite/runtime/compose"
	"github.com/margolite/margolite/runtime/container"
	"github.com/margolite/margolite/runtime/containerd"
	"github.com/margolite/margolite/test/containerdtest"
	"github.com/margolite/margolite/test/expect"
	"github.com/margolite/margolite/test/ociimage"
)

// device is a containerd with this room on it, and an image of busybox.
type device struct {
	testing.TB
	*container.Containers
	client containerd.Client
	state  string
	run    string
	root   string // chain id of the image
	made   map[string]bool
	// certificate of a collector, from the next restart on
	certificate string
	logKeeper   string
	shimGrace   time.Duration // from the next restart on
}

// onEach runs a test on each kind of containerd.
func onEach(t *testing.T, test func(t *testing.T, d *device)) {
	containerdtest.OnEach(t, func(t *testing.T, backend containerdtest.Backend) {
		test(t, newDevice(t, backend))
	})
}

// onOne runs a test on one kind: for what does not depend on it.
func onOne(t testing.TB) *device { return newDevice(t, containerdtest.Backends()[0]) }

func newDevice(t testing.TB, backend containerdtest.Backend) *device {
	d := &device{TB: t, client: backend.Start(t), made: make(map[string]bool), logKeeper: backend.LogKeeper(t)}
	dir := containerdtest.Dir(t)
	d.state, d.run = filepath.Join(dir, "state"), filepath.Join(dir, "run")
	d.restart()
	t.Cleanup(func() {
		d.restart()
		for id := range d.made {
			expect.OK(t, d.Delete(d.ctx(), id))
		}
		expect.OK(t, d.RemoveProject(d.ctx(), "shop"))
		d.expectNothingLeft()
	})
	content := containerdtest.Blob(t, "srv/data/inside", 16)
	d.root = d.load(containerdtest.Busybox(t, nil, content))
	return d
}

// ctx is for calls, also after the end of the test.
func (d *device) ctx() context.Context {
	return context.WithoutCancel(containerdtest.Context(d))
}

// load brings an image to the device, and returns its chain id.
func (d *device) load(image *ociimage.Artifact) string {
	d.Helper()
	archive := expect.Value(ociimage.Layout(map[string]*ociimage.Artifact{"example.org/busybox:latest": image}))(d)
	ctx := d.ctx()
	client := containerdtest.Official(d, d.client)
	found := expect.Value(client.Import(ctx, bytes.NewReader(archive)))(d)
	loaded := official.NewImage(client, found[0])
	check(d, loaded.Unpack(ctx, defaults.DefaultSnapshotter))
	return identity.ChainID(expect.Value(loaded.RootFS(ctx))(d)).String()
}

// restart is what a restart of the agent is for this room.
func (d *device) restart() {
	d.Helper()
	d.Containers = expect.Value(container.New(container.Options{
		Client:      d.client,
		Namespace:   containerdtest.Namespace,
		Snapshotter: func(context.Context) (string, error) { return defaults.DefaultSnapshotter, nil },
		StateDir:    d.state,
		RunDir:      d.run,
		Certificate: d.certificate,
		LogKeeper:   d.logKeeper,
		Init:        d.logKeeper,
		ShimGrace:   d.shimGrace,
		Logger:      containerdtest.Logger(d),
	}))(d)
}

// config is a service that runs a shell command, or sleeps.
func (d *device) config(service, command string) container.Config {
	args := []string{"sleep", "1000"}
	if command != "" {
		args = []string{"sh", "-c", command}
	}
	zero := time.Duration(0) // process 1 takes no notice of SIGTERM
	c := container.Config{
		Service:   &compose.Service{Name: service, Command: args, StopGrace: &zero},
		Image:     ocispec.ImageConfig{Env: []string{"PATH=/bin", "FROM=image"}},
		ImageName: "example.org/busybox:latest",
	}
	c.Labels.Project, c.Labels.Service, c.Labels.Number = "shop", service, 1
	c.Labels.Root = d.root
	c.Labels.Hash = "h-" + service
	c.Labels.Sandbox.Hostname = service
	return c
}

func (d *device) create(c container.Config) string {
	d.Helper()
	return expect.Value(d.tryCreate(c))(d)
}

func (d *device) tryCreate(c container.Config) (string, error) {
	id := c.Labels.ID()
	d.made[id] = true
	return id, d.Create(d.ctx(), c)
}

func (d *device) start(id string) {
	d.Helper()
	check(d, d.Start(d.ctx(), id))
}

// up creates and starts a container.
func (d *device) up(c container.Config) string {
	d.Helper()
	id := d.create(c)
	d.start(id)
	return id
}

func (d *device) stop(id string) {
	d.Helper()
	check(d, d.Stop(d.ctx(), id, nil))
}

func (d *device) delete(id string) {
	d.Helper()
	check(d, d.Delete(d.ctx(), id))
}

// sh runs a shell command in a container, and returns what it printed.
func (d *device) sh(id, command string) string {
	d.Helper()
	out, code, err := d.trySh(id, command)
	if err != nil || code != 0 {
		d.Fatalf("%s: code %d, %v\n%s", command, code, err, out)
	}
	return out
}

func (d *device) trySh(id, command string) (string, int, error) {
	var out bytes.Buffer
	code, err := d.Exec(d.ctx(), id, container.Exec{Args: []string{"sh", "-c", command}, Stdout: &out, Stderr: &out})
	return strings.TrimSpace(out.String()), code, err
}

func (d *device) find(id string) container.Container {
	d.Helper()
	for _, c := range expect.Value(d.List(d.ctx()))(d) {
		if c.ID == id {
			return c
		}
	}
	d.Fatalf("container %s is gone", id)
	return container.Container{}
}

// expectNothingLeft fails when anything of a container is still there, save volumes.
func (d *device) expectNothingLeft() {
	d.Helper()
	for _, pattern := range []string{"files/*", "shm/*", "stdin/*", "mounts/*", "exec/*", "nerdctl/*/*/*/*", "volumes/*/*", "logs/*"} {
		for _, dir := range []string{d.run, d.state} {
			if dir == d.state && strings.HasPrefix(pattern, "volumes") {
				continue
			}
			left := expect.Value(filepath.Glob(filepath.Join(dir, pattern)))(d)
			expect.Equal(d, left, nil, "left")
		}
	}
	if mounts, err := os.ReadFile("/proc/self/mountinfo"); err != nil || strings.Contains(string(mounts), d.run) {
		d.Errorf("mounts are left in %s (%v)", d.run, err)
	}
}

// write makes a file on the device.
func (d *device) write(path, text string) {
	d.Helper()
	check(d, errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)))
}
