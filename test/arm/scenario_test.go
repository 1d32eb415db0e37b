//go:build armboot

package arm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/margolite/margolite/agent/control"
	"github.com/margolite/margolite/agent/margo"
	"github.com/margolite/margolite/test/demoapp/demoimage"
	"github.com/margolite/margolite/test/expect"
	"github.com/margolite/margolite/test/leftovers"
	"github.com/margolite/margolite/test/ociimage"
	"github.com/margolite/margolite/test/plant"
	"github.com/margolite/margolite/test/wfmsim"
)

// Where the packages are, and where the logs go.
const (
	packagesDir = "MARGOLITE_PACKAGES"
	logsDir     = "MARGOLITE_LOGS"
)

const deployment = "2f9a1c34-0000-4000-8000-0000000000a7"

// memoryOf prints what memory the machine has and has left, and the proportional share
// of the agent, where it runs.
const memoryOf = `grep -E '^(MemTotal|MemAvailable):' /proc/meminfo; for p in $(pidof margolite); do grep -E '^(Rss|Pss):' /proc/$p/smaps_rollup; done; true`

// TestTheBoards boots one machine after the other: each has all processors.
func TestTheBoards(t *testing.T) {
	for _, dir := range []string{packagesDir, logsDir} {
		expect.Require(t, os.Getenv(dir) != "", "%s is not set: make test-arm does", dir)
	}
	for _, b := range boards {
		t.Run(b.arch, func(t *testing.T) { testBoard(t, b) })
	}
}

func testBoard(t *testing.T, b board) {
	logs := os.Getenv(logsDir)
	expect.Check(t, os.MkdirAll(logs, 0o755))
	from := expect.Value(baseOf(t.Context(), b))(t)

	p := newPlant(t)
	m := newMachine(t, b, from, logs, map[string]string{"guest": guestProgram(t, b), "margolite.deb": packageFor(t, b)})
	defer func() { // also when the test ends with a failure
		if m.cmd != nil {
			if r, err := m.ask([]string{"journalctl", "--no-pager", "-o", "short-monotonic"}, ""); err == nil {
				expect.Check(t, os.WriteFile(filepath.Join(logs, b.arch+"-journal.log"), []byte(r.Output), 0o644))
			}
		}
		if t.Failed() {
			t.Logf("the end of the console:\n%s", m.tail())
		}
	}()
	since := time.Now()
	step := func(what string) { // says what it took, and what the machine has of memory
		t.Helper()
		t.Logf("%s: %.0f s; %s", what, time.Since(since).Seconds(), strings.Join(strings.Fields(m.run("sh", "-c", memoryOf)), " "))
		since = time.Now()
	}
	m.powerOn()
	m.up()
	step("boot")
	before := m.traces()
	m.run("dpkg", "-i", tools+"/margolite.deb")
	step("install the package")
	m.active()
	for line := range strings.Lines(m.try("margolite", "check").Output) { // there is no WFM yet
		expect.True(t, !strings.HasPrefix(line, "failed") || strings.Contains(line, "no WFM is configured"), "check: %s", line)
	}
	step("check")

	expect.Check(t, p.Enrol(host, func(name string, data []byte) { m.write("/etc/margolite/provision.d/"+name, data) }))
	known := expect.Value(p.WFM.WaitDevice(within(t), p.ClientID(), plant.Device))(t)
	reported := expect.Value(margo.ParseCapabilities(known.Body))(t)
	step("enrol, until the WFM knows what the device has")
	name, _, _ := strings.Cut(b.program, "/")
	if has := reported.Properties.Hosting; len(has.CPUs) != 1 || has.CPUs[0].Architecture != name || has.Memory <= 0 {
		t.Errorf("the device reported %+v", has)
	}

	publish := func(version, greeting string) {
		t.Helper()
		published := expect.Value(p.Publish(p.deployment(version, greeting)))(t)
		if err := p.WFM.WaitState(within(t), deployment, margo.Installed, published.Version); err != nil {
			t.Fatalf("%v\n%s", err, m.try("margolite", "status").Output)
		}
	}
	publish("1.0.0", "Hello")
	step("publish, until the WFM heard of installed")
	first := m.visit("Hello", "1.0.0")

	publish("1.1.0", "Servus")
	step("update, until the WFM heard of installed")
	second := m.visit("Servus", "1.1.0")
	expect.True(t, second.Visit > first.Visit, "after the update this is visit %d, before it was %d", second.Visit, first.Visit)

	running := m.services()
	m.run("systemctl", "kill", "--kill-whom=main", "--signal=KILL", "margolite.service")
	m.eventually("systemd does not start the agent again", func() error {
		if now := m.services(); !slices.Equal(now, running) {
			return fmt.Errorf("services are %v, were %v", now, running)
		}
		return nil
	})
	step("the agent is killed, until it is back with the same containers")

	// The power goes, and with it the network to the WFM.
	expect.Check(t, errors.Join(p.WFM.Close(), p.Registry.Close()))
	m.cutPower()
	m.powerOn()
	third := m.visit("Servus", "1.1.0")
	expect.True(t, third.Visit > second.Visit, "after the power cut this is visit %d, before it was %d", third.Visit, second.Visit)
	m.up()
	m.active()
	step("power returns without the WFM, until the application answers and systemd has started everything")

	expect.Check(t, errors.Join(p.Registry.Start(""), p.WFM.Start("")))
	version := expect.Value(p.Remove(deployment))(t)
	expect.Check(t, p.WFM.WaitState(within(t), deployment, margo.Removed, version))
	step("the WFM is back and removes it, until it heard of removed")
	expect.True(t, expect.ErrorOf(plant.Ask(t.Context(), m.page)) != nil, "the application answers although it was removed")
	m.run("dpkg", "--purge", "margolite")
	step("purge the package")
	for _, difference := range before.Differences(m.traces()) {
		t.Error(difference)
	}
}

// active asks systemd for the agent's service.
func (m *machine) active() {
	m.t.Helper()
	m.eventually("the service is not ready", func() error { // which it is once workloads are back
		if state := m.run("systemctl", "show", "margolite.service", "--property=ActiveState"); strings.TrimSpace(state) != "ActiveState=active" {
			return fmt.Errorf("it is %s", strings.TrimSpace(state))
		}
		return nil
	})
	state := m.run("systemctl", "show", "margolite.service", "--property=ActiveState,SubState,NRestarts,Result,UnitFileState")
	for _, want := range []string{"ActiveState=active", "SubState=running", "NRestarts=0", "Result=success", "UnitFileState=enabled"} {
		if !strings.Contains(state, want+"\n") {
			m.t.Errorf("the service is %s, want %s", strings.Join(strings.Fields(state), " "), want)
		}
	}
	if said := m.run("systemd-analyze", "verify", "--no-pager", "margolite.service"); said != "" {
		m.t.Errorf("systemd says of the unit: %s", said)
	}
}

// traces are what can be seen of the package's doings.
func (m *machine) traces() (s leftovers.Snapshot) {
	m.t.Helper()
	m.decode(&s, tools+"/guest", "traces")
	return s
}

// services are those that run, with their processes.
func (m *machine) services() []string {
	m.t.Helper()
	var s control.Status
	if r := m.try("margolite", "status", "--json"); r.Code != 0 || json.Unmarshal([]byte(r.Output), &s) != nil {
		return nil // the agent is away
	}
	var all []string
	for _, d := range s.Deployments {
		for _, service := range plant.Services(d) {
			all = append(all, fmt.Sprint(service.Name, " ", service.State, " ", service.Pid))
		}
	}
	slices.Sort(all)
	return all
}

// visit asks the application until it greets as it should.
func (m *machine) visit(greeting, version string) (a plant.Answer) {
	m.t.Helper()
	m.eventually("the application does not answer", func() (err error) {
		a, err = plant.Ask(m.t.Context(), m.page)
		if err == nil && (a.Greeting != greeting || a.Version != version) {
			err = fmt.Errorf("it says %s, version %s", a.Text, a.Version)
		}
		return err
	})
	return a
}

// wfm is a plant whose device is somewhere else.
type wfm struct{ *plant.Plant }

func newPlant(t *testing.T) *wfm {
	t.Helper()
	p := expect.Value(plant.New(t.Context(), plant.Options{Dir: t.TempDir()}))(t)
	t.Cleanup(func() { expect.OK(t, p.Close()) })
	for _, version := range []string{"1.0.0", "1.1.0"} {
		// Each machine has to find its own in it.
		var images []*ociimage.Artifact
		for _, b := range boards {
			image := expect.Value(demoimage.Image(t.Context(), demoimage.Options{Arch: b.program, Version: version}))(t)
			images = append(images, image)
		}
		index := expect.Value(ociimage.Index(images...))(t)
		expect.Check(t, p.Push(t.Context(), demoimage.Repository, version, index))
	}
	c := expect.Value(demoimage.Component(t.Context(), "1.0.0"))(t)
	component := expect.Value(c.Build())(t)
	expect.Check(t, p.Push(t.Context(), "apps/demo", "1.0.0", component))
	return &wfm{p}
}

// seen is an address of this machine as the device has it.
func (p *wfm) seen(address string) string { return strings.Replace(address, "127.0.0.1", host, 1) }

func (p *wfm) deployment(version, greeting string) wfmsim.Deployment {
	registry := p.seen(p.Registry.Address())
	return wfmsim.Deployment{
		ID: deployment, Name: "visitors", DeviceID: plant.Device, ApplicationID: "visitors",
		Components: []wfmsim.Component{{Name: "visitors", Repository: registry + "/apps/demo", Revision: "1.0.0"}},
		Parameters: map[string]any{"REGISTRY": registry, "PORT": applicationPort, "TAG": version, "GREETING": greeting},
	}
}

// within is the time that one thing may take.
func within(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

// guestProgram builds the program that is with the machine.
func guestProgram(t *testing.T, b board) string {
	t.Helper()
	program := expect.Value(ociimage.BuildProgram(t.Context(), "github.com/margolite/margolite/test/arm/guest", b.program))(t)
	file := filepath.Join(t.TempDir(), "guest")
	expect.Check(t, os.WriteFile(file, program, 0o755))
	return file
}

func packageFor(t *testing.T, b board) string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(os.Getenv(packagesDir), "margolite_*_"+b.arch+".deb"))
	if err != nil || len(found) != 1 {
		t.Fatalf("packages in %s=%s: %v %v, want one for %s", packagesDir, os.Getenv(packagesDir), found, err, b.arch)
	}
	return found[0]
}
