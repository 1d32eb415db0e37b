package plant

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// Dir is where everything is kept.
func (p *Plant) Dir() string { return p.options.Dir }

// StateDir is what the device keeps: the agent's state, and that of an external
// containerd beside it.
func (p *Plant) StateDir() string {
	return cmp.Or(p.options.State, filepath.Join(p.options.Dir, "state"))
}

// RunDir is what the device loses with its power.
func (p *Plant) RunDir() string { return filepath.Join(p.options.Dir, "run") }

// Socket is where the agent is asked and told.
func (p *Plant) Socket() string { return filepath.Join(p.RunDir(), "control.sock") }

// LockDir is where workloads have their lock files.
func (p *Plant) LockDir() string { return filepath.Join(p.RunDir(), "locks") }

// ConfigFile is the agent's configuration.
func (p *Plant) ConfigFile() string { return filepath.Join(p.options.Dir, "config.yaml") }

// LogFile is what the agent logs, over all its runs.
func (p *Plant) LogFile() string { return filepath.Join(p.options.Dir, "agent.log") }

// Containers is the socket of the containerd that has the containers. It answers
// while that runs: the embedded one while the agent does.
func (p *Plant) Containers() string {
	if p.options.Containerd != "" {
		return p.socket()
	}
	return filepath.Join(p.RunDir(), "containerd", "containerd.sock")
}

func (p *Plant) socket() string { return filepath.Join(p.options.Dir, "containerd.sock") }

// Configure writes the configuration for the next start of the agent.
func (p *Plant) Configure(s Settings) error {
	containerd := "embedded"
	if p.options.Containerd != "" {
		containerd = p.socket()
	}
	way := maps.Clone(p.settings)
	if p.Repository == nil {
		way["url"] = p.WFM.URL() // it may have moved
	}
	maps.Copy(way, s.WFM)
	maps.DeleteFunc(way, func(_, value string) bool { return value == "" })
	registries := map[string]string{}
	for _, address := range append(s.Registries, p.Registry.Address()) {
		registries[address] = "{plainHTTP: true}"
	}
	runtime := map[string]string{"containerd": containerd, "settle": s.Settle.String()}
	maps.Copy(runtime, s.Runtime)
	next := p.ConfigFile() + ".new" // commands may just be reading it
	err := os.WriteFile(next, fmt.Appendf(nil, `device: {id: %s, labels: {%s}}
wfm: {%s}
poll: {interval: %s}
state: {dir: %s, run: %s}
runtime: {%s}
registries: {%s}
policy: {%s}
log: {level: %s}
%s`, Device, members(s.Labels), members(way), cmp.Or(s.Poll, time.Second),
		p.StateDir(), p.RunDir(), members(runtime), members(registries), members(s.Policy), cmp.Or(s.LogLevel, "info"), s.More), 0o600)
	return errors.Join(err, os.Rename(next, p.ConfigFile()))
}

// members are those of a mapping in YAML.
func members(m map[string]string) string {
	var all []string
	for _, key := range slices.Sorted(maps.Keys(m)) {
		all = append(all, fmt.Sprintf("%q: %s", key, m[key]))
	}
	return strings.Join(all, ", ")
}

// Enrol gives the provisioning files of a device that sees this machine as host to put, by
// name. That of the last begins to count when all of them are there.
func (p *Plant) Enrol(host string, put func(name string, data []byte)) error {
	for name, file := range map[string]string{"device.pem": p.Identity.Certificate, "device.key": p.Identity.Key, "bundle.json": p.Identity.TrustBundle} {
		data, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		put(name, data)
	}
	text := fmt.Sprintf(`device: {id: %s}
wfm: {url: %q, certificate: device.pem, key: device.key, trustBundle: bundle.json}
poll: {interval: 1s}
registries: {%q: {plainHTTP: true}}
`, Device, p.WFM.URL(), p.Registry.Address())
	put("plant.yaml", []byte(strings.ReplaceAll(text, "127.0.0.1", host)))
	return nil
}

// Reconfigure is Configure for an agent that runs: it is told to take over what
// it can.
func (p *Plant) Reconfigure(s Settings) error {
	if err := p.Configure(s); err != nil {
		return err
	}
	return p.Reload()
}

// Reload tells the agent to read its configuration again, whatever is in it.
func (p *Plant) Reload() error {
	if err := p.agent.cmd.Process.Signal(syscall.SIGHUP); err != nil {
		return fmt.Errorf("cannot tell the agent of another configuration: %w", err)
	}
	return nil
}

// process is one run of a program.
type process struct {
	cmd  *exec.Cmd
	done chan struct{} // closed when it ended
}

// Start starts the agent, with more environment if given, and before it the
// containerd that it needs.
func (p *Plant) Start(env ...string) error {
	if p.agent != nil {
		return errors.New("cannot start the agent: it runs already")
	}
	if err := p.StartContainerd(); err != nil {
		return err
	}
	log, err := appendTo(p.LogFile())
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command(p.options.Margolite, "run", "--config", p.ConfigFile())
	cmd.Env = append(os.Environ(), env...)
	cmd.Stderr = log
	// It stops when it is told to and not by a terminal's interrupt.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	launch := cmd.Start
	if p.options.Launch != nil {
		launch = func() error { return p.options.Launch(cmd) }
	}
	if err := launch(); err != nil {
		return fmt.Errorf("cannot start the agent: %w", err)
	}
	a := &process{cmd: cmd, done: make(chan struct{})}
	go func() {
		_ = cmd.Wait() // how it ends matters only to itself
		close(a.done)
	}()
	p.agent = a
	return nil
}

// Run starts the agent and waits until its socket answers.
func (p *Plant) Run(ctx context.Context, env ...string) error {
	if err := p.Start(env...); err != nil {
		return err
	}
	// Its socket takes connections before the agent is all there.
	answers := func() error {
		_, err := p.Control().Status(ctx)
		return err
	}
	if err := Eventually(ctx, answers); err != nil {
		return fmt.Errorf("the agent did not start: %w", err)
	}
	return nil
}

// Command is the command line of the device. Nobody waits for long for what it leaves behind.
func (p *Plant) Command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, p.program, append([]string{"--config", p.ConfigFile()}, args...)...)
	cmd.WaitDelay = 10 * time.Second
	return cmd
}

// Margolite runs the command line and returns what it printed. It may be called from any
// goroutine.
func (p *Plant) Margolite(ctx context.Context, args ...string) (string, error) {
	var stdout, stderr bytes.Buffer
	cmd := p.Command(ctx, args...)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	if err != nil {
		err = fmt.Errorf("margolite %s: %w: %s", strings.Join(args, " "), err, stderr.String())
	}
	return stdout.String(), err
}

// Upgrade is the program of the agent from its next start on.
func (p *Plant) Upgrade(program string) { p.options.Margolite = program }

// Running says whether the agent was started and has not been stopped.
func (p *Plant) Running() bool { return p.agent != nil }

// Agent is the process id of the agent, which has to run.
func (p *Plant) Agent() int { return p.agent.cmd.Process.Pid }

// Stop asks the agent to end, and waits.
func (p *Plant) Stop() error {
	if err := p.agent.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return fmt.Errorf("cannot stop the agent: %w", err)
	}
	return p.Ended()
}

// Done is closed when the agent, which has to have been started, ended.
func (p *Plant) Done() <-chan struct{} { return p.agent.done }

// Ended waits for the agent to end by itself.
func (p *Plant) Ended() error {
	select {
	case <-p.agent.done:
		p.agent = nil
		return nil
	case <-time.After(patience):
		return errors.New("the agent goes on and on")
	}
}

// Kill ends the agent, if it runs, as kill -9 does.
func (p *Plant) Kill() {
	if p.agent == nil {
		return
	}
	_ = p.agent.cmd.Process.Kill() // it may have ended by itself
	<-p.agent.done
	p.agent = nil
}

// StartContainerd starts the external containerd, if there is one that does not run, with
// everything of its own. It finds a shim beside its program first.
func (p *Plant) StartContainerd() error {
	if p.options.Containerd == "" || p.containerd != nil {
		return nil
	}
	file := filepath.Join(p.options.Dir, "containerd.toml")
	if err := os.WriteFile(file, fmt.Appendf(nil, `version = 2
root = %q
state = %q
disabled_plugins = ["io.containerd.grpc.v1.cri"]
[grpc]
  address = %q
`, filepath.Join(p.StateDir(), "containerd"), filepath.Join(p.RunDir(), "containerd"), p.socket()), 0o600); err != nil {
		return err
	}
	log, err := appendTo(filepath.Join(p.options.Dir, "containerd.log"))
	if err != nil {
		return err
	}
	defer log.Close()
	// As the system starts it, whatever umask a test has for the agent.
	cmd := exec.Command("sh", "-c", `umask 022; exec "$0" -c "$1"`, p.options.Containerd, file)
	cmd.Env = append(os.Environ(), "PATH="+filepath.Dir(p.options.Containerd)+":"+os.Getenv("PATH"))
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("cannot start containerd: %w", err)
	}
	p.containerd = cmd
	return nil
}

// KillContainerd ends the external containerd, if it runs, as kill -9 does. What
// it started goes on.
func (p *Plant) KillContainerd() {
	if p.containerd == nil {
		return
	}
	_ = p.containerd.Process.Kill()
	_ = p.containerd.Wait()
	p.containerd = nil
}

// Containerd is the process id of the external containerd, or 0.
func (p *Plant) Containerd() int {
	if p.containerd == nil {
		return 0
	}
	return p.containerd.Process.Pid
}

// PowerOff ends every process of the device but the agent and forgets what only
// memory holds, as a power cut does: containers and shims, mounts, and the run
// directory. Links and rules belong to whoever made the network namespace.
func (p *Plant) PowerOff() {
	p.KillContainerd()
	for range 3 { // who is killed may just have forked
		for _, pid := range p.Shims() {
			KillTree(pid)
		}
	}
	UnmountBelow(p.options.Dir)
	_ = os.RemoveAll(p.RunDir())
}

func appendTo(file string) (*os.File, error) {
	return os.OpenFile(file, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
}
