// Demo shows margolite at work on one machine: a development WFM publishes an
// application of two services, the agent fetches, verifies and runs it, a
// parameter changes, the WFM disappears, the agent restarts, the application is
// removed. Everything is real, and nothing is left behind. `make demo` runs it,
// `make demo STORY=approval` shows how a site decides about an update, and `make
// recording` writes demo.svg, the picture of the README.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/margolite/margolite/agent/margo"
	"github.com/margolite/margolite/test/demoapp/demoimage"
	"github.com/margolite/margolite/test/ociimage"
	"github.com/margolite/margolite/test/plant"
	"github.com/margolite/margolite/test/wfmsim"
	"github.com/margolite/margolite/test/wfmsim/admin"
)

const (
	deploymentID = "6c1f2a0e-5d1b-4f7e-9a53-2f1c8e0b7d11"
	device       = "demo-device"
	padding      = 24 << 20 // of the image, so that there is a download to look at
)

func main() {
	keep := flag.Bool("keep", false, "leave everything running, and print what to try")
	ended := flag.String("end", "", "end what -keep left running in `DIR`, and remove it")
	approval := flag.Bool("approval", false, "show how a site decides about an update instead")
	record := flag.String("record", "", "write what is shown as an animated picture to `FILE`, too")
	bin := flag.String("bin", "bin", "`DIR` with margolite, its shim and wfmsim")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	told := story{chapters: []chapter{prepare, install, parameter, offline, remove, summary}, record: *record}
	switch {
	case *approval:
		told = story{chapters: approvalStory(), policy: approvalRules}
	case *keep:
		told.chapters = []chapter{prepare, install, parameter, offline, printKept}
		told.keep = true
	}
	tell := func() error { return told.run(ctx, *bin) }
	if *ended != "" {
		tell = func() error { return endKept(ctx, *ended) }
	}
	if err := tell(); err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}

// onMachine makes a machine on the screen.
func onMachine(bin string) (*machine, error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("cannot start containers as this user\nfix: run it as root, for example with sudo")
	}
	bin, err := filepath.Abs(bin)
	if err != nil {
		return nil, err
	}
	_, err = unix.IoctlGetTermios(int(os.Stdout.Fd()), unix.TCGETS)
	terminal := err == nil
	return newMachine(bin, &screen{out: os.Stdout, terminal: terminal, colored: terminal && os.Getenv("NO_COLOR") == ""})
}

// story is what is shown, chapter by chapter.
type story struct {
	chapters []chapter
	policy   string // of the site, a section of the configuration
	keep     bool   // leave everything running
	record   string // file
}

type chapter func(context.Context, *machine) error

func (s story) run(ctx context.Context, bin string) (err error) {
	m, err := onMachine(bin)
	if err != nil {
		return err
	}
	m.policy = s.policy
	if s.record != "" {
		m.screen.record, m.screen.terminal, m.screen.out = &recording{}, true, io.Discard
		m.screen.command("make demo")
	}
	defer func() {
		if s.keep && err == nil {
			return
		}
		err = errors.Join(err, m.tearDown())
	}()
	for _, tell := range s.chapters {
		if err := tell(ctx, m); err != nil {
			m.showLogs()
			return err
		}
	}
	if s.record != "" {
		return m.screen.record.save(s.record)
	}
	return nil
}

// prepare starts the WFM with its registry and puts the application there.
func prepare(ctx context.Context, m *machine) error {
	m.screen.chapter("A fleet manager (WFM) and a registry start on this machine")
	if err := m.startWFM(ctx); err != nil {
		return err
	}
	info, err := m.admin.Info(ctx)
	if err != nil {
		return err
	}
	m.screen.say("WFM", "%s, TLS 1.3 with client certificates", info.WFM)
	if err := pushImage(ctx, info, "1.0.0"); err != nil {
		return err
	}
	component, err := demoimage.Component(ctx, "1.0.0")
	if err != nil {
		return err
	}
	pack, err := component.Build()
	if err != nil {
		return err
	}
	if err := (ociimage.Registry{URL: info.Registry}).Push(ctx, "apps/demo", "1.0.0", pack); err != nil {
		return err
	}
	m.screen.say("registry", "%s, with the image and the Compose package", info.RegistryHost)
	return nil
}

// pushImage puts a version of the application's image into the registry.
func pushImage(ctx context.Context, info admin.Info, version string) error {
	image, err := demoimage.Image(ctx, demoimage.Options{Version: version, Padding: padding})
	if err != nil {
		return err
	}
	return ociimage.Registry{URL: info.Registry}.Push(ctx, demoimage.Repository, version, image)
}

// publish makes the application part of the desired state, and gives the version of that.
func (m *machine) publish(ctx context.Context, greeting, version string) (uint64, error) {
	info, err := m.admin.Info(ctx)
	if err != nil {
		return 0, err
	}
	document, err := wfmsim.Deployment{
		ID: deploymentID, Name: "visitors", DeviceID: device, ApplicationID: "visitors",
		Components: []wfmsim.Component{{Name: "visitors", Repository: info.RegistryHost + "/apps/demo", Revision: "1.0.0"}},
		Parameters: map[string]any{"REGISTRY": info.RegistryHost, "PORT": m.port, "GREETING": greeting, "TAG": version},
	}.Document()
	if err != nil {
		return 0, err
	}
	p, err := m.admin.Publish(ctx, document)
	return p.Version, err
}

// greets publishes the application with a greeting and follows the device until the WFM
// heard that it is installed.
func (m *machine) greets(ctx context.Context, greeting string) (time.Duration, error) {
	return m.follow(ctx, margo.Installed, func() (uint64, error) { return m.publish(ctx, greeting, "1.0.0") })
}

func install(ctx context.Context, m *machine) error {
	m.screen.chapter("The agent starts, and the WFM publishes an application")
	if err := m.startAgent(ctx); err != nil {
		return err
	}
	took, err := m.greets(ctx, "Hello")
	if err != nil {
		return err
	}
	m.screen.figure("installed", took)
	return m.visit(ctx)
}

func parameter(ctx context.Context, m *machine) error {
	m.screen.chapter("A parameter changes: only the service that uses it is replaced")
	before, err := m.services(ctx)
	if err != nil {
		return err
	}
	took, err := m.greets(ctx, "Servus")
	if err != nil {
		return err
	}
	after, err := m.services(ctx)
	if err != nil {
		return err
	}
	for _, name := range []string{"counter", "web"} {
		verdict := "replaced"
		if before[name].Pid == after[name].Pid {
			verdict = fmt.Sprintf("untouched, still process %d", after[name].Pid)
		}
		m.screen.say(name, "%s", verdict)
	}
	if before["counter"].Pid != after["counter"].Pid || before["web"].Container == after["web"].Container {
		return errors.New("the wrong services were recreated")
	}
	m.screen.figure("changed", took)
	return m.visit(ctx)
}

func offline(ctx context.Context, m *machine) error {
	m.screen.chapter("The WFM disappears, and the agent restarts without it")
	before, err := m.services(ctx)
	if err != nil {
		return err
	}
	if err := m.stopWFM(); err != nil {
		return err
	}
	m.screen.say("stopped", "the WFM and the registry")
	if err := m.stopAgent(); err != nil {
		return err
	}
	m.screen.say("stopped", "the agent")
	if err := m.visit(ctx); err != nil {
		return err
	}
	if err := m.startAgent(ctx); err != nil {
		return err
	}
	if err := m.awaitPoll(ctx); err != nil {
		return err
	}
	after, err := m.services(ctx)
	if err != nil {
		return err
	}
	for name, was := range before {
		if after[name].Pid != was.Pid {
			return fmt.Errorf("service %s was restarted", name)
		}
	}
	for _, name := range []string{"counter", "web"} {
		m.screen.say(name, "untouched, still process %d", before[name].Pid)
	}
	if err := m.visit(ctx); err != nil {
		return err
	}
	if err := m.startWFM(ctx); err != nil {
		return err
	}
	m.screen.say("started", "the WFM and the registry")
	return nil
}

func remove(ctx context.Context, m *machine) error {
	m.screen.chapter("The WFM withdraws the application")
	took, err := m.follow(ctx, margo.Removed, func() (uint64, error) {
		r, err := m.admin.Remove(ctx, deploymentID)
		return r.Version, err
	})
	if err != nil {
		return err
	}
	m.screen.figure("removed", took)
	if _, err := plant.Ask(ctx, m.port); err == nil {
		return errors.New("the removed application still answers")
	}
	m.screen.say("gone", "containers, networks, firewall rules; port %d is closed", m.port)
	return nil
}
