package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/margolite/margolite/agent/control"
	"github.com/margolite/margolite/agent/margo"
	"github.com/margolite/margolite/test/expect"
	"github.com/margolite/margolite/test/isolated"
	"github.com/margolite/margolite/test/leftovers"
	"github.com/margolite/margolite/test/ociimage"
	"github.com/margolite/margolite/test/plant"
	"github.com/margolite/margolite/test/wfmsim"
)

// programs are built once for all tests.
var programs struct {
	application *plant.Application // in versions 1.0.0 and 2.0.0
	tools       *ociimage.Artifact // an image with what every Linux has
}

func TestMain(m *testing.M) { os.Exit(plant.RunTests(m, buildPrograms, loadPrograms)) }

func buildPrograms(ctx context.Context, dir string) error {
	return errors.Join(plant.BuildAgent(ctx, dir), plant.BuildDemo(ctx, dir))
}

func loadPrograms() (err error) {
	if programs.application, err = plant.LoadApplication(context.Background(), "1.0.0", "2.0.0"); err != nil {
		return err
	}
	programs.tools, err = toolsImage()
	return err
}

// long says why a test is left out in the short form, which has one test for each
// promise.
func long(t *testing.T, why string) {
	t.Helper()
	if testing.Short() {
		t.Skip("in make test-all: " + why)
	}
}

// backends are the containerds that every test runs on, with their programs.
var backends = map[string]string{"embedded": "", "debian": "/usr/bin/containerd"}

// onBackends runs a test on each; in the short form on the embedded one alone.
func onBackends(t *testing.T, test func(t *testing.T, r *rig)) {
	for name, program := range backends {
		t.Run(name, func(t *testing.T) {
			if program != "" {
				long(t, "containerd of the system")
			}
			test(t, newRig(t, name))
		})
	}
}

// settle is for how long services run before they count as installed.
const settle = 200 * time.Millisecond

// usual is how the agent is configured where a test says nothing else.
var usual = plant.Settings{Settle: settle, LogLevel: "debug"}

// rig is a plant under test: what fails in it fails the test.
type rig struct {
	*plant.Plant
	t      *testing.T
	before leftovers.Snapshot // of the machine, when the agent ran for the first time

	keepsImages bool // a removal leaves them; they go at the end
}

func newRig(t *testing.T, backend string) *rig {
	t.Helper()
	return newRigOn(t, plant.Options{Containerd: backends[backend]})
}

// newRigBy is a rig on the embedded containerd whose WFM is reached another way.
func newRigBy(t *testing.T, way plant.Way) *rig {
	t.Helper()
	return newRigOn(t, plant.Options{Way: way})
}

func newRigOn(t *testing.T, o plant.Options) *rig {
	t.Helper()
	o.Application = programs.application
	r := &rig{t: t, Plant: plant.NewForTest(t, o)}
	expect.Check(t, r.Configure(usual))
	t.Cleanup(func() {
		if r.t = t; !t.Failed() {
			r.keepsImages = false
			r.leavesNothing()
		}
	})
	return r
}

// powerOff is a power cut: it also takes links and rules along.
func (r *rig) powerOff() {
	r.PowerOff()
	expect.Check(r.t, isolated.ForgetNetwork())
}

// pushComponent puts a Compose component into the registry.
func (r *rig) pushComponent(repository string, c ociimage.Component) {
	r.t.Helper()
	a := expect.Value(c.Build())(r.t)
	expect.Check(r.t, r.Push(r.t.Context(), repository, c.Version, a))
}

// publish makes a deployment part of the desired state.
func (r *rig) publish(d wfmsim.Deployment) wfmsim.Published {
	r.t.Helper()
	return expect.Value(r.Publish(d))(r.t)
}

// remove takes a deployment out of the desired state.
func (r *rig) remove(id string) uint64 {
	r.t.Helper()
	return expect.Value(r.Remove(id))(r.t)
}

// await waits until the WFM heard that a deployment has a state for a version.
func (r *rig) await(id string, state margo.State, version uint64) {
	r.t.Helper()
	expect.Value(r.Await(r.t.Context(), id, state, version))(r.t)
}

// install publishes and waits until it runs.
func (r *rig) install(d wfmsim.Deployment) wfmsim.Published {
	r.t.Helper()
	done := r.publish(d)
	r.await(d.ID, margo.Installed, done.Version)
	return done
}

// start starts the agent, with more environment if given.
func (r *rig) start(env ...string) {
	r.t.Helper()
	expect.Check(r.t, r.Start(env...))
}

// running starts the agent and waits until its socket answers.
func (r *rig) running(env ...string) {
	r.t.Helper()
	expect.Check(r.t, r.Run(r.t.Context(), env...))
	if r.before == nil {
		r.before = r.Look(r.t)
	}
}

// stop asks the agent to end, and waits.
func (r *rig) stop() {
	r.t.Helper()
	expect.Check(r.t, r.Stop())
}

// margolite runs the command line and returns what it printed.
func (r *rig) margolite(args ...string) (string, error) { return r.Margolite(r.t.Context(), args...) }

// status asks the agent for its status.
func (r *rig) status() *control.Status {
	r.t.Helper()
	return decode[*control.Status](r.t, expect.Value(r.margolite("status", "--json"))(r.t))
}

// services are what runs for a deployment, by name.
func (r *rig) services(id string) map[string]control.Service {
	r.t.Helper()
	return expect.Value(r.servicesOnce(id))(r.t)
}

// servicesOnce is services, with an error where one is there twice: while it is
// replaced it may be. Who waits asks often, thus on the socket and without a
// process of its own.
func (r *rig) servicesOnce(id string) (map[string]control.Service, error) {
	status, err := r.Control().Status(r.t.Context())
	if err != nil {
		return nil, err
	}
	all := map[string]control.Service{}
	for _, d := range status.Deployments {
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

// answers waits until the demo application answers, and gives the answer.
func (r *rig) answers(port int) plant.Answer {
	r.t.Helper()
	return expect.Value(plant.Visit(r.t.Context(), port, ""))(r.t)
}

// sync polls the WFM now.
func (r *rig) sync() error { return r.Control().Sync(r.t.Context()) }

// synced polls until that works: the agent may just have been held back.
func (r *rig) synced() {
	r.t.Helper()
	plant.Require(r.t, "the WFM can be polled", r.sync)
}

// quiet waits until everything was told to the WFM.
func (r *rig) quiet() {
	r.t.Helper()
	expect.Check(r.t, r.Quiet(r.t.Context()))
}

// untouched fails the test if services are not the very same as before.
func (r *rig) untouched(id string, before map[string]control.Service) {
	r.t.Helper()
	after := r.services(id)
	expect.Equal(r.t, len(after), len(before), "services run")
	for name, was := range before {
		now := after[name]
		if !sameTask(was, now) || was.Started.IsZero() || now.Started.IsZero() || was.Started.Sub(now.Started).Abs() > time.Second {
			r.t.Errorf("service %s was touched: it is %s with process %d since %v, was %s with %d since %v",
				name, now.Container, now.Pid, now.Started, was.Container, was.Pid, was.Started)
		}
	}
}

// logged gives the lines of the agent's log, from a length of it on, that hold
// all words.
func (r *rig) logged(from int, words ...string) []string {
	r.t.Helper()
	text := expect.Value(os.ReadFile(r.LogFile()))(r.t)
	var lines []string
	for line := range strings.Lines(string(text[min(from, len(text)):])) {
		if containsAll(line, words...) {
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	return lines
}

// logLength is where the agent's log ends now.
func (r *rig) logLength() int {
	r.t.Helper()
	info := expect.Value(os.Stat(r.LogFile()))(r.t)
	return int(info.Size())
}
