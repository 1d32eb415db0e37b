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
	"github.com/margolite/margolite/test/plant"
)

const (
	deploymentID = "6c1f2a0e-5d1b-4f7e-9a53-2f1c8e0b7d11"
	padding      = 24 << 20 // of the image, so that there is a download to look at
)

func main() {
	keep := flag.Bool("keep", false, "keep everything running until an interrupt, and print what to try")
	approval := flag.Bool("approval", false, "show how a site decides about an update instead")
	record := flag.String("record", "", "write what is shown as an animated picture to `FILE`, too")
	bin := flag.String("bin", "bin", "`DIR` with margolite, its shim and wfmsim")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	told := story{chapters: []chapter{prepare, install, parameter, offline, remove, summary}, record: *record}
	switch {
	case *approval:
		told = story{chapters: approvalStory(), policy: approvalRules()}
	case *keep:
		told.chapters = []chapter{prepare, install, parameter, offline, keepRunning}
	}
	if err := told.run(ctx, *bin); err != nil {
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
	policy   map[string]string // of the site
	record   string            // file
}

type chapter func(context.Context, *machine) error

func (s story) run(ctx context.Context, bin string) (err error) {
	m, err := onMachine(bin)
	if err != nil {
		return err
	}
	m.settings.Policy = s.policy
	if s.record != "" {
		m.screen.record, m.screen.terminal, m.screen.out = &recording{}, true, io.Discard
		m.screen.command("make demo")
	}
	defer func() { err = errors.Join(err, m.tearDown(err)) }()
	for _, tell := range s.chapters {
		if err := tell(ctx, m); err != nil {
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
	if err := m.build(ctx); err != nil {
		return err
	}
	m.screen.say("WFM", "%s, TLS 1.3 with client certificates", m.WFM.URL())
	if err := m.pushImage(ctx, "1.0.0"); err != nil {
		return err
	}
	component, err := demoimage.Component(ctx, plant.ComponentVersion)
	if err != nil {
		return err
	}
	pack, err := component.Build()
	if err != nil {
		return err
	}
	if err := m.Push(ctx, plant.Component, plant.ComponentVersion, pack); err != nil {
		return err
	}
	m.screen.say("registry", "%s, with the image and the Compose package", m.Registry.Address())
	return nil
}

// pushImage puts a version of the application's image into the registry.
func (m *machine) pushImage(ctx context.Context, version string) error {
	image, err := demoimage.Image(ctx, demoimage.Options{Version: version, Padding: padding})
	if err != nil {
		return err
	}
	return m.Push(ctx, demoimage.Repository, version, image)
}

// publish makes the application part of the desired state, and gives the version of that.
func (m *machine) publish(greeting, version string) (uint64, error) {
	d := m.Deployment(deploymentID, map[string]any{"PORT": m.port, "GREETING": greeting, "TAG": version})
	d.Name, d.Components[0].Name = "visitors", "visitors"
	done, err := m.Publish(d)
	return done.Version, err
}

// greets publishes the application with a greeting and follows the device until the WFM
// heard that it is installed.
func (m *machine) greets(ctx context.Context, greeting string) (time.Duration, error) {
	return m.follow(ctx, margo.Installed, func() (uint64, error) { return m.publish(greeting, "1.0.0") })
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
	if err := errors.Join(m.WFM.Close(), m.Registry.Close()); err != nil {
		return err
	}
	m.screen.say("stopped", "the WFM and the registry")
	if err := m.Stop(); err != nil {
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
	if err := errors.Join(m.WFM.Start(""), m.Registry.Start("")); err != nil {
		return err
	}
	m.screen.say("started", "the WFM and the registry")
	return nil
}

func remove(ctx context.Context, m *machine) error {
	m.screen.chapter("The WFM withdraws the application")
	took, err := m.follow(ctx, margo.Removed, func() (uint64, error) { return m.Remove(deploymentID) })
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
