package image

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/margolite/margolite/agent/margo"
	"github.com/margolite/margolite/test/expect"
	"github.com/margolite/margolite/test/isolated"
	"github.com/margolite/margolite/test/leftovers"
	"github.com/margolite/margolite/test/plant"
)

// imagesDir tells the tests where the images are.
const imagesDir = "MARGOLITE_TEST_IMAGES"

// deployment is the id of the one that is deployed.
const deployment = "2f9a1c34-0000-4000-8000-0000000000de"

func TestMain(m *testing.M) { os.Exit(testsIn(m)) }

// testsIn builds the images and runs the tests on a machine of their own.
func testsIn(m *testing.M) int {
	flag.Parse()
	if testing.Short() {
		return m.Run() // which skips them all
	}
	if os.Geteuid() != 0 {
		fmt.Println("these tests need root: containers are real")
		return 1
	}
	if isolated.Outside() {
		dir, err := os.MkdirTemp("", "margolite-image-")
		if err == nil {
			defer os.RemoveAll(dir)
			err = errors.Join(buildImages(context.Background(), dir), os.Setenv(imagesDir, dir))
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "cannot build the images:", err)
			return 1
		}
	}
	return isolated.Main(m)
}

// buildImages builds two versions of the agent's image.
func buildImages(ctx context.Context, dir string) error {
	for _, version := range []string{"one", "two"} {
		programs := filepath.Join(dir, version)
		err := plant.BuildPrograms(ctx, programs,
			plant.Program{File: "margolite", Name: "margolite", Version: version, Tags: plant.AgentTags},
			plant.Program{File: plant.Shim, Name: plant.Shim, Version: version, Tags: plant.ShimTags},
			plant.Program{File: "margolite-init", Name: "margolite-init", Version: version},
		)
		if err != nil {
			return err
		}
		cmd := exec.CommandContext(ctx, "go", "run", "github.com/margolite/margolite/packaging/image",
			"-version", version, "-dir", programs, "-out", archiveOf(dir, version))
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
	}
	return nil
}

func archiveOf(dir, version string) string { return filepath.Join(dir, version+".oci.tar") }

func imageOf(version string) string { return "docker.io/margolite/margolite:" + version }

// The agent in a container does its main job. Workloads outlive its update, its restart and its image, and come back
// after a reboot.
func TestPOL10TheAgentRunsAsAContainer(t *testing.T) {
	if testing.Short() {
		t.Skip("in make test-all: container engines")
	}
	for name, e := range engines {
		t.Run(name, func(t *testing.T) {
			h := newHost(t, e)
			d := h.newDevice()
			h.serve()
			for _, version := range []string{"one", "two"} {
				h.must(h.load, archiveOf(os.Getenv(imagesDir), version))
			}
			d.begin("one")
			d.install(nil)
			running := d.workloads()
			expect.Require(t, len(running) == 3, "these processes run, want two services and their shim: %v", running)
			d.shimIsOnItsOwn()
			same := func(after string) {
				t.Helper()
				if now := d.workloads(); !slices.Equal(now, running) {
					t.Fatalf("after %s these processes run: %v, were %v", after, now, running)
				}
				d.visit()
			}
			h.end()
			same("removal of the container")
			d.begin("two")
			same("start of the next version")
			h.must(h.discard, imageOf("one"))
			d.margolite("exec", deployment, "web", "--", "/demoapp", "healthy")
			same("command in a workload")
			h.end()
			d.begin("two")
			same("restart")

			d.reboot()
			d.visit()
			d.await()
			d.install(map[string]any{"TAG": "2.0.0"})
			expect.Value(d.Remove(deployment))(t)
			plant.Require(h, "workloads have ended", func() error {
				if now := d.workloads(); len(now) > 0 {
					return errors.New(strings.Join(now, "\n"))
				}
				return nil
			})
			h.end()
		})
	}
}

// A container that cannot reach the host says how to start one that can.
func TestAContainerThatCannotReachTheHostSaysSo(t *testing.T) {
	if testing.Short() {
		t.Skip("in make test-all: container engines")
	}
	for name, e := range engines {
		t.Run(name, func(t *testing.T) {
			h := newHost(t, e)
			h.serve()
			h.must(h.load, archiveOf(os.Getenv(imagesDir), "one"))
			hostProcesses := " --pid host"
			if name == "containerd" {
				hostProcesses = " --with-ns pid:/proc/1/ns/pid"
			}
			for _, options := range []string{"", " --privileged", hostProcesses} {
				out, err := h.try(h.once+options, h.margolite(imageOf("one"), "run")...)
				if err == nil || !strings.Contains(out, "cannot enter the namespaces of the host") || !strings.Contains(out, "--pid=host") {
					t.Errorf("with options %q: %v", options, err)
				}
			}
		})
	}
}

// newHost is a machine with an engine that has nothing yet. It is skipped where the engine is not installed.
func newHost(t *testing.T, e engine) *host {
	for _, command := range []string{e.daemon, e.load} {
		if words := strings.Fields(command); len(words) > 0 {
			if _, err := exec.LookPath(words[0]); err != nil {
				t.Skipf("%v: make test-image installs it", err)
			}
		}
	}
	dir := expect.Value(os.MkdirTemp("", "image-"))(t)
	h := &host{T: t, engine: e, dir: dir, run: "/run/engine"}
	h.mustBeAlone()
	h.writeRunc()
	h.mount()
	t.Cleanup(func() {
		if t.Failed() {
			agent := ""
			if h.logs != "" {
				agent, _ = h.try(h.logs) // there may be none
			}
			log, _ := os.ReadFile(h.log()) // nor this
			t.Logf("agent:\n%s\nengine:\n%s", agent, log)
		}
		h.powerOff()
		expect.OK(t, os.RemoveAll(dir))
	})
	return h
}

// mustBeAlone makes sure that whoever ends all processes ends those of this test alone: process 1 is then a part of it.
func (h *host) mustBeAlone() {
	h.Helper()
	one := expect.Value(os.Stat("/proc/1/exe"))(h)
	if self, err := os.Stat("/proc/self/exe"); err != nil || !os.SameFile(one, self) {
		h.Fatalf("this test has no processes of its own: %v", err)
	}
}

// mount gives the host a /run of its own, and an /etc where engines may write: Docker keeps an identity there.
func (h *host) mount() {
	h.Helper()
	err := unix.Mount("tmpfs", "/run", "tmpfs", 0, "mode=755")
	for _, dir := range []string{h.run, "/run/etc", "/run/etc/upper", "/run/etc/work"} {
		err = errors.Join(err, os.Mkdir(dir, 0o755))
	}
	err = errors.Join(err, unix.Mount("overlay", "/etc", "overlay", 0, "lowerdir=/etc,upperdir=/run/etc/upper,workdir=/run/etc/work"))
	expect.Check(h, err)
}

// powerOff ends everything but the test and process 1, and takes what only memory has.
func (h *host) powerOff() {
	h.Helper()
	h.mustBeAlone()
	for range 3 { // who is killed may just have forked
		_ = unix.Kill(-1, unix.SIGKILL) // nobody may be left
	}
	plant.UnmountBelow(h.dir)
	plant.UnmountBelow("/run")
	err := errors.Join(unix.Unmount("/etc", unix.MNT_DETACH), unix.Unmount("/run", unix.MNT_DETACH), isolated.ForgetNetwork())
	expect.OK(h, err)
}

// device is what the agent manages on a host, with a WFM.
type device struct {
	*plant.Plant
	h       *host
	version string // of the agent
}

func (h *host) newDevice() *device {
	h.Helper()
	application := expect.Value(plant.BuildApplication(h.Context(), "1.0.0", "2.0.0"))(h)
	dir := filepath.Join(h.dir, "p")
	expect.Check(h, os.Mkdir(dir, 0o755))
	p := expect.Value(plant.New(h.Context(), plant.Options{Dir: dir, Application: application}))(h)
	h.Cleanup(func() { expect.OK(h, p.Close()) })
	return &device{Plant: p, h: h}
}

// begin starts the agent's container and waits for the agent.
func (d *device) begin(version string) {
	d.h.Helper()
	d.version = version
	d.h.begin(imageOf(version), "run", "--config", d.ConfigFile())
	d.await()
}

// await waits until the agent answers, by a command in its container.
func (d *device) await() {
	d.h.Helper()
	plant.Require(d.h, "the agent answers", func() error { return d.Control().Ping(d.h.Context()) })
	if out := d.margolite("status"); !strings.Contains(out, d.version) {
		d.h.Errorf("the agent is not of version %s: %s", d.version, out)
	}
}

// margolite runs a command in the agent's container.
func (d *device) margolite(verb string, args ...string) string {
	d.h.Helper()
	return d.h.must(d.h.exec, append([]string{filepath.Join(d.h.programs(), "margolite"), verb, "--config", d.ConfigFile()}, args...)...)
}

// install has the WFM deploy the application, and waits until it answers.
func (d *device) install(parameters map[string]any) {
	d.h.Helper()
	published := expect.Value(d.Publish(d.Deployment(deployment, parameters)))(d.h)
	expect.Value(d.Await(d.h.Context(), deployment, margo.Installed, published.Version))(d.h)
	d.visit()
}

func (d *device) visit() {
	d.h.Helper()
	expect.Value(plant.Visit(d.h.Context(), 8090, ""))(d.h)
}

// workloads are the processes of workloads, and their shims.
func (d *device) workloads() []string {
	d.h.Helper()
	all := leftovers.Take(d.h, leftovers.Where{Namespace: "margo"})["process"]
	return slices.DeleteFunc(all, func(p string) bool { // the engine has shims, too
		return strings.Contains(p, " -namespace ") && !strings.Contains(p, " -namespace margo ")
	})
}

// shimIsOnItsOwn checks that an engine finds no shim in the control group of the agent's container, of any hierarchy.
func (d *device) shimIsOnItsOwn() {
	d.h.Helper()
	for _, pid := range d.Shims() {
		groups := expect.Value(os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid)))(d.h)
		for line := range strings.Lines(string(groups)) {
			expect.True(d.h, strings.HasSuffix(line, ":/margolite-shims\n"), "the shim is in the control group %s", line)
		}
	}
}

// reboot cuts the power, and starts the machine as its system does.
func (d *device) reboot() {
	d.h.Helper()
	d.h.powerOff()
	expect.Check(d.h, os.RemoveAll(d.RunDir()))
	if left := d.workloads(); len(left) > 0 {
		d.h.Fatalf("these processes survive a reboot: %v", left)
	}
	d.h.mount()
	d.h.serve()
	if d.h.boot != "" {
		for command := range strings.SplitSeq(d.h.boot, ";") {
			if _, err := d.h.try(command); err != nil {
				d.h.Logf("in vain: %v", err)
			}
		}
	}
	if d.h.stop == "" {
		d.h.begin(imageOf(d.version), "run", "--config", d.ConfigFile())
	}
}
