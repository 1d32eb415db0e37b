// Package config reads the configuration file of margolite.
//
// The file is strict YAML: unknown and repeated keys and wrong types are errors, and all mistakes
// of a file are reported at once, each with its line and key. Consistency is checked once each key
// is valid. Keys that are left out have the value of Default, and a key set to the default counts
// as left out. Keys that do not apply to the other values are rejected, so that nobody relies on
// them.
//
// Secrets are never in the file: keys such as wfm.authorization name the files that hold them, so
// that a configuration can be shown and compared.
package config

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"reflect"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v4"

	"github.com/margolite/margolite/agent"
	"github.com/margolite/margolite/agent/pace"
	"github.com/margolite/margolite/agent/uplink"
	"github.com/margolite/margolite/policy"
	"github.com/margolite/margolite/runtime/image"
)

const maxSize = 256 << 10

// Config is a valid configuration.
type Config struct {
	Device     agent.Device              `yaml:"device"`
	WFM        WFM                       `yaml:"wfm"`
	Poll       pace.Rules                `yaml:"poll"`
	Provision  Provision                 `yaml:"provision"`
	State      State                     `yaml:"state"`
	Control    Control                   `yaml:"control"`
	Runtime    Runtime                   `yaml:"runtime"`
	Policy     Policy                    `yaml:"policy"`
	Reports    agent.Reports             `yaml:"reports"`
	Registries map[string]image.Registry `yaml:"registries" names:"host" restart:"true"` // by host[:port]
	Metrics    Metrics                   `yaml:"metrics" restart:"true"`
	Collector  Collector                 `yaml:"collector" restart:"true"`
	Log        Log                       `yaml:"log"`

	file     string
	sum      [sha256.Size]byte // of that file
	warnings []error
}

// WFM is how to reach the WFM, and this device's identity there. Unused files are empty.
type WFM struct {
	uplink.Options `yaml:",inline"`
}

// FromGit reports whether the desired state is in a repository.
func (w *WFM) FromGit() bool { return strings.HasPrefix(w.URL, gitScheme) }

// Provision is where a device without a WFM looks for provisioning files.
type Provision struct {
	From []string `yaml:"from" is:"path" most:"8"` // directories, in this order; empty: nowhere
}

// Possible reports whether a directory for provisioning files exists.
func (p Provision) Possible() bool {
	return slices.ContainsFunc(p.From, func(dir string) bool {
		info, err := os.Stat(dir)
		return err == nil && info.IsDir()
	})
}

// State is the location of the agent's files.
type State struct {
	Dir     string `yaml:"dir" is:"path" restart:"true"` // survives a reboot
	Run     string `yaml:"run" is:"path" restart:"true"` // does not
	Reserve int64  `yaml:"reserve" restart:"true"`       // bytes that stay free on the file system of Dir
}

// Control is who may use the control socket.
type Control struct {
	Group string `yaml:"group" is:"group?"` // name of the group; empty: the agent's own
}

// Embedded is Runtime.Containerd for the built-in containerd.
const Embedded = "embedded"

// Runtime is how workloads run.
type Runtime struct {
	Containerd string        `yaml:"containerd" is:"containerd" restart:"true"` // Embedded, or the path of a socket
	Namespace  string        `yaml:"namespace" is:"namespace" restart:"true"`   // in containerd
	Settle     time.Duration `yaml:"settle" least:"0s" most:"24h"`
	MaxTimeout time.Duration `yaml:"maxTimeout" least:"1s" most:"24h"`           // longer timeouts of components are cut to this
	Publish    string        `yaml:"publish" one:"firewall open" restart:"true"` // firewall or open: who may use published ports
	Preload    string        `yaml:"preload" is:"path?" restart:"true"`          // directory of image archives; empty: none
	Pulls      int           `yaml:"pulls" least:"1" most:"16" restart:"true"`   // concurrent downloads per registry; one more in total
	// MinPullRate is the bytes a minute at which a download keeps its slot from others; 0: any.
	MinPullRate int64 `yaml:"minPullRate" restart:"true"`
	Logs        Logs  `yaml:"logs" restart:"true"`
}

// Logs bounds and locates the kept output of workloads.
type Logs struct {
	Dir     string `yaml:"dir" is:"path?"`                 // empty: in State.Run
	MaxSize int64  `yaml:"maxSize" least:"4Ki" most:"1Ti"` // most bytes of one file
	MaxFile int    `yaml:"maxFile" least:"1" most:"100"`   // most files of one container
	Total   int64  `yaml:"total" least:"1Mi" most:"1Ti"`   // bytes of all containers if Dir is empty
}

// Policy is which changes may be applied when, what workloads may ask for, and who must sign them.
type Policy struct {
	policy.Options `yaml:",inline"`
	Keys           []string `yaml:"keys" is:"path" most:"16" restart:"true"` // files; packages named by a URL must be signed by one of these
	// ImageKeys are key files by prefix of image and package names; these must be signed by one of
	// the keys, unless Allow admits unsigned ones.
	ImageKeys map[string][]string `yaml:"imageKeys" names:"images" is:"path" most:"16" all:"keys"`
	// Notation is a directory with a trust policy and store, which may sign packages too; empty:
	// none.
	Notation string `yaml:"notation" is:"path?"`
}

// Metrics is who gets metrics besides the control socket.
type Metrics struct {
	Listen   string        `yaml:"listen" is:"listenAddress?"`      // address for scrapes; empty: none
	OTLP     string        `yaml:"otlp" is:"ownCollector?"`         // base URL of a collector to push to; empty: none
	Interval time.Duration `yaml:"interval" least:"10s" most:"24h"` // of pushes
}

// Collector is the device's OpenTelemetry collector, as workloads reach it.
type Collector struct {
	HTTP        string `yaml:"http" is:"collector?"`              // URL for OTLP over HTTP; empty: none
	GRPC        string `yaml:"grpc" is:"collector?"`              // URL for OTLP over gRPC; empty: none
	Protocol    string `yaml:"protocol" one:"grpc http/protobuf"` // preferred one: grpc or http/protobuf; empty: unspecified
	Certificate string `yaml:"certificate" is:"path?"`            // PEM file copied into containers; empty: none
}

// Log configures the daemon's log on stderr.
type Log struct {
	Level  slog.Level `yaml:"level" one:"debug info warn error"`
	Format string     `yaml:"format" one:"text json" restart:"true"` // text or json
}

// Default returns the configuration of an empty file.
func Default() *Config {
	return &Config{
		WFM: WFM{uplink.Options{
			Certificate: "/etc/margolite/device.pem",
			Key:         "/etc/margolite/device.key",
			TrustBundle: "/etc/margolite/trust-bundle.json",
			TLS:         "1.3",
			Service:     uplink.Service{Refresh: 24 * time.Hour},
			Git:         uplink.Git{Branch: "main"},
		}},
		Poll:      pace.Rules{Interval: time.Minute},
		Provision: Provision{From: []string{"/etc/margolite/provision.d"}},
		State:     State{Dir: "/var/lib/margolite", Run: "/run/margolite", Reserve: 32 << 20},
		Runtime: Runtime{
			Containerd: Embedded, Namespace: "margo", Settle: 10 * time.Second, MaxTimeout: 2 * time.Hour,
			Publish: "firewall", Preload: "/usr/share/margolite/images", Pulls: 3, MinPullRate: 16 << 10,
			Logs: Logs{MaxSize: 1 << 20, MaxFile: 2, Total: 32 << 20},
		},
		Policy: Policy{Options: policy.Options{
			Order: policy.OrderNone,
			Rules: policy.Rules{
				Approval: policy.ApproveNone, Rollback: policy.RollbackAuto,
				Hook: policy.Hook{Timeout: policy.HookTimeout},
			},
			Allow: policy.DefaultAllow(),
		}},
		Reports: agent.Reports{Running: true, Grace: time.Minute, Interval: 24 * time.Hour},
		Metrics: Metrics{Interval: time.Minute},
		Log:     Log{Level: slog.LevelInfo, Format: "text"},
	}
}

// Load reads the file at path. If it names no WFM, the device's enrolment is added, see Enrol.
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

// load also returns the reader, to add to the file's configuration.
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

// parse reads a file's content. The name is for errors: one or more joined *Error.
func parse(name string, data []byte) (*Config, *reader, error) {
	c := Default()
	c.file, c.sum = name, sha256.Sum256(data)
	r := &reader{file: name, places: make(map[string]place)}
	if err := r.read(data, r.fields(reflect.ValueOf(c).Elem())); err != nil {
		return nil, nil, err
	}
	return c, r, c.settle(r)
}

// Sum is the SHA-256 of the file.
func (c *Config) Sum() [sha256.Size]byte { return c.sum }

// Warnings are about keys of the file that a coming release will reject.
func (c *Config) Warnings() []error { return c.warnings }

func (c *Config) settle(r *reader) error {
	if len(r.mistakes) == 0 {
		c.agree(r)
	}
	c.warnings = r.warnings
	var all []error
	for _, mistake := range r.mistakes {
		all = append(all, mistake)
	}
	return errors.Join(all...)
}

// read applies the single document in data. Mistakes are left in r.
func (r *reader) read(data []byte, known fields) error {
	if len(data) > maxSize {
		return &Error{File: r.file, Problem: fmt.Sprintf("the file has more than %d bytes", maxSize)}
	}
	documents := yaml.NewDecoder(bytes.NewReader(data))
	var root *yaml.Node // nil: all documents are empty
	for {
		var next yaml.Node
		switch err := documents.Decode(&next); {
		case errors.Is(err, io.EOF):
			if root != nil {
				r.section(root, "", known)
			}
			return nil
		case err != nil:
			return syntaxError(r.file, err)
		case next.Content[0].ShortTag() == "!!null": // as a separator at the end makes it
		case root != nil:
			return &Error{File: r.file, Line: next.Line, Problem: "unexpected second document"}
		default:
			root = next.Content[0]
		}
	}
}

// RequireWFM fails if the configuration names no WFM: the daemon needs one, most commands do not.
func (c *Config) RequireWFM() error {
	if c.WFM.URL == "" {
		return &Error{File: c.file, Key: "wfm.url", Problem: "required here: the base URL of the Workload Fleet Manager, such as https://wfm.example.com"}
	}
	return nil
}
