package uplink

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/margolite/margolite/agent/clock"
	"github.com/margolite/margolite/agent/control"
	"github.com/margolite/margolite/agent/git"
	"github.com/margolite/margolite/agent/margo"
	"github.com/margolite/margolite/agent/wfm"
	"github.com/margolite/margolite/runtime/contain"
	"github.com/margolite/margolite/store"
)

// Options say where the WFM is, and how it and the device identify each other. Fields that do not
// apply to the chosen way are empty.
type Options struct {
	// URL is the base of the WFM's interface or, after git+, the repository of the desired state.
	URL      string         `yaml:"url" is:"source?"`
	Revision margo.Revision `yaml:"revision" one:"1.0.0-rc.3 1.0.0-rc.2 1.0.0-rc.1"`

	Certificate string   `yaml:"certificate" is:"path" with:"files"`        // file of the device: X.509-SVID, or what signs its requests; empty: none
	Key         string   `yaml:"key" is:"path" with:"files"`                // file
	TrustBundle string   `yaml:"trustBundle" is:"trustBundle?" with:"svid"` // a file, or the https URL of the trust bundle; empty: by discovery
	IDs         []string `yaml:"ids" is:"spiffeID" most:"16" with:"svid"`   // SPIFFE IDs of the WFM that do not follow from the device's own

	CA            string        `yaml:"ca" is:"path?"` // file of anchors for servers with an ordinary certificate; empty: the system's
	Authorization Authorization `yaml:"authorization"` // for a gateway in front of the WFM

	ClientID string `yaml:"clientId" is:"clientID?" with:"signed"` // already known; empty: the WFM assigns one (AUTH-04)
	// TLS is the oldest accepted version: 1.2 is a fallback that is off by default (ID-10).
	TLS     string  `yaml:"tls" one:"1.3 1.2"`
	Service Service `yaml:"identityService"` // if the trust bundle is a URL or found by discovery

	Strict bool `yaml:"strict"` // see wfm.Options

	Git     Git    `yaml:"git"`
	Reports string `yaml:"reports" is:"baseURL?" with:"git"` // with a repository: base URL of a WFM for reports; empty: none are sent
}

// Service locates and authenticates the trust bundle's server: by anchors and name, or by pins.
type Service struct {
	Discovery string        `yaml:"discovery" is:"documentURL?" with:"svid"`       // https URL of the discovery document; empty: there is none
	Pins      []string      `yaml:"pins" is:"pin" most:"16" with:"service"`        // base64 SHA-256 of a SubjectPublicKeyInfo
	CA        string        `yaml:"ca" is:"path?" with:"service"`                  // file of anchors; empty: Options.CA
	Refresh   time.Duration `yaml:"refresh" least:"5m" most:"168h" with:"service"` // if the bundle does not say
}

// Authorization names the file with the credentials for a gateway; at most one is set.
type Authorization struct {
	Basic  string `yaml:"basic" is:"secret?" with:"gateway"`  // holds user:password
	Bearer string `yaml:"bearer" is:"secret?" with:"gateway"` // holds a token
}

// Git locates the desired state in a repository.
type Git struct {
	Branch string   `yaml:"branch" is:"branch" with:"git"`
	Path   string   `yaml:"path" is:"treePath?" with:"git"`            // folder; empty: all of it
	Groups []string `yaml:"groups" is:"treePath" most:"16" with:"git"` // more folders, of the groups that the device is a member of
	Token  string   `yaml:"token" is:"secret?" with:"git"`             // file; empty: none is needed
	// Certificate and Key are files that authenticate the device to the server; empty: none.
	Certificate string    `yaml:"certificate" is:"path?" with:"git"`
	Key         string    `yaml:"key" is:"secret?" with:"git"`
	Report      GitReport `yaml:"report"`
	Device      string    // id of this device, the author of reports
}

// GitReport says where in the repository the current state is reported (ST-19).
type GitReport struct {
	Branch string `yaml:"branch" is:"branch?" with:"git"` // empty: nowhere
	Path   string `yaml:"path" is:"treePath?" with:"git"` // folder of this device; empty: the branch is its own
}

// Records keeps small records across restarts; *store.Store is one.
type Records interface {
	Setting(name string) ([]byte, bool, error)
	Commit(verb string, c store.Change) error
}

// Device is what an uplink needs of its device.
type Device struct {
	Records Records
	Spool   wfm.Spool    // for bundles of documents; nil: documents come one by one
	Dir     string       // for the copy of a repository
	Clock   *clock.Clock // learns the time of authenticated WFMs
	// Silence returns how long nothing may be sent from now (POL-01); nil: no limit.
	Silence func() time.Duration
	// Dial connects to the WFM; nil: the system's connections.
	Dial wfm.Dial
	// Wake reports that the WFM may be reachable again; nil: not needed. It must not block.
	Wake func()
	// Contained receives panics of the work between requests; nil: not needed.
	Contained func(what string, err error)
	Logger    *slog.Logger
}

const afterPanic = time.Minute

// Uplink is the way to one WFM. It implements agent.WFM and is safe for concurrent use.
type Uplink struct {
	device Device

	mu      sync.Mutex
	way     way
	changed chan struct{} // closed when way changes
}

// api is the interface of a WFM; *wfm.Client is one.
type api interface {
	Manifest(ctx context.Context, etag string) (*wfm.Manifest, error)
	Documents(ctx context.Context, m *wfm.Manifest, need []margo.DeploymentRef, keep func(digest.Digest, []byte) error) error
	PostStatus(ctx context.Context, deploymentID string, body []byte) error
	PutCapabilities(ctx context.Context, deviceID string, body []byte) error
	DeleteCapabilities(ctx context.Context, deviceID string) error
}

// way is one kind of uplink. Its methods may be called concurrently.
type way interface {
	// open returns the WFM for one request. It reloads replaced files, and onboards the device.
	open(ctx context.Context) (api, error)
	// ended receives the outcome of each request, and may explain it further.
	ended(err error) error
	// scope names the publisher whose manifest versions compare, once open succeeded.
	scope() string
	// audience names the receiver of reports and capabilities, as far as known.
	audience() string
	// clientID is the WFM's id of this device; empty: none, or unknown.
	clientID() string
	// probe makes a request without side effects and describes the answer.
	probe(ctx context.Context) (string, error)
	// describe reports what is known about the identities, without any request.
	describe(s *control.IdentityStatus)
	// run does the work between requests until ctx is done.
	run(ctx context.Context) error
	// close gives up all connections; requests under way complete.
	close()
}

// still is a way without work between or after requests, and without an identity.
type still struct{}

func (still) ended(err error) error { return err }

func (still) close() {}

func (still) run(ctx context.Context) error {
	<-ctx.Done()
	return nil
}

func (still) describe(*control.IdentityStatus) {}

func (still) clientID() string { return "" }

// New returns an uplink without reading or sending anything. The error is about invalid options.
func New(o Options, d Device) (*Uplink, error) {
	w, err := d.way(o)
	if err != nil {
		return nil, err
	}
	return &Uplink{device: d, way: w, changed: make(chan struct{})}, nil
}

// Configure changes the WFM or the way to it. On an error nothing changes.
func (u *Uplink) Configure(o Options) error {
	next, err := u.device.way(o)
	if err != nil {
		return err
	}
	u.mu.Lock()
	former := u.way
	u.way = next
	close(u.changed)
	u.changed = make(chan struct{})
	u.mu.Unlock()
	former.close()
	return nil
}

// Run refreshes credentials between requests until ctx is done.
func (u *Uplink) Run(ctx context.Context) error {
	for ctx.Err() == nil {
		u.mu.Lock()
		way, changed := u.way, u.changed
		u.mu.Unlock()

		running, stop := context.WithCancel(ctx)
		ended := make(chan error, 1)
		go func() {
			defer stop() // also after an error
			ended <- contain.Call(func() error { return way.run(running) })
		}()
		select {
		case <-running.Done():
		case <-changed:
		}
		stop()
		err := <-ended
		if p, ok := errors.AsType[*contain.Panic](err); ok { // a later answer may differ
			if u.device.Contained != nil {
				u.device.Contained("the way to the WFM", p)
			}
			select {
			case <-ctx.Done():
			case <-changed:
			case <-time.After(afterPanic):
			}
			continue
		}
		if err != nil {
			return fmt.Errorf("cannot save how to reach the WFM: %w", err)
		}
	}
	return nil
}

func (d Device) way(o Options) (way, error) {
	if !strings.HasPrefix(o.URL, "git+") {
		return d.api(o, o.URL)
	}
	source, err := git.New(gitOptions(o, d))
	if err != nil {
		return nil, err
	}
	w := &repository{Source: source}
	switch {
	case o.Git.Report.Branch != "":
		w.reports, err = newReported(o, d)
	case o.Reports != "":
		w.reports, err = d.api(o, o.Reports)
	}
	return w, err
}

func (d Device) api(o Options, url string) (way, error) {
	switch {
	case o.Revision.Signed():
		return newSigned(o, url, d), nil
	case o.Authorization != Authorization{}:
		return newGateway(o, url, d), nil
	}
	return newMutual(o, url, d)
}

func (u *Uplink) current() way {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.way
}

// Identity implements agent.WFM.
func (u *Uplink) Identity(ctx context.Context) (string, error) {
	w := u.current()
	if _, err := w.open(ctx); err != nil {
		return "", err
	}
	return w.scope(), nil
}

// Audience implements agent.WFM.
func (u *Uplink) Audience() string { return u.current().audience() }

// ClientID implements agent.WFM.
func (u *Uplink) ClientID() string { return u.current().clientID() }

// Manifest implements agent.WFM.
func (u *Uplink) Manifest(ctx context.Context, etag string) (m *wfm.Manifest, err error) {
	err = u.ask(ctx, func(a api) error {
		m, err = a.Manifest(ctx, etag)
		return err
	})
	return m, err
}

// Documents implements agent.WFM.
func (u *Uplink) Documents(ctx context.Context, m *wfm.Manifest, need []margo.DeploymentRef, keep func(digest.Digest, []byte) error) error {
	return u.ask(ctx, func(a api) error { return a.Documents(ctx, m, need, keep) })
}

// PostStatus implements agent.WFM.
func (u *Uplink) PostStatus(ctx context.Context, deploymentID string, body []byte) error {
	return u.ask(ctx, func(a api) error { return a.PostStatus(ctx, deploymentID, body) })
}

// PutCapabilities implements agent.WFM.
func (u *Uplink) PutCapabilities(ctx context.Context, deviceID string, body []byte) error {
	return u.ask(ctx, func(a api) error { return a.PutCapabilities(ctx, deviceID, body) })
}

// DeleteCapabilities implements agent.WFM.
func (u *Uplink) DeleteCapabilities(ctx context.Context, deviceID string) error {
	return u.ask(ctx, func(a api) error { return a.DeleteCapabilities(ctx, deviceID) })
}

func (u *Uplink) ask(ctx context.Context, request func(api) error) error {
	return ask(ctx, u.current(), request)
}

func ask(ctx context.Context, w way, request func(api) error) error {
	a, err := w.open(ctx)
	if err != nil {
		return err
	}
	return w.ended(request(a))
}

// Probe finds out whether the WFM is reachable and, with mutual TLS, whether it accepts this
// device's certificate, and describes it for people. It changes nothing on either side: no request
// is one that a WFM could take for the first of this device.
func (u *Uplink) Probe(ctx context.Context) (string, error) { return u.current().probe(ctx) }

func reach(ctx context.Context, w way, found string) (string, error) {
	a, err := w.open(ctx)
	if err != nil {
		return "", err
	}
	if err = w.ended(a.(*wfm.Client).Reach(ctx)); err != nil {
		return "", err
	}
	return w.scope() + " " + found, nil
}

// Describe implements agent.WFM.
func (u *Uplink) Describe() control.IdentityStatus {
	var s control.IdentityStatus
	u.current().describe(&s)
	if floor, wrong := u.device.Clock.Wrong(); wrong {
		s.Warnings = append(s.Warnings, control.Advice{
			Text: fmt.Sprintf("this device's clock is wrong: it is at least %s", floor.UTC().Format(time.RFC3339)),
			Mend: "set the clock",
		})
	}
	return s
}
