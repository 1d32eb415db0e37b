package neighbours

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"

	"github.com/margolite/margolite/agent/control"
	"github.com/margolite/margolite/agent/margo"
	"github.com/margolite/margolite/test/expect"
	"github.com/margolite/margolite/test/leftovers"
	"github.com/margolite/margolite/test/ociimage"
	"github.com/margolite/margolite/test/plant"
	"github.com/margolite/margolite/test/wfmsim"
	"github.com/margolite/margolite/test/wfmsim/registry"
)

const (
	// groupMemory is what the agent, its shims and every runc have together: the agent
	// stands for one on a machine of that size.
	groupMemory = 128 << 20
	// agentMemory is what the agent may have at any time, without its program.
	agentMemory = 64 << 20
	// agentLoad is how much of a processor it may use beside a hog, on the average. The
	// embedded containerd is a part of it.
	agentLoad = 0.5
	// runSize is the size of the file system of the run directory.
	runSize = 64 << 20
	// settle is for how long services run before they count as installed.
	settle = 200 * time.Millisecond
	// operators is the group that may use the control socket besides root.
	operators = "operator"
)

// options of a site.
type options struct {
	containerd string // program of an external containerd; empty: the embedded one
	long       bool   // hogs have their full size, and duties their time
}

// site is where a hog and its neighbours are. What cannot be set up fails the test.
// Its methods are for one goroutine, except those that say otherwise.
type site struct {
	*plant.Plant
	T    testing.TB
	hogs *registry.Registry // beside the plant's own; only hogs use it
	options

	group  *plant.MemoryGroup // nil: memory cannot be limited here
	before leftovers.Snapshot
	peak   int64 // bytes that former processes of the agent had at most

	mu   sync.Mutex             // of what is published, and of took
	took map[duty]time.Duration // at most
}

// newSite makes a site whose agent runs and has nothing deployed.
func newSite(t testing.TB, o options) *site {
	t.Helper()
	s := &site{T: t, options: o, took: map[duty]time.Duration{}}
	s.Plant = plant.NewForTest(t, plant.Options{Containerd: o.containerd})
	t.Cleanup(s.close)
	check(t, os.Chmod(s.Dir(), 0o711)) // for callers of the socket without privileges
	check(t, os.Mkdir(s.RunDir(), 0o755))
	check(t, unix.Mount("tmpfs", s.RunDir(), "tmpfs", 0, fmt.Sprintf("mode=755,size=%d", runSize)))
	s.limitMemory()
	s.open()
	check(t, s.Configure(s.settings("none")))
	check(t, s.Run(t.Context()))
	s.before = s.Look(s.T)
	return s
}

// open opens the registry of hogs and pushes the images.
func (s *site) open() {
	s.T.Helper()
	s.hogs = expect.Value(registry.New(registry.Options{}))(s.T)
	check(s.T, s.hogs.Start(""))
	for tag, padding := range map[string]int{"1.0.0": 0, "2.0.0": 1 << 20} {
		image := expect.Value(toolsImage(padding))(s.T)
		check(s.T, s.Push(s.T.Context(), tools, tag, image))
	}
}

// limitMemory has the agent start in a control group of its own.
func (s *site) limitMemory() {
	s.T.Helper()
	var err error
	s.group, err = plant.NewMemoryGroup("site", groupMemory)
	if errors.Is(err, plant.ErrNoMemoryLimit) {
		s.T.Log(err)
		return
	}
	check(s.T, err)
	script := filepath.Join(s.Dir(), "limited")
	check(s.T, s.group.Wrap(filepath.Join(plant.ProgramsDir(), "margolite"), script))
	s.Upgrade(script)
}

// settings are how the agent is configured.
func (s *site) settings(approval string) plant.Settings {
	return plant.Settings{
		Settle: settle, LogLevel: "debug", Policy: map[string]string{"approval": approval},
		More: "control: {group: " + operators + "}\n", Registries: []string{s.hogs.Address()},
	}
}

// close ends what is there beside the plant, and the device, which is in the group.
func (s *site) close() {
	s.Kill()
	s.PowerOff()
	if s.hogs != nil {
		expect.OK(s.T, s.hogs.Close())
	}
	if s.group != nil {
		expect.OK(s.T, s.group.Close(context.WithoutCancel(s.T.Context())))
	}
}

// id is the id of the deployment with a name.
func id(name string) string {
	h := fnv.New64a()
	_, _ = h.Write([]byte(name)) // documented to never fail
	return fmt.Sprintf("%08x-0000-4000-8000-%012x", h.Sum64()>>32, h.Sum64()&(1<<48-1))
}

// application is one Compose file that is deployed as one deployment.
type application struct {
	name     string
	compose  string // with the variables REGISTRY, HOGS and REVISION
	revision int
	timeout  string // of its component, as 5m; empty: none
	foreign  bool   // the component is in the registry of hogs
}

// publish makes a revision of an application part of the desired state. It may be
// called from any goroutine.
func (s *site) publish(a application) (wfmsim.Published, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	ctx := context.WithoutCancel(s.T.Context())
	c := ociimage.Component{Name: a.name, Version: "1.0.0", Files: ociimage.Files{"compose.yaml": []byte(a.compose)}}
	component, err := c.Build()
	if err != nil {
		return wfmsim.Published{}, err
	}
	home := s.Registry
	if a.foreign {
		home = s.hogs
	}
	if err := (ociimage.Registry{URL: home.URL()}).Push(ctx, "apps/"+a.name, "1.0.0", component); err != nil {
		return wfmsim.Published{}, err
	}
	d := s.Deployment(id(a.name), map[string]any{"HOGS": s.hogs.Address(), "REVISION": max(a.revision, 1)})
	delete(d.Parameters, "PORT")
	d.Name = a.name
	d.Components = []wfmsim.Component{{Name: a.name, Repository: home.Address() + "/apps/" + a.name, Revision: "1.0.0", Timeout: a.timeout}}
	return s.Publish(d)
}

// remove takes an application out of the desired state and returns the version
// since when. It may be called from any goroutine.
func (s *site) remove(name string) (uint64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.Remove(id(name))
}

// install publishes applications and waits until all of them run.
func (s *site) install(all ...application) {
	s.T.Helper()
	versions := map[string]uint64{}
	for _, a := range all {
		done := expect.Value(s.publish(a))(s.T)
		versions[a.name] = done.Version
	}
	for name, version := range versions {
		expect.Value(s.Await(s.T.Context(), id(name), margo.Installed, version))(s.T)
	}
}

// withdraw removes applications and waits until the WFM has heard that they are
// removed.
func (s *site) withdraw(ctx context.Context, names ...string) error {
	versions := map[string]uint64{}
	for _, name := range names {
		version, err := s.remove(name)
		if err != nil {
			return err
		}
		versions[name] = version
	}
	for name, version := range versions {
		if err := s.WFM.WaitState(ctx, id(name), margo.Removed, version); err != nil {
			return fmt.Errorf("%s is not removed: %w", name, err)
		}
	}
	return nil
}

// process is the first process of a container.
type process struct {
	revision int
	pid      int
}

// processes are the first processes of the containers of an application, as the
// kernel knows them. It may be called from any goroutine.
func processes(name string) []process {
	var found []process
	for _, pid := range plant.Processes() {
		variables := plant.Environment(pid)
		if variables["NEIGHBOUR"] != name {
			continue
		}
		status, _ := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "status")) // it may have ended
		if line := field(status, "NSpid"); len(line) == 0 || line[len(line)-1] != "1" {
			continue // another one in its container
		}
		if state := plant.Stat(pid).State; state == "" || state == "Z" {
			continue
		}
		p := process{pid: pid}
		p.revision, _ = strconv.Atoi(variables["REVISION"])
		found = append(found, p)
	}
	return found
}

// field are the words of a line of a file such as /proc/PID/status.
func field(text []byte, name string) []string {
	for line := range bytes.Lines(text) {
		if value, ok := bytes.CutPrefix(line, []byte(name+":")); ok {
			return strings.Fields(string(value))
		}
	}
	return nil
}

// running returns an error unless the application runs as exactly one process, of that
// revision.
func running(name string, revision int) error {
	if all := processes(name); len(all) != 1 || all[0].revision != revision {
		return fmt.Errorf("%s runs as %+v, want one process of revision %d", name, all, revision)
	}
	return nil
}

// memory is how many bytes the agent has had at most, without its program and other
// files.
func (s *site) memory() int64 {
	if s.Running() {
		counts, _ := plant.Counts(s.Agent(), "status") // it may have ended
		s.peak = max(s.peak, counts["VmHWM"]-counts["RssFile"]-counts["RssShmem"])
	}
	return s.peak
}

// survives says whether the agent is still the process that was started last, and
// nothing in its control group was killed for want of memory.
func (s *site) survives() error {
	select {
	case <-s.Done():
		return errEnded
	default:
	}
	if s.group == nil {
		return nil
	}
	n, err := s.group.Killed()
	if err == nil && n > 0 {
		err = fmt.Errorf("the kernel killed %d processes for want of memory", n)
	}
	return err
}

// deployment is what a status says of an application, or nil.
func deployment(status *control.Status, name string) *control.Deployment {
	i := slices.IndexFunc(status.Deployments, func(d control.Deployment) bool { return d.ID == id(name) })
	if i < 0 {
		return nil
	}
	return &status.Deployments[i]
}

var check = expect.Check

// hogProgram is the file of the program hog.
const hogProgram = "hog"

// build makes all programs that sites run, in dir. It needs the go command.
func build(ctx context.Context, dir string) error {
	if err := plant.BuildAgent(ctx, dir); err != nil {
		return err
	}
	program, err := ociimage.BuildProgram(ctx, "github.com/margolite/margolite/test/neighbours/hog", "")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, hogProgram), program, 0o755)
}

// tools is the repository of the one image that everybody has, with a tag for each
// of its sizes.
const tools = "neighbours/tools"

// toolsImage is an image of busybox and of the program hog, and padding bytes more.
func toolsImage(padding int) (*ociimage.Artifact, error) {
	entries, err := ociimage.Busybox("cat", "dd", "false", "mkfifo", "rm", "sh", "sleep", "true", "truncate", "yes")
	if err != nil {
		return nil, err
	}
	program, err := os.ReadFile(filepath.Join(plant.ProgramsDir(), hogProgram))
	if err != nil {
		return nil, err
	}
	entries = append(entries,
		ociimage.Executable("/bin/hog", program),
		ociimage.Entry{Name: "etc/", Type: tar.TypeDir},
		ociimage.Entry{Name: "etc/passwd", Data: []byte("root:x:0:0:root:/:/bin/sh\n")},
		ociimage.Entry{Name: "etc/group", Data: []byte("root:x:0:\n")},
	)
	layers := []ociimage.Layer{{Entries: entries}}
	if padding > 0 {
		layers = append(layers, ociimage.Padding(padding))
	}
	return ociimage.Build(ociimage.Image{Layers: layers, Config: ocispec.ImageConfig{Env: []string{"PATH=/bin"}}})
}
