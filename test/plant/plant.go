// Package plant is what margolite meets on a factory floor, small enough for
// one machine and real in every part: a WFM, which speaks mutual TLS unless
// another way to it is wanted, a registry with the demonstration's application,
// and one device on which the agent runs as a process of its own, on the
// containerd that it carries or on another.
//
// Whoever builds one runs as root in a network namespace of its own (package
// isolated), for the agent makes bridges and rules, and calls Close whatever
// happens. Its methods are for one goroutine.
package plant

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/margolite/margolite/agent/control"
	"github.com/margolite/margolite/agent/margo"
	"github.com/margolite/margolite/test/gitserver"
	"github.com/margolite/margolite/test/ociimage"
	"github.com/margolite/margolite/test/pki"
	"github.com/margolite/margolite/test/wfmsim"
	"github.com/margolite/margolite/test/wfmsim/registry"
)

// Who is who in every plant.
const (
	TrustDomain = "factory.example"
	WFM         = "plant"
	Client      = "gateway-7"
	Device      = "edge-01"
)

// patience bounds waits for what has to happen soon: far more than a slow
// machine needs.
const patience = 90 * time.Second

// Options of a plant.
type Options struct {
	Dir         string       // where everything is kept; short, because sockets lie below it
	State       string       // the device's medium; empty: below Dir
	Margolite   string       // the agent's program, with its shim beside it
	Containerd  string       // program of an external containerd; empty: the embedded one
	Application *Application // what the registry holds from the beginning
	Way         Way          // to the WFM; zero: mutual TLS of rc.3
	// Launch starts the process of the agent, in other namespaces; nil: it is started here.
	Launch func(*exec.Cmd) error
}

// Settings are what differs between runs of the agent.
type Settings struct {
	Poll     time.Duration // 0: 1 s
	Settle   time.Duration
	LogLevel string            // empty: info
	Labels   map[string]string // of the device
	Policy   map[string]string // keys of the section policy; values are YAML
	// WFM are more keys of the section wfm, or others in place of those that
	// lead to the plant's WFM. An empty value leaves a key out. Values are YAML.
	WFM map[string]string
	// Registries are more registries that are reached over plain HTTP, as host:port.
	Registries []string
	// Runtime are more keys of the section runtime; values are YAML.
	Runtime map[string]string
	// More are more sections, as YAML.
	More string
}

// Plant is a WFM, a registry, and a device.
type Plant struct {
	WFM      *wfmsim.Server
	Registry *registry.Registry
	// Repository holds the desired state where the way leads there; otherwise nil.
	Repository *gitserver.Server
	// Authority issues the SVIDs of the trust domain, where the way has one.
	Authority *pki.Authority
	Identity  pki.Files // of the device

	options    Options
	program    string            // of the command line: what the agent was at first
	client     string            // id that the WFM knows the device by
	settings   map[string]string // of the way to the WFM, in the configuration, as YAML
	documents  map[string]string // in the repository, by deployment
	agent      *process          // nil: it does not run
	containerd *exec.Cmd         // nil: it does not run, or is embedded
}

// New makes a plant whose WFM and registry are open. The device is configured
// with the zero Settings and switched off.
func New(ctx context.Context, o Options) (*Plant, error) {
	p := &Plant{options: o, program: o.Margolite}
	if err := p.build(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("cannot build plant: %w", err), p.Close())
	}
	return p, nil
}

func (p *Plant) build(ctx context.Context) (err error) {
	if p.Registry, err = registry.New(registry.Options{}); err != nil {
		return err
	}
	if err := p.Registry.Start(""); err != nil {
		return err
	}
	if p.options.Application != nil {
		if err := p.options.Application.push(ctx, p.Registry.URL()); err != nil {
			return err
		}
	}
	if err := os.Mkdir(p.secrets(), 0o700); err != nil {
		return err
	}
	if err := p.openWay(); err != nil {
		return err
	}
	return p.Configure(Settings{})
}

// secrets is where the files of the device's identity are.
func (p *Plant) secrets() string { return filepath.Join(p.options.Dir, "identity") }

// Close ends everything at once and removes what was kept, except Dir itself.
// What is deployed leaves traces in the machine's control groups; Clear before.
func (p *Plant) Close() error {
	var errs []error
	p.Kill()
	p.PowerOff()
	if p.WFM != nil {
		errs = append(errs, p.WFM.Close())
	}
	if p.Registry != nil {
		errs = append(errs, p.Registry.Close())
	}
	if p.Repository != nil {
		errs = append(errs, p.Repository.Close())
	}
	entries, err := os.ReadDir(p.options.Dir)
	errs = append(errs, err, os.RemoveAll(p.StateDir()))
	for _, e := range entries {
		errs = append(errs, os.RemoveAll(filepath.Join(p.options.Dir, e.Name())))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("cannot close plant: %w", err)
	}
	return nil
}

// Push puts an image into the registry.
func (p *Plant) Push(ctx context.Context, repository, tag string, image *ociimage.Artifact) error {
	return ociimage.Registry{URL: p.Registry.URL()}.Push(ctx, repository, tag, image)
}

// Publish makes a deployment part of what the device is to run.
func (p *Plant) Publish(d wfmsim.Deployment) (wfmsim.Published, error) {
	body, err := d.Document()
	if err != nil {
		return wfmsim.Published{}, err
	}
	if p.Repository != nil {
		return p.commit(d.ID, body)
	}
	return p.WFM.Publish(p.client, body)
}

// Remove takes a deployment out of it, and gives the version since when.
func (p *Plant) Remove(id string) (version uint64, err error) {
	if p.Repository != nil {
		done, err := p.commit(id, nil)
		return done.Version, err
	}
	return p.WFM.Remove(p.client, id)
}

// ClientID is the id that the WFM knows the device by, or will.
func (p *Plant) ClientID() string { return p.client }

// Await returns when the WFM heard that a deployment has a state, for a
// manifest version or a later one, and gives that report.
func (p *Plant) Await(ctx context.Context, id string, state margo.State, version uint64) (wfmsim.Report, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	err := p.WFM.WaitState(ctx, id, state, version)
	if err != nil {
		return wfmsim.Report{}, fmt.Errorf("deployment %s did not become %s@%d: %w", id, state, version, err)
	}
	reports := p.WFM.Statuses(id)
	return reports[len(reports)-1], nil
}

// Clear removes every deployment and waits until the device is rid of them, so
// that nothing of theirs is left on the machine. The agent has to run.
func (p *Plant) Clear(ctx context.Context) error {
	removed := map[string]uint64{} // since which version, by id
	for _, d := range p.WFM.Deployments(p.client) {
		version, err := p.Remove(d.DeploymentID)
		if err != nil {
			return err
		}
		removed[d.DeploymentID] = version
	}
	for id, version := range removed {
		if _, err := p.Await(ctx, id, margo.Removed, version); err != nil {
			return err
		}
	}
	return Eventually(ctx, func() error {
		if shims := p.Shims(); len(shims) > 0 {
			return fmt.Errorf("shims %v still run", shims)
		}
		return nil
	})
}

// Control speaks to the agent.
func (p *Plant) Control() *control.Client {
	return control.Dial(p.Socket())
}

// Quiet returns when the agent has told the WFM everything, and has polled
// after that.
func (p *Plant) Quiet(ctx context.Context) error {
	err := Eventually(ctx, func() error {
		s, err := p.Control().Status(ctx)
		if err == nil && s.Outbox > 0 {
			err = fmt.Errorf("%d reports are not delivered", s.Outbox)
		}
		return err
	})
	if err != nil {
		return err
	}
	return p.Control().Sync(ctx)
}

// Eventually is Until with far more patience than a slow machine needs.
func Eventually(ctx context.Context, try func() error) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return Until(ctx, try)
}

// Until repeats what has no event to wait for until it succeeds. When ctx is done
// before, it returns the last error that was not caused by that.
func Until(ctx context.Context, try func() error) error {
	var last error
	for err := try(); err != nil; err = try() {
		if last == nil || ctx.Err() == nil {
			last = err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", ctx.Err(), last)
		case <-time.After(50 * time.Millisecond):
		}
	}
	return nil
}
