// Demo tells the whole story of margolite on one machine: a development WFM
// publishes an application of two services, the agent fetches, verifies and
// runs it, and then what an operator cares about happens: a parameter change,
// a WFM that goes away, an agent that restarts, a removal. Everything is real;
// nothing is left behind. `make demo` runs it, and `make demo STORY=approval` tells
// how a site decides about an update.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/margolite/margolite/agent/margo"
	"github.com/margolite/margolite/test/demoapp/demoimage"
	"github.com/margolite/margolite/test/ociimage"
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
	ended := flag.String("end", "", "end what -keep left running in `DIR`")
	approval := flag.Bool("approval", false, "tell how a site decides about an update instead")
	bin := flag.String("bin", "bin", "`DIR` with margolite, its shim and wfmsim")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	tell := func() error { return run(ctx, *bin, *keep) }
	if *approval {
		tell = func() error { return runApproval(ctx, *bin) }
	}
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
		return nil, errors.New("containers are real here: run it as root")
	}
	bin, err := filepath.Abs(bin)
	if err != nil {
		return nil, err
	}
	_, notTerminal := unix.IoctlGetTermios(int(os.Stdout.Fd()), unix.TCGETS)
	return newMachine(bin, &screen{out: os.Stdout, terminal: notTerminal == nil})
}

func runApproval(ctx context.Context, bin string) (err error) {
	m, err := onMachine(bin)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.tearDown()) }()
	m.policy = approvalRules
	for _, chapter := range []func(context.Context, *machine) error{prepare, approvalStory} {
		if err := chapter(ctx, m); err != nil {
			m.showLogs()
			return err
		}
	}
	return nil
}

func run(ctx context.Context, bin string, keep bool) (err error) {
	m, err := onMachine(bin)
	if err != nil {
		return err
	}
	defer func() {
		if keep && err == nil {
			return
		}
		err = errors.Join(err, m.tearDown())
	}()
	for _, chapter := range []func(context.Context, *machine) error{prepare, install, parameter, offline} {
		if err := chapter(ctx, m); err != nil {
			m.showLogs()
			return err
		}
	}
	if keep {
		return m.printKept()
	}
	if err := remove(ctx, m); err != nil {
		m.showLogs()
		return err
	}
	m.screen.summary()
	return nil
}

// prepare starts the WFM with its registry and puts the application there.
func prepare(ctx context.Context, m *machine) error {
	m.screen.chapter("A WFM and a registry")
	if err := m.startWFM(ctx); err != nil {
		return err
	}
	info, err := m.admin.Info(ctx)
	if err != nil {
		return err
	}
	m.screen.say("WFM       %s (TLS 1.3, client certificates)", info.WFM)
	m.screen.say("registry  %s", info.RegistryHost)
	image, err := demoimage.Image(ctx, demoimage.Options{Version: "1.0.0", Padding: padding})
	if err != nil {
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
	to := ociimage.Registry{URL: info.Registry}
	if err := to.Push(ctx, demoimage.Repository, "1.0.0", image); err != nil {
		return err
	}
	if err := to.Push(ctx, "apps/demo", "1.0.0", pack); err != nil {
		return err
	}
	m.screen.say("pushed    image %s:1.0.0 and Compose component apps/demo:1.0.0", demoimage.Repository)
	return nil
}

// deployment is the application as the WFM publishes it.
func (m *machine) deployment(info admin.Info, greeting, version string) ([]byte, error) {
	return wfmsim.Deployment{
		ID: deploymentID, Name: "visitors", DeviceID: device, ApplicationID: "visitors",
		Components: []wfmsim.Component{{Name: "visitors", Repository: info.RegistryHost + "/apps/demo", Revision: "1.0.0"}},
		Parameters: map[string]any{"REGISTRY": info.RegistryHost, "PORT": m.port, "GREETING": greeting, "TAG": version},
	}.Document()
}

// publish makes the application part of the desired state and follows the
// device until the WFM heard that it is installed.
func (m *machine) publish(ctx context.Context, greeting string) (time.Duration, error) {
	info, err := m.admin.Info(ctx)
	if err != nil {
		return 0, err
	}
	document, err := m.deployment(info, greeting, "1.0.0")
	if err != nil {
		return 0, err
	}
	return m.follow(ctx, margo.Installed, func() (uint64, error) {
		p, err := m.admin.Publish(ctx, document)
		return p.Version, err
	})
}

func install(ctx context.Context, m *machine) error {
	m.screen.chapter("The agent starts, the WFM publishes an application of two services")
	if err := m.startAgent(ctx); err != nil {
		return err
	}
	took, err := m.publish(ctx, "Hello")
	if err != nil {
		return err
	}
	m.screen.figure("published to installed", took)
	return m.visit(ctx)
}

func parameter(ctx context.Context, m *machine) error {
	m.screen.chapter("A parameter changes: only the service that uses it is recreated")
	before, err := m.services(ctx)
	if err != nil {
		return err
	}
	took, err := m.publish(ctx, "Servus")
	if err != nil {
		return err
	}
	after, err := m.services(ctx)
	if err != nil {
		return err
	}
	for _, name := range []string{"counter", "web"} {
		verdict := "recreated"
		if before[name].Pid == after[name].Pid {
			verdict = "untouched, process " + fmt.Sprint(after[name].Pid)
		}
		m.screen.say("%-9s %s", name, verdict)
	}
	if before["counter"].Pid != after["counter"].Pid || before["web"].Container == after["web"].Container {
		return errors.New("the wrong services were recreated")
	}
	m.screen.figure("parameter change", took)
	return m.visit(ctx)
}

func offline(ctx context.Context, m *machine) error {
	m.screen.chapter("The WFM goes away, and the agent is restarted without it")
	before, err := m.services(ctx)
	if err != nil {
		return err
	}
	if err := m.stopWFM(); err != nil {
		return err
	}
	m.screen.say("WFM and registry are gone")
	if err := m.stopAgent(); err != nil {
		return err
	}
	m.screen.say("the agent is stopped")
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
		m.screen.say("%-9s untouched, process %d", name, was.Pid)
	}
	if err := m.visit(ctx); err != nil {
		return err
	}
	if err := m.startWFM(ctx); err != nil {
		return err
	}
	m.screen.say("the WFM is back")
	return nil
}

func remove(ctx context.Context, m *machine) error {
	m.screen.chapter("The WFM takes the application back")
	took, err := m.follow(ctx, margo.Removed, func() (uint64, error) {
		r, err := m.admin.Remove(ctx, deploymentID)
		return r.Version, err
	})
	if err != nil {
		return err
	}
	m.screen.figure("removal", took)
	if _, err := m.ask(ctx); err == nil {
		return errors.New("the removed application still answers")
	}
	m.screen.say("port %d is closed; containers, networks and rules are gone", m.port)
	return nil
}
