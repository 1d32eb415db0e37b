package runtime_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/margolite/margolite/runtime"
	"github.com/margolite/margolite/runtime/container"
	"github.com/margolite/margolite/runtime/containerd"
	"github.com/margolite/margolite/runtime/image"
	"github.com/margolite/margolite/test/containerdtest"
	"github.com/margolite/margolite/test/expect"
	"github.com/margolite/margolite/test/isolated"
)

const patience = 2 * time.Minute

// rig is a device with a runtime on it: a containerd, directories, a registry.
type rig struct {
	testing.TB
	client    containerd.Client
	registry  string
	state     string
	run       string
	logKeeper string
	onStep    func(string)
	contained func(what string, err error)
	offline   bool // no registry is known
	shimGrace time.Duration
	pins      map[string]digest.Digest
	projects  map[string]bool // that were ever loaded
}

func embeddedBackend() containerdtest.Backend { return containerdtest.Backends()[0] }

// onEach runs a test on each kind of containerd.
func onEach(t *testing.T, test func(t *testing.T, r *rig)) {
	containerdtest.OnEach(t, func(t *testing.T, backend containerdtest.Backend) {
		test(t, newRig(t, backend))
	})
}

func newRig(t testing.TB, backend containerdtest.Backend) *rig {
	client := backend.Start(t)
	dir := containerdtest.Dir(t)
	r := &rig{
		TB:        t,
		client:    client,
		logKeeper: backend.LogKeeper(t),
		registry:  containerdtest.Registry(t),
		state:     filepath.Join(dir, "state"),
		run:       filepath.Join(dir, "run"),
		pins:      make(map[string]digest.Digest),
		projects:  make(map[string]bool),
	}
	t.Cleanup(func() { // whatever the test left
		r.onStep = nil
		ctx := context.WithoutCancel(containerdtest.Context(t))
		engine := r.engine()
		projects, err := engine.Observe(ctx)
		expect.OK(t, err)
		for _, p := range projects {
			expect.OK(t, engine.Remove(ctx, p.Name))
		}
	})
	r.push("busybox", nil)
	return r
}

// push puts a busybox with another digest into the registry. It stops at once:
// process 1 takes no notice of SIGTERM unless it is made to.
func (r *rig) push(name string, change func(*v1.ImageConfig)) {
	image := containerdtest.Busybox(r, func(c *v1.ImageConfig) {
		c.StopSignal = "SIGKILL"
		if change != nil {
			change(c)
		}
	})
	containerdtest.Push(r, image, r.registry+"/"+name+":latest")
}

// engine is a new runtime on the device, as after a restart of the agent.
func (r *rig) engine() *runtime.Engine {
	r.Helper()
	registries := map[string]image.Registry{r.registry: {PlainHTTP: true}}
	if r.offline {
		registries = nil
	}
	engine := expect.Value(runtime.New(runtime.Options{
		Options: container.Options{
			Client:    r.client,
			Namespace: containerdtest.Namespace,
			StateDir:  r.state,
			RunDir:    r.run,
			LogKeeper: r.logKeeper,
			ShimGrace: r.shimGrace,
			Logger:    containerdtest.Logger(r),
		},
		Images:    image.Options{Registries: registries},
		OnStep:    r.onStep,
		Contained: r.contained,
	}))(r)
	r.Cleanup(engine.Close)
	return engine
}

// supervise runs the supervisor of an engine until the test or stop ends it.
func (r *rig) supervise(e *runtime.Engine) (stop func()) {
	ctx, cancel := context.WithCancel(r.Context())
	ended := make(chan error, 1)
	go func() { ended <- e.Run(ctx) }()
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		expect.OK(r, <-ended)
	}
	r.Cleanup(stop)
	return stop
}

// load loads and stages a project; BUSYBOX in the file stands for the image.
func (r *rig) load(e *runtime.Engine, name, file string) *runtime.Project {
	r.Helper()
	file = strings.ReplaceAll(file, "BUSYBOX", r.registry+"/busybox:latest")
	file = strings.ReplaceAll(file, "REGISTRY", r.registry)
	p := expect.Value(e.Load(r.Context(), runtime.Source{Project: name, Package: []byte(file), Labels: map[string]string{"org.example/test": r.Name()}}))(r)
	r.projects[name] = true
	pins := expect.Value(e.Stage(r.Context(), p, r.pins, nil))(r)
	for ref, pin := range pins {
		r.pins[ref] = pin
	}
	return p
}

func (r *rig) apply(e *runtime.Engine, p *runtime.Project) {
	r.Helper()
	expect.Check(r, e.Apply(r.Context(), p, runtime.ApplyOptions{}))
}

// refused expects that a project is not applied, and why.
func (r *rig) refused(e *runtime.Engine, p *runtime.Project, code runtime.Code, says ...string) {
	r.Helper()
	err := e.Apply(r.Context(), p, runtime.ApplyOptions{})
	if err == nil || runtime.CodeOf(err) != code {
		r.Fatalf("%s is applied with %v, want code %s", p.Name, err, code)
	}
	for _, text := range says {
		expect.Contains(r, err.Error(), text, "error of %s", p.Name)
	}
}

// containers are those of a project, by service.
func (r *rig) containers(e *runtime.Engine, project string) map[string]runtime.ObservedContainer {
	r.Helper()
	p := expect.Value(e.ObserveProject(r.Context(), project))(r)
	byService := make(map[string]runtime.ObservedContainer)
	for _, c := range p.Containers {
		if other, ok := byService[c.Service]; ok {
			r.Fatalf("service %s has two containers, %s and %s", c.Service, other.ID, c.ID)
		}
		byService[c.Service] = c
	}
	return byService
}

// kill kills the process of a service, and returns which it was.
func (r *rig) kill(e *runtime.Engine, project, service string) (pid int) {
	r.Helper()
	pid = r.containers(e, project)[service].Pid
	expect.Check(r, syscall.Kill(pid, syscall.SIGKILL))
	return pid
}

// runsAgain waits until a service has another process than it had.
func (r *rig) runsAgain(e *runtime.Engine, project, service string, had int) {
	r.Helper()
	expect.Eventually(r, service+" of "+project+" runs again", func() bool {
		c := r.containers(e, project)[service]
		return c.State == runtime.Running && c.Pid != had
	})
}

// volume is the content of a file in a volume; "" while there is none.
func (r *rig) volume(path string) string {
	text, _ := os.ReadFile(filepath.Join(r.state, "volumes", path))
	return string(text)
}

// inside runs a shell command in the namespaces of a container.
func (r *rig) inside(c runtime.ObservedContainer, command string) string {
	r.Helper()
	out, err := r.tryInside(c, command)
	if err != nil {
		r.Fatalf("%s: %v\n%s", command, err, out)
	}
	return out
}

func (r *rig) tryInside(c runtime.ObservedContainer, command string) (string, error) {
	out, err := exec.Command("nsenter", "-t", fmt.Sprint(c.Pid), "-a", "-r", "-w", "/bin/sh", "-c", command).CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

// environment is that of the first process of a container, one entry per line.
func (r *rig) environment(c runtime.ObservedContainer) string {
	r.Helper()
	var text []byte
	expect.Eventually(r, "the process has its environment", func() bool {
		var err error
		if text, err = os.ReadFile(fmt.Sprintf("/proc/%d/environ", c.Pid)); err != nil {
			r.Fatal(err)
		}
		return len(text) > 0
	})
	return strings.ReplaceAll(string(text), "\x00", "\n")
}

// logs is the output of a service so far.
func (r *rig) logs(e *runtime.Engine, project, service string) string {
	r.Helper()
	var out strings.Builder
	err := e.LogLines(r.Context(), runtime.LogsRequest{Project: project, Services: []string{service}}, func(l runtime.LogLine) error {
		out.Write(l.Text)
		return nil
	})
	expect.Check(r, err)
	return out.String()
}

// get fetches a page; "" when it cannot.
func get(address string) string {
	client := http.Client{Timeout: 2 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Get("http://" + address)
	if err != nil {
		return ""
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, 1<<16))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(body))
}

// answers tells whether something accepts connections at address.
func answers(address string) bool {
	conn, err := net.DialTimeout("tcp", address, time.Second)
	if err != nil {
		return false
	}
	_ = conn.Close()
	return true
}

// hostAddress is an address of this machine other than loopback. The tests have
// a network of their own, with none; it is added.
func (r *rig) hostAddress() string {
	r.Helper()
	const address = "198.51.100.1"
	if out, err := exec.Command("ip", "address", "replace", address+"/32", "dev", "lo").CombinedOutput(); err != nil {
		r.Fatalf("%v: %s", err, out)
	}
	return address
}

// reboot does what a reboot does to the runtime: processes, namespaces, links,
// rules and the run directory are gone.
func (r *rig) reboot(e *runtime.Engine) {
	r.Helper()
	r.killShims()
	expect.Eventually(r, "no process is left", func() bool {
		return !slices.ContainsFunc(expect.Value(e.Observe(r.Context()))(r), func(p runtime.ObservedProject) bool {
			return slices.ContainsFunc(p.Containers, func(c runtime.ObservedContainer) bool { return c.State != runtime.Created && c.State != runtime.Done })
		})
	})
	r.wipeNetwork()
}

// ownLinks are the links of the host that the runtime made: bridges, and ends of links to containers.
func ownLinks(t testing.TB) (names []string) {
	t.Helper()
	for _, link := range expect.Value(net.Interfaces())(t) {
		if strings.HasPrefix(link.Name, "mgl-") || strings.HasPrefix(link.Name, "mgv-") {
			names = append(names, link.Name)
		}
	}
	return names
}

// wipeNetwork removes links, rules, pins and the run directory behind the runtime's back.
func (r *rig) wipeNetwork() {
	r.Helper()
	expect.Check(r, isolated.ForgetNetwork())
	r.wipeRun()
	expect.Check(r, os.RemoveAll(r.run))
}

// killShims kills the shims of this rig's containerd, and what they run.
func (r *rig) killShims() {
	r.Helper()
	for _, pid := range r.shims() {
		children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			r.Fatal(err)
		}
		_ = syscall.Kill(pid, syscall.SIGKILL)
		for child := range strings.FieldsSeq(string(children)) {
			var n int
			if _, err := fmt.Sscan(child, &n); err == nil {
				_ = syscall.Kill(n, syscall.SIGKILL)
			}
		}
	}
}

// shims are the shims that run in the tests' process namespace.
func (r *rig) shims() []int {
	r.Helper()
	entries := expect.Value(os.ReadDir("/proc"))(r)
	var pids []int
	for _, entry := range entries {
		var pid int
		if _, err := fmt.Sscan(entry.Name(), &pid); err != nil {
			continue
		}
		command, err := os.ReadFile(filepath.Join("/proc", entry.Name(), "cmdline"))
		if err == nil && bytes.Contains(command, []byte("containerd-shim-runc-v2")) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// expectNothingLeft fails when anything of any project is still there, save volumes.
func (r *rig) expectNothingLeft() {
	r.Helper()
	ctx := containerdtest.Context(r)
	containers, err := r.client.ContainerService().List(ctx)
	expect.Check(r, err)
	expect.Equal(r, len(containers), 0, "containers left")
	err = r.client.SnapshotService("overlayfs").Walk(ctx, func(_ context.Context, s snapshots.Info) error {
		r.Errorf("snapshot %s is left", s.Name)
		return nil
	}, `labels."margolite/project"`)
	expect.Check(r, err)
	expect.Equal(r, ownLinks(r), nil, "links left")
	for _, pattern := range []string{"netns/*", "hosts/*", "logs/*", "mounts/*"} {
		left := expect.Value(filepath.Glob(filepath.Join(r.run, pattern)))(r)
		expect.Equal(r, left, nil, "left in the run directory")
	}
	expect.Equal(r, expect.Value(filepath.Glob(filepath.Join(r.state, "projects", "*")))(r), nil, "left of packages")
	for project := range r.projects {
		for _, root := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/*"} {
			expect.Equal(r, expect.Value(filepath.Glob(filepath.Join(root, containerdtest.Namespace, project)))(r), nil, "control groups left")
		}
	}
	if mounts, err := os.ReadFile("/proc/self/mountinfo"); err != nil || strings.Contains(string(mounts), r.run) {
		r.Errorf("mounts are left in %s (%v)", r.run, err)
	}
}
