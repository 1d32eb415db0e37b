package upgrade

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/margolite/margolite/agent/control"
	"github.com/margolite/margolite/agent/margo"
	"github.com/margolite/margolite/test/expect"
	"github.com/margolite/margolite/test/plant"
)

const (
	deployment = "0bd3a7e5-5f0c-4c5e-9c41-7a51c0ffee01"
	page       = 8090
)

// A device whose agent, shim and containerd were those of another commit.
func TestApplicationsRunOnWhileTheAgentIsReplaced(t *testing.T) {
	if testing.Short() {
		t.Skip("in make test-all: upgrades")
	}
	settled := plant.Settings{Settle: 200 * time.Millisecond}
	steps := []step{
		{"a newer one", (*device).stop, present, settled},
		{"the former one again", (*device).kill, former, settled},
		{"a newer one, configured differently", (*device).kill, present, plant.Settings{
			Settle: time.Second, LogLevel: "debug", Labels: map[string]string{"line": "7"},
			Runtime: map[string]string{"logs": "{maxSize: 2m, maxFile: 3}", "publish": "open", "pulls": "1"},
		}},
	}
	for name, containerd := range map[string]string{"containerd inside": "", "Debian's containerd": "/usr/bin/containerd"} {
		t.Run(name, func(t *testing.T) {
			d := newDevice(t, containerd)
			d.install(former)
			check(t, d.Configure(settled))
			check(t, d.Run(t.Context()))
			d.publish("Hello")
			d.runs("Hello")
			var before moment
			known := 0 // the schema that the former agent knows
			for i, s := range steps {
				if d.Running() {
					before = d.now()
					s.ends(d)
				}
				d.pageIsOf(before, "without an agent")
				found := d.schema()
				if known == 0 {
					known = found
				}
				d.install(s.release)
				check(t, d.Configure(s.settings))
				if s.release == former && found > known {
					d.refusesToStart(fmt.Sprintf("it has schema %d, this version reads up to %d", found, known))
					d.pageIsOf(before, s.name+" was refused")
					continue
				}
				check(t, d.Run(t.Context()))
				d.isUntouched(before, s.name)
				d.canBeLookedInto()

				greeting := fmt.Sprintf("Hello of agent %d", i+2)
				d.publish(greeting)
				d.runs(greeting)
				if after := d.now(); !same(after.services["counter"], before.services["counter"]) {
					t.Errorf("%s: an update of the page changed the counter: %+v was %+v", s.name, after.services["counter"], before.services["counter"])
				}
			}
			check(t, d.Clear(t.Context())) // no shim is left, either
		})
	}
}

// step replaces the agent once.
type step struct {
	name     string
	ends     func(*device) // the one before
	release  string
	settings plant.Settings
}

// device has the programs of one release at a time, in the places of an
// installed package.
type device struct {
	*plant.Plant
	t   *testing.T
	dir string
}

func newDevice(t *testing.T, containerd string) *device {
	t.Helper()
	if why := os.Getenv(unbuilt); why != "" {
		t.Skip("needs a commit to upgrade from:", why)
	}
	dir := t.TempDir()
	check(t, errors.Join(os.MkdirAll(filepath.Join(dir, "usr/bin"), 0o755), os.MkdirAll(filepath.Join(dir, "usr/libexec/margolite"), 0o755)))
	application := expect.Value(plant.LoadApplication(t.Context(), "1.0.0"))(t)
	return &device{plant.NewForTest(t, plant.Options{
		Margolite: filepath.Join(dir, "usr/bin/margolite"), Containerd: containerd, Application: application,
	}), t, dir}
}

// install puts the programs of a release in the place of others, as package
// managers do: a file of another name takes the place of one that may be running.
func (d *device) install(release string) {
	d.t.Helper()
	from := filepath.Join(plant.ProgramsDir(), release)
	for file, at := range map[string]string{agent: "usr/bin/margolite", plant.Shim: "usr/libexec/margolite/" + plant.Shim} {
		content := expect.Value(os.ReadFile(filepath.Join(from, file)))(d.t)
		path := filepath.Join(d.dir, at)
		check(d.t, errors.Join(os.WriteFile(path+".new", content, 0o755), os.Rename(path+".new", path)))
	}
}

func (d *device) stop() {
	d.t.Helper()
	check(d.t, d.Stop())
}

func (d *device) kill() { d.Kill() }

// publish has the application say something else, and waits until it is installed.
func (d *device) publish(greeting string) {
	d.t.Helper()
	done := expect.Value(d.Publish(d.Deployment(deployment, map[string]any{"GREETING": greeting})))(d.t)
	expect.Value(d.Await(d.t.Context(), deployment, margo.Installed, done.Version))(d.t)
}

// runs says that the page does, and what it says.
func (d *device) runs(greeting string) {
	d.t.Helper()
	expect.Equal(d.t, d.visit().Greeting, greeting, "the page")
}

// visit waits until the page answers.
func (d *device) visit() plant.Answer {
	d.t.Helper()
	return expect.Value(plant.Visit(d.t.Context(), page, ""))(d.t)
}

// moment is what runs at one time.
type moment struct {
	services map[string]control.Service // by name
	started  time.Time                  // when the page did, as it says itself
	process  map[string]string          // when the kernel started the process of a service
	shims    []int
}

// now waits until both services run.
func (d *device) now() moment {
	d.t.Helper()
	m := moment{process: map[string]string{}}
	check(d.t, plant.Eventually(d.t.Context(), func() error {
		status, err := d.Control().Status(d.t.Context())
		if err != nil {
			return err
		}
		m.services = nil
		for _, one := range status.Deployments {
			m.services = plant.Services(one)
		}
		maps.DeleteFunc(m.services, func(_ string, s control.Service) bool { return s.State != "running" })
		if len(m.services) != 2 {
			return fmt.Errorf("these services run: %v", slices.Collect(maps.Keys(m.services)))
		}
		return nil
	}))
	m.started = d.visit().Started
	for name, s := range m.services {
		m.process[name] = plant.Stat(s.Pid).Started
	}
	m.shims = d.Shims()
	return m
}

// isUntouched compares what runs with what ran before.
func (d *device) isUntouched(before moment, when string) {
	d.t.Helper()
	after := d.now()
	if !maps.EqualFunc(after.services, before.services, same) {
		d.t.Errorf("%s: services are %+v, were %+v", when, after.services, before.services)
	}
	if !maps.Equal(after.process, before.process) || !after.started.Equal(before.started) {
		d.t.Errorf("%s: processes started at %v, the page at %s; before that it was %v and %s", when, after.process, after.started, before.process, before.started)
	}
	expect.True(d.t, slices.Equal(after.shims, before.shims), "%s: shims are %v, were %v", when, after.shims, before.shims)
}

// pageIsOf says that the process that answers is the one of before; it needs no agent.
func (d *device) pageIsOf(before moment, when string) {
	d.t.Helper()
	if a := d.visit(); !a.Started.Equal(before.started) {
		d.t.Errorf("%s: a page answers that started at %s, and not at %s", when, a.Started, before.started)
	}
}

func same(a, b control.Service) bool {
	return a.Container == b.Container && a.Pid == b.Pid && a.Restarts == b.Restarts
}

// canBeLookedInto runs a command in a container, which the shim of another
// release may have started.
func (d *device) canBeLookedInto() {
	d.t.Helper()
	code, err := d.Control().Exec(d.t.Context(), control.ExecRequest{
		Deployment: deployment, Service: "web", Args: []string{"/demoapp", "healthy"},
	}, control.ExecStreams{Stdout: io.Discard, Stderr: io.Discard})
	expect.True(d.t, err == nil && code == 0, "a command in a container that another agent started: %d, %v", code, err)
}

// refusesToStart says that the agent ends by itself, and why.
func (d *device) refusesToStart(why string) {
	d.t.Helper()
	check(d.t, d.Start())
	check(d.t, d.Ended())
	log := expect.Value(os.ReadFile(d.LogFile()))(d.t)
	lines := strings.Split(strings.TrimSpace(string(log)), "\n")
	if said := strings.Join(lines[max(0, len(lines)-3):], "\n"); !strings.Contains(said, why) {
		d.t.Errorf("at last it said %q, and not %q", said, why)
	}
}

// schema is that of the records, whose agent has stopped.
func (d *device) schema() (version int) {
	d.t.Helper()
	db := expect.Value(bolt.Open(filepath.Join(d.StateDir(), "margolite.db"), 0o600, &bolt.Options{Timeout: 10 * time.Second, ReadOnly: true}))(d.t)
	err := db.View(func(tx *bolt.Tx) (err error) {
		version, err = strconv.Atoi(string(tx.Bucket([]byte("meta")).Get([]byte("schema"))))
		return err
	})
	check(d.t, errors.Join(err, db.Close()))
	return version
}

var check = expect.Check
