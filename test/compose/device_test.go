package compose

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/margolite/margolite/runtime"
	"github.com/margolite/margolite/runtime/container"
	"github.com/margolite/margolite/runtime/containerd"
	"github.com/margolite/margolite/runtime/image"
	"github.com/margolite/margolite/test/containerdtest"
	"github.com/margolite/margolite/test/expect"
	"github.com/margolite/margolite/test/isolated"
	"github.com/margolite/margolite/test/leftovers"
	"github.com/margolite/margolite/test/plant"
)

func TestMain(m *testing.M) {
	flag.Parse()
	if isolated.Outside() && !testing.Short() {
		if err := fetchPackages(); err != nil {
			fmt.Fprintln(os.Stderr, err) // the tests that need them fail
		}
	}
	os.Exit(isolated.MainInLanes(m))
}

// device is a machine with a containerd and a runtime that supervises.
type device struct {
	client      containerd.Client
	state, run  string
	socket      string // of containerd
	registry    string
	options     runtime.Options
	engine      *runtime.Engine
	stop        func() error
	environment map[string]string // of every Compose file
	look        leftovers.Where
	series      *containerdtest.Series
}

// newDevice starts a device for the subtests of a test.
func newDevice(of *testing.T, backend containerdtest.Backend) *device {
	t := containerdtest.NewSeries(of)
	client := backend.Start(t)
	dir := containerdtest.Dir(t)
	d := &device{series: t, client: client, state: filepath.Join(dir, "state"), run: filepath.Join(dir, "run"), registry: containerdtest.Registry(t)}
	tools := containerdtest.Busybox(t, func(c *v1.ImageConfig) { c.StopSignal = "SIGKILL" })
	containerdtest.Push(t, tools, d.registry+"/tools:latest")
	d.environment = map[string]string{"TOOLS": d.registry + "/tools:latest", "REGISTRY": d.registry}
	d.socket = containerd.Address(client)
	d.options = runtime.Options{
		Options: container.Options{
			Client:    client,
			Namespace: containerdtest.Namespace,
			StateDir:  d.state,
			RunDir:    d.run,
			LogKeeper: backend.LogKeeper(t),
			Init:      containerdtest.Init(t),
			Logger:    containerdtest.Logger(t),
		},
		Images: image.Options{Registries: map[string]image.Registry{d.registry: {PlainHTTP: true}}},
	}
	check(t, d.start())
	t.Cleanup(func() {
		expect.OK(t, d.stop())
	})
	d.look = leftovers.Where{Client: client, Namespace: containerdtest.Namespace, StateDir: d.state, RunDir: d.run}
	return d
}

// start starts a runtime and its supervisor, as the agent does.
func (d *device) start() error {
	engine, err := runtime.New(d.options)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- engine.Run(ctx) }()
	d.engine = engine
	d.stop = func() error {
		cancel()
		defer engine.Close()
		return <-ended
	}
	return nil
}

// load loads a project and stages its images.
func (d *device) load(ctx context.Context, s runtime.Source) (*runtime.Project, error) {
	p, err := d.engine.Load(ctx, s)
	if err != nil {
		return nil, err
	}
	_, err = d.engine.Stage(ctx, p, nil, nil)
	return p, err
}

// remove removes a project with its volumes, and finds whatever stays.
func (d *device) remove(t *testing.T, project string, before leftovers.Snapshot) {
	check(t, d.engine.RemoveWith(t.Context(), project, runtime.RemoveOptions{Volumes: true}))
	// Some things go a moment after the call that removed them.
	expect.OK(t, plant.Eventually(t.Context(), func() error {
		if left := before.Differences(leftovers.Take(t, d.look)); len(left) > 0 {
			return errors.New(strings.Join(left, "\n"))
		}
		return nil
	}))
}

// reboot takes away what a reboot takes: processes, links, rules, namespaces,
// mounts and the run directory.
func (d *device) reboot(t *testing.T) error {
	if err := d.stop(); err != nil {
		return err
	}
	projects, err := d.engine.Observe(t.Context())
	if err != nil {
		return err
	}
	for _, p := range projects {
		for _, c := range p.Containers {
			if c.Pid > 0 {
				_ = syscall.Kill(c.Pid, syscall.SIGKILL) // may have ended by itself
			}
		}
	}
	for _, pid := range plant.Processes("containerd-shim-runc-v2") {
		_ = syscall.Kill(pid, syscall.SIGKILL) // the same
	}
	if err := isolated.ForgetNetwork(); err != nil {
		return err
	}
	plant.UnmountBelow(d.run) // what stays makes the removal fail
	if err := os.RemoveAll(d.run); err != nil {
		return err
	}
	return d.start()
}

var check = expect.Check
