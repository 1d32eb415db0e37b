// Package config reads the configuration file of margolite.
//
// The file is strict YAML: a key that is unknown, given twice or of the wrong
// type is an error, and all mistakes of a file are reported at once, each with
// its line and its key. What a file leaves out has the value of Default. Values
// that belong to the format but that this version cannot honour are refused, so
// that nobody relies on what does not happen.
package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"time"

	"go.yaml.in/yaml/v4"
)

// maxSize bounds a configuration file.
const maxSize = 256 << 10

// Config is a valid configuration.
type Config struct {
	Device     Device
	WFM        WFM
	Poll       Poll
	State      State
	Runtime    Runtime
	Policy     Policy
	Registries map[string]Registry // by host[:port]
	Log        Log

	file string
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
}

// WFM is how to reach the Workload Fleet Manager, and who this device is there.
type WFM struct {
	URL         string // empty: none, see RequireWFM
	Revision    string // of the standard
	Certificate string // file
	Key         string // file
	TrustBundle string // file
}

// Poll is when to ask for the desired state.
type Poll struct {
	Interval time.Duration
}

// State is where things are on the device.
type State struct {
	Dir string // survives a reboot
	Run string // does not
}

// Embedded is the Containerd of a Runtime that carries its own.
const Embedded = "embedded"

// Runtime is how workloads run.
type Runtime struct {
	Containerd string // Embedded, or the path of a socket
	Namespace  string // in containerd
	Settle     time.Duration
	Publish    string // firewall or open: who may use published ports
	Preload    string // directory of image archives; empty: none
	Pulls      int    // downloads of image layers at a time
	Logs       Logs
}

// Logs is how much is kept of what workloads print, and where.
type Logs struct {
	Dir     string // empty: in State.Run
	MaxSize int64  // bytes of one file
	MaxFile int    // files of one container
}

// Policy is which changes need an approval.
type Policy struct {
	Approval string
}

// Registry is how one registry is reached.
type Registry struct {
	PlainHTTP   bool
	CA          string   // file
	Credentials string   // file
	Mirrors     []string // hosts
	Insecure    bool     // certificates are not verified
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
			Revision:    "1.0.0-rc.3",
			Certificate: "/etc/margolite/device.pem",
			Key:         "/etc/margolite/device.key",
			TrustBundle: "/etc/margolite/trust-bundle.json",
		},
		Poll:  Poll{Interval: time.Minute},
		State: State{Dir: "/var/lib/margolite", Run: "/run/margolite"},
		Runtime: Runtime{
			Containerd: Embedded, Namespace: "margo", Settle: 10 * time.Second,
			Publish: "firewall", Preload: "/usr/share/margolite/images", Pulls: 3,
			Logs: Logs{MaxSize: 1 << 20, MaxFile: 2},
		},
		Policy: Policy{Approval: "none"},
		Log:    Log{Level: slog.LevelInfo, Format: "text"},
	}
}

// Load reads the file at path.
func Load(path string) (*Config, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("cannot read configuration: %w", err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxSize+1))
	if err != nil {
		return nil, fmt.Errorf("cannot read configuration: %w", err)
	}
	return Parse(path, data)
}

// Parse reads the content of a file. The name is for errors, which are *Error,
// joined when there are several.
func Parse(name string, data []byte) (*Config, error) {
	if len(data) > maxSize {
		return nil, &Error{File: name, Problem: fmt.Sprintf("the file has more than %d bytes", maxSize)}
	}
	c := Default()
	c.file = name
	document := yaml.NewDecoder(bytes.NewReader(data))
	var root yaml.Node
	switch err := document.Decode(&root); {
	case errors.Is(err, io.EOF):
		return c, nil
	case err != nil:
		return nil, syntaxError(name, err)
	}
	var second yaml.Node
	switch err := document.Decode(&second); {
	case err == nil:
		return nil, &Error{File: name, Line: second.Line, Problem: "a second document starts here, one is expected"}
	case !errors.Is(err, io.EOF):
		return nil, syntaxError(name, err)
	}

	r := &reader{file: name}
	c.schema()(r, "", root.Content[0])
	if len(r.mistakes) > 0 {
		return nil, errors.Join(r.mistakes...)
	}
	return c, nil
}

// RequireWFM fails when the configuration names no WFM: most commands do
// without, the daemon does not.
func (c *Config) RequireWFM() error {
	if c.WFM.URL == "" {
		return &Error{File: c.file, Key: "wfm.url", Problem: "required here: the base URL of the Workload Fleet Manager, such as https://wfm.example.com"}
	}
	return nil
}
