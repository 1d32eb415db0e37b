package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/margolite/margolite/agent/control"
	"github.com/margolite/margolite/agent/margo"
	"github.com/margolite/margolite/test/plant"
)

// patience bounds every wait of the story.
const patience = 2 * time.Minute

// machine is what runs: a WFM with its registry, and the agent.
type machine struct {
	*plant.Plant // nil: nothing yet
	bin, dir     string
	screen       *screen
	port         int // of the application
	settings     plant.Settings
}

func newMachine(bin string, s *screen) (*machine, error) {
	dir, err := os.MkdirTemp("", "margolite-demo-")
	return &machine{bin: bin, dir: dir, screen: s, port: freePort(8090), settings: plant.Settings{Settle: time.Second}}, err
}

// freePort is wanted, or any port that is free when that is taken.
func freePort(wanted int) int {
	for _, address := range []string{fmt.Sprintf("127.0.0.1:%d", wanted), "127.0.0.1:0"} {
		if l, err := net.Listen("tcp", address); err == nil {
			l.Close()
			return l.Addr().(*net.TCPAddr).Port
		}
	}
	return wanted
}

// build starts the WFM and the registry.
func (m *machine) build(ctx context.Context) (err error) {
	m.Plant, err = plant.New(ctx, plant.Options{Dir: m.dir, Margolite: filepath.Join(m.bin, "margolite")})
	if err != nil {
		return err
	}
	return m.Configure(m.settings)
}

func (m *machine) startAgent(ctx context.Context) error {
	m.screen.command("margolite run --config %s", m.ConfigFile())
	return m.Run(ctx)
}

// follow makes a change, shows what the agent does about it, and returns when
// the WFM has heard of the state that it leads to.
func (m *machine) follow(ctx context.Context, want margo.State, change func() (uint64, error)) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	reached := errors.New("reached")
	var begun time.Time
	var version uint64
	var changeErr error
	err := m.Control().Events(ctx, func() {
		begun = time.Now()
		version, changeErr = change()
		if changeErr != nil {
			cancel()
		}
	}, func(e control.Event) error {
		m.screen.event(e)
		switch {
		case e.Kind != control.ReportDelivered || e.Version < version:
			return nil
		case e.State == string(want):
			return reached
		case e.State == string(margo.Failed):
			return errors.New("the deployment failed")
		}
		return nil
	})
	switch {
	case changeErr != nil:
		return 0, changeErr
	case errors.Is(err, reached):
		return time.Since(begun), nil
	case err == nil:
		err = errors.New("the agent went away")
	}
	return 0, fmt.Errorf("the WFM did not hear of %s: %w", want, err)
}

// awaitPoll waits until the agent has tried to poll.
func (m *machine) awaitPoll(ctx context.Context) error {
	return plant.Eventually(ctx, func() error {
		s, err := m.Control().Status(ctx)
		if err == nil && s.WFM.LastPoll.IsZero() {
			err = errors.New("the agent has not polled")
		}
		if err == nil {
			m.screen.say("offline", "the WFM does not answer: %s", cause(s.WFM.LastError))
		}
		return err
	})
}

// services are the services of the application.
func (m *machine) services(ctx context.Context) (map[string]control.Service, error) {
	s, err := m.Control().Status(ctx)
	if err != nil {
		return nil, err
	}
	if len(s.Deployments) != 1 {
		return nil, fmt.Errorf("%d applications are deployed, want one", len(s.Deployments))
	}
	return plant.Services(s.Deployments[0]), nil
}

// visit asks the application through its published port and shows the answer.
func (m *machine) visit(ctx context.Context) error {
	said, err := plant.Visit(ctx, m.port, "")
	if err != nil {
		return err
	}
	m.screen.command("curl http://127.0.0.1:%d/", m.port)
	m.screen.output(said.Text)
	return nil
}

// keepRunning prints what to try with what runs, until somebody has tried enough.
func keepRunning(ctx context.Context, m *machine) error {
	margolite := filepath.Join(m.bin, "margolite")
	m.screen.chapter("The WFM, the agent and the application keep running")
	m.screen.output("Use the application, in another terminal:")
	m.screen.command("curl http://127.0.0.1:%d/", m.port)
	m.screen.output("Look at the device:")
	m.screen.command("%s status --config %s", margolite, m.ConfigFile())
	m.screen.command("%s logs visitors web --follow --config %s", margolite, m.ConfigFile())
	m.screen.output("Press Ctrl-C here to stop everything and remove it.")
	<-ctx.Done()
	return nil
}

// tearDown removes the application, if it is still there, and everything else. When the
// story went wrong it shows what the agent logged.
func (m *machine) tearDown(wrong error) error {
	if m.Plant == nil {
		return os.RemoveAll(m.dir)
	}
	if wrong != nil {
		text, _ := os.ReadFile(m.LogFile())
		fmt.Fprintf(os.Stderr, "--- the agent\n%s\n", text[max(0, len(text)-8<<10):])
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	_ = m.WFM.Start("")     // an error says that it is there
	m.settings.Policy = nil // nobody is asked any more
	err := m.Configure(m.settings)
	if err == nil && m.Running() {
		err = m.Reload()
	} else if err == nil {
		err = m.Run(ctx)
	}
	if err == nil {
		err = errors.Join(m.Clear(ctx), m.Stop())
	}
	return errors.Join(err, m.Close(), os.RemoveAll(m.dir))
}

// cause is the last part of an error.
func cause(text string) string { return strings.TrimSpace(text[strings.LastIndex(text, ":")+1:]) }
