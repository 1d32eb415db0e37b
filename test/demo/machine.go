package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/margolite/margolite/agent/control"
	"github.com/margolite/margolite/agent/margo"
	"github.com/margolite/margolite/test/plant"
	"github.com/margolite/margolite/test/wfmsim/admin"
)

// patience bounds every wait of the story.
const patience = 2 * time.Minute

// machine is what runs: the WFM, the agent, and where they keep their things.
type machine struct {
	bin, dir string
	screen   *screen
	port     int    // of the application
	policy   string // section of the configuration; empty: nothing is asked
	admin    admin.Client
	addrs    map[string]string // of the WFM, its registry and its admin side, once known

	wfm, agent *exec.Cmd
}

func newMachine(bin string, s *screen) (*machine, error) {
	dir, err := os.MkdirTemp("", "margolite-demo-")
	if err != nil {
		return nil, err
	}
	return &machine{bin: bin, dir: dir, screen: s, port: freePort(8090), addrs: map[string]string{
		"listen": "127.0.0.1:0", "admin": "127.0.0.1:0", "registry": "127.0.0.1:0",
	}}, nil
}

func (m *machine) config() string  { return filepath.Join(m.dir, "config.yaml") }
func (m *machine) control() string { return filepath.Join(m.dir, "run", "control.sock") }

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

// startWFM starts wfmsim, where it was if it ran before.
func (m *machine) startWFM(ctx context.Context) error {
	log, err := m.log("wfmsim.log")
	if err != nil {
		return err
	}
	defer log.Close()
	dir := filepath.Join(m.dir, "wfm")
	cmd := exec.Command(filepath.Join(m.bin, "wfmsim"), "serve", "--dir", dir, "--device", device,
		"--listen", m.addrs["listen"], "--admin", m.addrs["admin"], "--registry", m.addrs["registry"])
	cmd.Stderr = log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // an interrupt is for the story
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("cannot start wfmsim: %w", err)
	}
	m.wfm = cmd
	for lines := bufio.NewScanner(out); lines.Scan(); {
		key, value, _ := strings.Cut(lines.Text(), " ")
		value = strings.TrimSpace(value)
		_, host, _ := strings.Cut(value, "://")
		switch key {
		case "WFM":
			m.addrs["listen"] = host
		case "registry":
			m.addrs["registry"] = value
		case "admin":
			m.addrs["admin"] = host
			m.admin.URL = value
		case "config":
			return m.writeConfig(value)
		}
	}
	return errors.Join(errors.New("wfmsim did not start"), cmd.Wait())
}

// writeConfig completes wfmsim's configuration with directories of the story's own.
func (m *machine) writeConfig(file string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	text = fmt.Appendf(text, `state:
  dir: %s
  run: %s
runtime:
  settle: 1s
%s`, filepath.Join(m.dir, "state"), filepath.Join(m.dir, "run"), m.policy)
	text = []byte(strings.Replace(string(text), "interval: 5s", "interval: 1s", 1))
	return os.WriteFile(m.config(), text, 0o600)
}

func (m *machine) stopWFM() error {
	cmd := m.wfm
	m.wfm = nil
	return end(cmd)
}

// startAgent starts margolite and waits for its socket.
func (m *machine) startAgent(ctx context.Context) error {
	log, err := m.log("margolite.log")
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command(filepath.Join(m.bin, "margolite"), "run", "--config", m.config())
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("cannot start margolite: %w", err)
	}
	m.agent = cmd
	m.screen.command("margolite run --config %s", m.config())
	return until(ctx, func() error { return control.Dial(m.control()).Ping(ctx) })
}

func (m *machine) stopAgent() error {
	cmd := m.agent
	m.agent = nil
	return end(cmd)
}

// end asks a program to stop and waits for it.
func end(cmd *exec.Cmd) error {
	if cmd == nil {
		return nil
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	late := time.AfterFunc(20*time.Second, func() { cmd.Process.Kill() })
	defer late.Stop()
	err := cmd.Wait()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return nil // how it ends matters only to itself
	}
	return err
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
	err := control.Dial(m.control()).Events(ctx, func() {
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
	return until(ctx, func() error {
		s, err := control.Dial(m.control()).Status(ctx)
		if err == nil && s.WFM.LastPoll == nil {
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
	s, err := control.Dial(m.control()).Status(ctx)
	if err != nil {
		return nil, err
	}
	all := map[string]control.Service{}
	for _, d := range s.Deployments {
		for _, c := range d.Components {
			for _, service := range c.Services {
				all[service.Name] = service
			}
		}
	}
	return all, nil
}

// visit asks the application through its published port and shows the answer.
func (m *machine) visit(ctx context.Context) error {
	var said plant.Answer
	if err := until(ctx, func() (err error) {
		said, err = plant.Ask(ctx, m.port)
		return err
	}); err != nil {
		return err
	}
	m.screen.command("curl http://127.0.0.1:%d/", m.port)
	m.screen.output(said.Text)
	return nil
}

// until repeats what has no event to wait for.
func until(ctx context.Context, try func() error) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return plant.Until(ctx, try)
}

func (m *machine) log(name string) (*os.File, error) {
	return os.OpenFile(filepath.Join(m.dir, name), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
}

// showLogs prints the end of what was logged, when the story went wrong.
func (m *machine) showLogs() {
	for _, name := range []string{"margolite.log", "wfmsim.log"} {
		text, err := os.ReadFile(filepath.Join(m.dir, name))
		if err == nil {
			fmt.Fprintf(os.Stderr, "--- %s\n%s\n", name, text[max(0, len(text)-8<<10):])
		}
	}
}

// printKept prints what to try with what keeps running.
func printKept(_ context.Context, m *machine) error {
	note, err := json.Marshal(kept{m.agent.Process.Pid, m.wfm.Process.Pid, m.admin.URL})
	if err == nil {
		err = os.WriteFile(filepath.Join(m.dir, keptFile), note, 0o600)
	}
	if err != nil {
		return err
	}
	margolite := filepath.Join(m.bin, "margolite")
	wfmsim := filepath.Join(m.bin, "wfmsim")
	m.screen.chapter("The WFM, the agent and the application keep running")
	m.screen.output("Use the application:")
	m.screen.command("curl http://127.0.0.1:%d/", m.port)
	m.screen.output("Look at the device:")
	m.screen.command("%s status --config %s", margolite, m.config())
	m.screen.command("%s logs visitors web --follow --config %s", margolite, m.config())
	m.screen.output("See what the WFM was told, and withdraw the application:")
	m.screen.command("%s statuses --admin %s", wfmsim, m.admin.URL)
	m.screen.command("%s remove --admin %s %s", wfmsim, m.admin.URL, deploymentID)
	m.screen.output("Stop everything and remove it:")
	m.screen.command("make demo END=%s", m.dir)
	return nil
}

// keptFile is where a story that goes on is noted, below its directory.
const keptFile = "kept.json"

// kept is what it takes to end such a story.
type kept struct {
	Agent, WFM int // process ids
	Admin      string
}

// endKept removes the application and ends everything that was left running.
func endKept(ctx context.Context, dir string) error {
	note, err := os.ReadFile(filepath.Join(dir, keptFile))
	if err != nil {
		return fmt.Errorf("cannot find a demo that runs in %s: %w\nfix: use the directory that make demo KEEP=1 printed", dir, err)
	}
	var k kept
	if err := json.Unmarshal(note, &k); err != nil {
		return fmt.Errorf("cannot read the note of the demo in %s: %w", dir, err)
	}
	m := &machine{dir: dir, admin: admin.Client{URL: k.Admin}}
	_, _ = m.admin.Remove(ctx, deploymentID) // it may have been tried already
	if err := until(ctx, func() error { return m.empty(ctx) }); err != nil {
		return err
	}
	for _, pid := range []int{k.Agent, k.WFM} {
		_ = unix.Kill(pid, unix.SIGTERM)
		if err := until(ctx, func() error {
			if unix.Kill(pid, 0) == nil {
				return fmt.Errorf("process %d goes on", pid)
			}
			return nil
		}); err != nil {
			return err
		}
	}
	plant.UnmountBelow(m.dir)
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	fmt.Println("The demo in " + dir + " has ended: application, agent and WFM are stopped, and the directory is removed.")
	return nil
}

// empty is an error while the agent still has the application.
func (m *machine) empty(ctx context.Context) error {
	s, err := control.Dial(m.control()).Status(ctx)
	if err == nil && len(s.Deployments) > 0 {
		err = errors.New("the application is still there")
	}
	return err
}

// tearDown removes the application, if it is still there, and everything else.
func (m *machine) tearDown() error {
	var errs []error
	if m.agent == nil { // to remove the application properly
		if _, err := os.Stat(m.config()); err == nil {
			_ = m.startAgent(context.Background())
		}
	}
	if m.agent != nil {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if s, err := control.Dial(m.control()).Status(ctx); err == nil && len(s.Deployments) > 0 {
			if m.wfm == nil {
				errs = append(errs, m.startWFM(ctx))
			}
			_, err := m.admin.Remove(ctx, deploymentID)
			errs = append(errs, err, until(ctx, func() error { return errors.Join(m.approveRemoval(ctx), m.empty(ctx)) }))
		}
		errs = append(errs, m.stopAgent())
	}
	errs = append(errs, m.stopWFM())
	plant.UnmountBelow(m.dir)
	return errors.Join(append(errs, os.RemoveAll(m.dir))...)
}

// cause is the last part of an error.
func cause(text string) string { return strings.TrimSpace(text[strings.LastIndex(text, ":")+1:]) }
