// Package config reads the configuration file of margolite.
//
// The file is strict YAML: a key that is unknown, given twice or of the wrong
// type is an error, and all mistakes of a file are reported at once, each with
// its line and its key; whether the keys agree with each other is looked at when
// each of them is sound. What a file leaves out has the value of Default, and a
// key that says the default counts as left out. Keys that mean nothing beside the
// others are refused, so that nobody relies on what does not happen.
//
// Secrets are never in the file: keys such as wfm.authorization name the files
// that hold them, so that a configuration can be shown and compared.
package config

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v4"

	"github.com/margolite/margolite/capability"
	"github.com/margolite/margolite/policy"
)

// maxSize bounds a configuration file.
const maxSize = 256 << 10

// Config is a valid configuration.
type Config struct {
	Device     Device
	WFM        WFM
	Poll       Poll
	Provision  Provision
	State      State
	Control    Control
	Runtime    Runtime
	Policy     Policy
	Reports    Reports
	Registries map[string]Registry // by host[:port]
	Metrics    Metrics
	Collector  Collector
	Log        Log

	file string
	sum  [sha256.Size]byte // of that file
}

// Device is what the operator says about this device. What is empty is found
// out from the machine.
type Device struct {
	ID           string
	Vendor       string
	ModelNumber  string
	SerialNumber string
	// Labels have values as YAML delivers them: a string, a number, a boolean,
	// or a list of strings or of numbers.
	Labels map[string]any
	Offer  capability.Offer // of what the machine has
}

// The revisions of the standard that can be spoken.
const (
	RC3 = "1.0.0-rc.3"
	RC2 = "1.0.0-rc.2"
	RC1 = "1.0.0-rc.1"
)

// WFM is how to reach the Workload Fleet Manager, and who this device is there.
// Files that are not used with the other values are empty.
type WFM struct {
	// URL is the base of the WFM's API, or git+https://... of a repository that
	// holds the desired state. Empty: none, see RequireWFM.
	URL         string
	Revision    string // RC3, RC2 or RC1
	Certificate string // file; empty: the device shows and signs with none
	Key         string // file
	TrustBundle string // file, or https URL; empty: not used, or by discovery
	// IDs are the SPIFFE IDs of the WFM; empty: the one that follows from the
	// device's own.
	IDs           []string
	CA            string // file of PEM anchors for ordinary certificates; empty: the system's
	Authorization Authorization
	ClientID      string // RC2, RC1: known without onboarding; empty: by onboarding
	Signature     Signature
	// TLS is the oldest version that is spoken, "1.3" or "1.2".
	TLS             string
	IdentityService IdentityService
	Limits          Limits
	// Strict refuses what the standard forbids and this device could live with.
	Strict  bool
	Git     Git
	Reports string // base URL of the API for reports, where URL is a repository; empty: none
}

// FromGit says whether the desired state is in a repository.
func (w *WFM) FromGit() bool { return strings.HasPrefix(w.URL, gitScheme) }

// Authorization is what a gateway in front of the WFM wants to see: at most one
// of the two.
type Authorization struct {
	Basic  string // file that holds user:password
	Bearer string // file that holds a token
}

// Signature is how requests of RC2 and RC1 are signed where it is not as usual.
type Signature struct {
	Components      []string // what is covered, in this order; empty: as the standard says
	KeyID           string   // empty: the hash of the public key
	CertificateForm string   // what is posted at onboarding: pem or der
}

// IdentityService is where the trust bundle comes from, and how that server is
// authenticated: by anchors and its name, or by pins.
type IdentityService struct {
	Discovery string        // https URL of the discovery document; empty: none
	Pins      []string      // base64 of the SHA-256 of a public key (SubjectPublicKeyInfo, DER)
	CA        string        // file of PEM anchors; empty: those of WFM.CA
	Refresh   time.Duration // where the bundle does not say
}

// Limits bound what is taken from the WFM.
type Limits struct {
	Manifest int64 // bytes of the state manifest, or of the list of a repository
	Document int64 // bytes of one deployment document
	Bundle   int64 // bytes of the bundle, compressed
	Expanded int64 // bytes of the bundle, expanded
	Entries  int   // of the bundle
	Ratio    int   // of the expanded size to the compressed one
	Names    int   // bytes of the name of an entry
	Depth    int   // directories in the name of an entry
}

// Git is where in a repository the desired state is.
type Git struct {
	Branch string
	Path   string // directory, relative to the root of the repository; empty: the root
	Token  string // file; empty: none
	// Certificate and Key are files that the device shows to the server; empty: none.
	Certificate string
	Key         string
	Report      GitReport
}

// GitReport is where in the repository the current state is reported.
type GitReport struct {
	Branch string // empty: nowhere
	Path   string // directory of this device; empty: the branch is its own
}

// Poll is when to ask for the desired state.
type Poll struct {
	Interval time.Duration
	Windows  policy.Windows // when it is asked for; empty: at any time
	Downtime policy.Windows // when nothing is sent at all
}

// Provision is where a device without a WFM looks for provisioning files.
type Provision struct {
	From []string // directories, in this order; empty: nowhere
}

// Possible says whether provisioning files can come at all: a directory for them is
// there.
func (p Provision) Possible() bool {
	return slices.ContainsFunc(p.From, func(dir string) bool {
		info, err := os.Stat(dir)
		return err == nil && info.IsDir()
	})
}

// State is where things are on the device.
type State struct {
	Dir     string // survives a reboot
	Run     string // does not
	Reserve int64  // bytes that stay free on the file system of Dir
}

// Control is who may use the control socket.
type Control struct {
	Group string // name of the group, beside root; empty: the agent's own
}

// Embedded is the Containerd of a Runtime that carries its own.
const Embedded = "embedded"

// Runtime is how workloads run.
type Runtime struct {
	Containerd string // Embedded, or the path of a socket
	Namespace  string // in containerd
	Settle     time.Duration
	MaxTimeout time.Duration // the longest timeout of a component that counts
	Publish    string        // firewall or open: who may use published ports
	Preload    string        // directory of image archives; empty: none
	Pulls      int           // downloads from one registry at a time, and one more from all registries together
	// MinPullRate is how many bytes a minute a download has to bring to keep its slot while others wait; 0: any.
	MinPullRate int64
	Logs        Logs
}

// Logs is how much is kept of what workloads print, and where.
type Logs struct {
	Dir     string // empty: in State.Run
	MaxSize int64  // bytes of one file
	MaxFile int    // files of one container
}

// Policy is which changes may be applied and when, what workloads may ask for,
// and whose packages and images may come.
type Policy struct {
	policy.Options
	Keys []string // files; packages that a URL names are signed by one of these
	// ImageKeys are files by what the names of images begin with; images are signed
	// by one of these, where Allow does not let in others.
	ImageKeys map[string][]string
}

// Reports is what the WFM is told besides changes of the desired state.
type Reports struct {
	Running  bool          // that something which was installed does not work, and works again
	Grace    time.Duration // for how long it has to be so
	Interval time.Duration // of telling the current state again; 0: never
	Reasons  bool          // why a deployment is pending, as an error that is none
}

// Registry is how one registry is reached.
type Registry struct {
	PlainHTTP   bool
	CA          string   // file
	Credentials string   // file
	Mirrors     []string // hosts
	Insecure    bool     // certificates are not verified
	Certificate string   // file; of this device
	Key         string   // file
}

// Metrics is who else than the control socket hears what can be counted.
type Metrics struct {
	Listen   string        // address to be asked at; empty: none
	OTLP     string        // base URL of a collector that is told; empty: none
	Interval time.Duration // of telling it
}

// Collector is where workloads find the OpenTelemetry collector of this device.
type Collector struct {
	HTTP        string // URL for OTLP over HTTP; empty: there is none
	GRPC        string // URL for OTLP over gRPC; empty: none
	Protocol    string // that is preferred: grpc or http/protobuf; empty: nothing is said
	Certificate string // PEM file that containers get a copy of; empty: none
}

// Log is what the daemon writes to stderr.
type Log struct {
	Level  slog.Level
	Format string // text or json
}

// Default returns the configuration of an empty file.
func Default() *Config {
	return &Config{
		WFM: WFM{
			Revision:        RC3,
			Certificate:     "/etc/margolite/device.pem",
			Key:             "/etc/margolite/device.key",
			TrustBundle:     "/etc/margolite/trust-bundle.json",
			Signature:       Signature{CertificateForm: "pem"},
			TLS:             "1.3",
			IdentityService: IdentityService{Refresh: 24 * time.Hour},
			Limits: Limits{
				Manifest: 1 << 20, Document: 256 << 10, Bundle: 64 << 20, Expanded: 256 << 20,
				Entries: 10000, Ratio: 200, Names: 1024, Depth: 16,
			},
			Git: Git{Branch: "main"},
		},
		Poll:      Poll{Interval: time.Minute},
		Provision: Provision{From: []string{"/etc/margolite/provision.d"}},
		State:     State{Dir: "/var/lib/margolite", Run: "/run/margolite", Reserve: 32 << 20},
		Runtime: Runtime{
			Containerd: Embedded, Namespace: "margo", Settle: 10 * time.Second, MaxTimeout: 2 * time.Hour,
			Publish: "firewall", Preload: "/usr/share/margolite/images", Pulls: 3, MinPullRate: 16 << 10,
			Logs: Logs{MaxSize: 1 << 20, MaxFile: 2},
		},
		Policy: Policy{Options: policy.Options{
			Order: policy.OrderNone,
			Rules: policy.Rules{
				Approval: policy.ApproveNone, Rollback: policy.RollbackAuto,
				Hook: policy.Hook{Timeout: policy.HookTimeout},
			},
			Allow: policy.DefaultAllow(),
		}},
		Reports: Reports{Running: true, Grace: time.Minute},
		Metrics: Metrics{Interval: time.Minute},
		Log:     Log{Level: slog.LevelInfo, Format: "text"},
	}
}

// Load reads the file at path. Where it names no WFM, what the device was enrolled
// with comes on top of it, see Enrol.
func Load(path string) (*Config, error) {
	c, r, err := load(path)
	if err != nil {
		return nil, err
	}
	if c.WFM.URL == "" {
		if err := c.addEnrolment(r); err != nil {
			return nil, err
		}
	}
	c.WFM.dropUnused()
	return c, nil
}

// load leaves the reader, for what comes on top of the file.
func load(path string) (*Config, *reader, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, nil, fmt.Errorf("cannot read configuration: %w", err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxSize+1))
	if err != nil {
		return nil, nil, fmt.Errorf("cannot read configuration: %w", err)
	}
	return parse(path, data)
}

// parse reads the content of a file. The name is for errors, which are *Error,
// joined when there are several.
func parse(name string, data []byte) (*Config, *reader, error) {
	c := Default()
	c.file, c.sum = name, sha256.Sum256(data)
	r := &reader{file: name, places: make(map[string]place)}
	if err := r.read(data, c.schema()); err != nil {
		return nil, nil, err
	}
	return c, r, c.settle(r)
}

// Sum is the SHA-256 of the file.
func (c *Config) Sum() [sha256.Size]byte { return c.sum }

// settle reports what was wrong with all that was read.
func (c *Config) settle(r *reader) error {
	if len(r.mistakes) == 0 {
		c.agree(r)
	}
	return errors.Join(r.mistakes...)
}

// read takes over the one document that data are. Mistakes in it are left in r.
func (r *reader) read(data []byte, known fields) error {
	if len(data) > maxSize {
		return &Error{File: r.file, Problem: fmt.Sprintf("the file has more than %d bytes", maxSize)}
	}
	document := yaml.NewDecoder(bytes.NewReader(data))
	var root, second yaml.Node
	switch err := document.Decode(&root); {
	case errors.Is(err, io.EOF):
		return nil
	case err != nil:
		return syntaxError(r.file, err)
	}
	switch err := document.Decode(&second); {
	case err == nil:
		return &Error{File: r.file, Line: second.Line, Problem: "a second document starts here, one is expected"}
	case !errors.Is(err, io.EOF):
		return syntaxError(r.file, err)
	}
	section(known)(r, "", root.Content[0])
	return nil
}

// RequireWFM fails when the configuration names no WFM: most commands do
// without, the daemon does not.
func (c *Config) RequireWFM() error {
	if c.WFM.URL == "" {
		return &Error{File: c.file, Key: "wfm.url", Problem: "required here: the base URL of the Workload Fleet Manager, such as https://wfm.example.com"}
	}
	return nil
}
