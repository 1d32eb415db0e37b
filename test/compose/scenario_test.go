package compose

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v4"

	"github.com/margolite/margolite/runtime"
	"github.com/margolite/margolite/runtime/container"
	"github.com/margolite/margolite/test/expect"
	"github.com/margolite/margolite/test/leftovers"
)

// step is one thing that a scenario does or looks at; just one of the first
// group of keys is given. What is not given is not asked for.
type step struct {
	// Exec runs a command in a container, as service or service-number.
	Exec string `yaml:"exec"`
	// Host runs a command on the device. It may always take a while: most ask a
	// published port, of a service that need not listen yet.
	Host string `yaml:"host"`
	// State looks at a container, as service or service-number.
	State string `yaml:"state"`
	// Logs looks at what a service printed.
	Logs string `yaml:"logs"`
	// Apply changes the file, key by key, and applies it again; null removes a key.
	Apply map[string]any `yaml:"apply"`
	// Same and Recreated compare a container with that before the last Apply.
	Same      string `yaml:"same"`
	Recreated string `yaml:"recreated"`
	// Gone says that a service has no container any more.
	Gone string `yaml:"gone"`
	// Refused and Warns look for a text in what Load or Apply says of the file.
	Refused string `yaml:"refused"`
	Warns   string `yaml:"warns"`
	// Reboot takes everything away that a reboot takes away, and starts again.
	Reboot bool `yaml:"reboot"`

	Run        string  `yaml:"run"`        // with Exec, a shell command
	Prints     *string `yaml:"prints"`     // just this, but for white space around it
	Matches    string  `yaml:"matches"`    // a regular expression
	Code       int     `yaml:"code"`       // with Exec and Host; -1: any but 0
	Is         string  `yaml:"is"`         // with State: running, done, stopped, created
	Health     string  `yaml:"health"`     // with State: healthy, unhealthy, starting
	ExitCode   *int    `yaml:"exitCode"`   // with State
	Eventually bool    `yaml:"eventually"` // it may take a while
	Fails      string  `yaml:"fails"`      // with Apply, a regular expression

	Settle time.Duration `yaml:"settle"` // with Apply: for how long everything must run
}

// patience is how long something may take that happens eventually.
const patience = 2 * time.Minute

// scenario is a Compose file with its steps.
type scenario struct {
	file          map[string]any
	before, after []string // commands on the device, as the owner would give them
	steps         []step
	files         string // directory of files that the Compose file refers to, if any
}

// readScenario reads testdata/attributes/NAME.yaml, or compose.yaml in the
// directory of that name where there are files beside it.
func readScenario(path string) (*scenario, error) {
	s := &scenario{}
	if info, err := os.Stat(path); err != nil {
		return nil, err
	} else if info.IsDir() {
		s.files, path = path, filepath.Join(path, "compose.yaml")
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var keys struct {
		Before []string `yaml:"x-before"`
		Steps  []step   `yaml:"x-test"`
		After  []string `yaml:"x-after"`
	}
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	if err := decoder.Decode(&s.file); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	for _, key := range []string{"x-before", "x-test", "x-after"} {
		delete(s.file, key)
	}
	if err := yaml.Unmarshal(text, &keys); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	s.before, s.after = keys.Before, keys.After
	if s.steps = keys.Steps; len(s.steps) == 0 {
		return nil, fmt.Errorf("%s: x-test has no steps", path)
	}
	return s, nil
}

// merge changes a by b, key by key.
func merge(a, b map[string]any) map[string]any {
	a = maps.Clone(a)
	if a == nil {
		a = map[string]any{}
	}
	for key, value := range b {
		below, isMap := value.(map[string]any)
		now, wasMap := a[key].(map[string]any)
		switch {
		case value == nil:
			delete(a, key)
		case isMap && (wasMap || a[key] == nil):
			a[key] = merge(now, below)
		default:
			a[key] = value
		}
	}
	return a
}

// play is a scenario under way on a device.
type play struct {
	*testing.T
	d       *device
	s       *scenario
	project string
	dir     string // of the Compose file
	before  map[string]string
}

// playFile plays the scenario of a file and removes its project, after which the
// device has to be as before.
func (d *device) playFile(t *testing.T, file, project string, before leftovers.Snapshot) {
	d.series.Turn(t)
	s := expect.Value(readScenario(file))(t)
	defer d.remove(t, project, before)
	d.play(t, s, project)
}

func (d *device) play(t *testing.T, s *scenario, project string) {
	p := &play{T: t, d: d, s: s, project: project, dir: t.TempDir()}
	if s.files != "" {
		check(t, os.CopyFS(p.dir, os.DirFS(s.files)))
	}
	p.commands(s.before)
	defer p.commands(s.after)
	steps := s.steps
	if first := steps[0]; first.Refused != "" {
		_, err := p.apply(0)
		p.expectText(first.Refused, textOf(err))
		steps = steps[1:]
		expect.Require(t, len(steps) == 0, "nothing can follow a file that is refused")
		return
	}
	warnings := expect.Value(p.apply(0))(t)
	for i, step := range steps {
		p.step(i+1, step, warnings)
		if t.Failed() {
			return
		}
	}
}

func textOf(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// apply brings the file of now onto the device.
func (p *play) apply(settle time.Duration) (warnings string, err error) {
	text := expect.Value(yaml.Marshal(p.s.file))(p)
	file := filepath.Join(p.dir, "compose.yaml")
	check(p, os.WriteFile(file, text, 0o600))
	p.before = p.ids()
	loaded, err := p.d.load(p.Context(), runtime.Source{Project: p.project, File: file, Environment: p.d.environment})
	if err != nil {
		return "", err
	}
	warnings = strings.Join(loaded.Warnings(), "\n")
	return warnings, p.d.engine.Apply(p.Context(), loaded, runtime.ApplyOptions{Settle: settle})
}

// ids are the ids of the containers, by service and number.
func (p *play) ids() map[string]string {
	ids := make(map[string]string)
	for _, c := range p.containers() {
		ids[fmt.Sprintf("%s-%d", c.Service, c.Number)] = c.ID
	}
	return ids
}

func (p *play) containers() []runtime.ObservedContainer {
	projects := expect.Value(p.d.engine.Observe(p.Context()))(p)
	for _, o := range projects {
		if o.Name == p.project {
			return o.Containers
		}
	}
	return nil
}

// replica reads service or service-number.
func replica(name string) (service string, number int) {
	if i := strings.LastIndexByte(name, '-'); i > 0 {
		if n, err := strconv.Atoi(name[i+1:]); err == nil {
			return name[:i], n
		}
	}
	return name, 1
}

func (p *play) container(name string) *runtime.ObservedContainer {
	service, number := replica(name)
	for _, c := range p.containers() {
		if c.Service == service && c.Number == number {
			return &c
		}
	}
	return nil
}

func (p *play) step(n int, s step, warnings string) {
	deadline := time.Now().Add(patience)
	for {
		problem := p.try(s, warnings)
		if problem == nil {
			return
		}
		waits := s.Eventually || s.Host != ""
		if !waits || time.Now().After(deadline) {
			p.Errorf("step %d: %v", n, problem)
			p.Logf("printed:\n%s", last(p.logs("")))
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// try does a step and returns what is wrong.
func (p *play) try(s step, warnings string) error {
	switch {
	case s.Exec != "":
		out, code, err := p.exec(s.Exec, s.Run)
		if err != nil {
			return err
		}
		return s.check("in "+s.Exec, out, code)
	case s.Host != "":
		out, code, err := p.host(s.Host)
		if err != nil {
			return err
		}
		return s.check("on the device", out, code)
	case s.State != "":
		return p.state(s)
	case s.Logs != "":
		return s.check("printed by "+s.Logs, p.logs(s.Logs), 0)
	case s.Apply != nil:
		p.s.file = merge(p.s.file, s.Apply)
		_, err := p.apply(s.Settle)
		if s.Fails == "" {
			return err
		}
		return matches(s.Fails, textOf(err))
	case s.Same != "" || s.Recreated != "":
		return p.compare(s)
	case s.Gone != "":
		if c := p.container(s.Gone); c != nil {
			return fmt.Errorf("%s has container %s, %s", s.Gone, c.ID, c.State)
		}
		return nil
	case s.Warns != "":
		return matches(s.Warns, warnings)
	case s.Reboot:
		return p.d.reboot(p.T)
	}
	return errors.New("it says nothing to do")
}

func (p *play) compare(s step) error {
	service, number := replica(s.Same + s.Recreated)
	name := fmt.Sprintf("%s-%d", service, number)
	before, now := p.before[name], p.ids()[name]
	switch {
	case before == "" || now == "":
		return fmt.Errorf("%s was %q and is %q", name, before, now)
	case (before == now) != (s.Same != ""):
		return fmt.Errorf("%s was %s and is %s", name, before, now)
	}
	return nil
}

func (p *play) state(s step) error {
	c := p.container(s.State)
	if c == nil {
		return fmt.Errorf("%s has no container", s.State)
	}
	switch {
	case s.Is != "" && string(c.State) != s.Is:
		return fmt.Errorf("%s is %s, not %s", s.State, c.State, s.Is)
	case s.ExitCode != nil && c.ExitCode != *s.ExitCode:
		return fmt.Errorf("%s ended with %d, not %d", s.State, c.ExitCode, *s.ExitCode)
	case s.Health != "" && string(c.Health.State) != s.Health:
		return fmt.Errorf("%s is %q, not %s", s.State, c.Health.State, s.Health)
	}
	return nil
}

func (s step) check(where, out string, code int) error {
	out = strings.TrimSpace(out)
	switch {
	case code != s.Code && (s.Code >= 0 || code == 0):
		return fmt.Errorf("%s: %q ended with %d, not %d:\n%s", where, s.Run+s.Host, code, s.Code, out)
	case s.Prints != nil && out != strings.TrimSpace(*s.Prints):
		return fmt.Errorf("%s: %q printed %q, not %q", where, s.Run+s.Host, out, *s.Prints)
	case s.Matches != "":
		return matches(s.Matches, out)
	}
	return nil
}

func matches(pattern, text string) error {
	expression, err := regexp.Compile("(?s)" + pattern)
	if err != nil {
		return err
	}
	if !expression.MatchString(text) {
		return fmt.Errorf("%q does not match %s", last(text), pattern)
	}
	return nil
}

// last is the end of a text that may be long.
func last(text string) string { return text[max(0, len(text)-2000):] }

func (p *play) expectText(pattern, text string) {
	expect.OK(p, matches(pattern, text))
}

func (p *play) exec(name, command string) (out string, code int, err error) {
	c := p.container(name)
	if c == nil {
		return "", 0, fmt.Errorf("there is no container %s", name)
	}
	var printed bytes.Buffer
	code, err = p.d.engine.Exec(p.Context(), *c, container.Exec{
		Args: []string{"/bin/sh", "-c", "exec 2>&1\n" + command}, Stdout: &printed, // in the order in which it came
	})
	return printed.String(), code, err
}

// commands must all succeed.
func (p *play) commands(list []string) {
	for _, command := range list {
		if out, code, err := p.host(command); err != nil || code != 0 {
			p.Errorf("%s: %d, %v\n%s", command, code, err, out)
		}
	}
}

// logs is what a service printed so far; "": all of them, with their names.
func (p *play) logs(service string) string {
	request := runtime.LogsRequest{Project: p.project}
	if service != "" {
		request.Services = []string{service}
	}
	var out strings.Builder
	err := p.d.engine.LogLines(p.Context(), request, func(l runtime.LogLine) error {
		if service == "" {
			fmt.Fprintf(&out, "%s-%d | ", l.Replica.Service, l.Replica.Number)
		}
		out.Write(l.Text)
		return nil
	})
	check(p, err)
	return out.String()
}

// host runs a command as the owner of the device would.
func (p *play) host(command string) (out string, code int, err error) {
	cmd := exec.CommandContext(p.Context(), "/bin/sh", "-c", command)
	cmd.Env = append(os.Environ(), "PROJECT="+p.project, "STATE="+p.d.state, "RUN="+p.d.run, "DIR="+p.dir, "SOCKET="+p.d.socket)
	text, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return string(text), exit.ExitCode(), nil
	}
	return string(text), 0, err
}
