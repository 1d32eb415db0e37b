package uplink

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/margolite/margolite/agent/control"
	"github.com/margolite/margolite/agent/identity"
	"github.com/margolite/margolite/agent/wfm"
)

// connection is common to the ways to a WFM's interface: a client, rebuilt when its files change.
type connection struct {
	still
	device  Device
	url     string
	options Options
	files   []string              // checked with each request
	load    func() (*link, error) // builds a link from their content

	opening sync.Mutex           // serializes open, including onboarding
	seen    string               // state of the files at the last check; empty: unknown
	logged  string               // why replaced files are not in use, logged once
	current atomic.Pointer[link] // nil: not built yet
}

// link is an immutable client of a WFM and what it was built from.
type link struct {
	client   *wfm.Client
	scope    string
	id       string             // assigned by the WFM; empty: none yet
	identity *identity.Identity // with mutual TLS
	device   *identity.Device   // that signs
	record   client             // of the WFM that gave the id
}

func (c *connection) open(context.Context) (api, error) {
	c.opening.Lock()
	defer c.opening.Unlock()
	now, err := c.follow()
	if err != nil {
		return nil, err
	}
	return now.client, nil
}

// follow returns a link for the files or, if any is wrong, the former. The caller holds opening.
func (c *connection) follow() (*link, error) {
	var seen strings.Builder // changes when a file or its permissions do
	for _, name := range c.files {
		fmt.Fprintln(&seen, name)
		if info, err := os.Stat(name); err == nil {
			fmt.Fprintln(&seen, info.ModTime().UnixNano(), info.Size(), info.Mode())
		}
	}
	now := c.current.Load()
	if now != nil && seen.String() == c.seen {
		return now, nil
	}
	next, err := c.load()
	switch {
	case err == nil:
		if now != nil {
			c.device.Logger.Info("replaced files are in use", "scope", next.scope)
		}
		c.seen, c.logged = seen.String(), ""
		c.use(next)
		return next, nil
	case now == nil:
		return nil, err
	}
	c.seen = "" // the next request checks again
	if text := err.Error(); text != c.logged {
		c.logged = text
		c.device.Logger.Warn("cannot load a replaced file; the previous one stays in use", "error", err)
	}
	return now, nil
}

// use switches to a new link and closes the idle connections of the former.
func (c *connection) use(next *link) {
	if former := c.current.Swap(next); former != nil {
		former.client.CloseIdle()
	}
}

func (c *connection) warn(all []*identity.Error) {
	for _, warning := range all {
		c.device.Logger.Warn("identity needs attention", "error", warning, "mend", warning.Mend())
	}
}

func (c *connection) scope() string { return c.current.Load().scope }

func (c *connection) audience() string {
	c.opening.Lock()
	defer c.opening.Unlock()
	now, err := c.follow()
	if err != nil {
		return c.url
	}
	return now.scope
}

// clientID is known even before the WFM was reached.
func (c *connection) clientID() string {
	now := c.current.Load()
	if now == nil {
		c.opening.Lock()
		defer c.opening.Unlock()
		var err error
		if now, err = c.follow(); err != nil {
			return ""
		}
	}
	return now.id
}

func (c *connection) close() {
	if now := c.current.Load(); now != nil {
		now.client.CloseIdle()
	}
}

func describeCertificate(s *control.IdentityStatus, e identity.Expiry, warnings []*identity.Error) {
	s.Expires = e.NotAfter.UTC()
	for _, w := range warnings {
		s.Warnings = append(s.Warnings, control.Advice{Text: w.Error(), Mend: w.Mend()})
	}
	if e.Soon {
		s.Warnings = append(s.Warnings, control.Advice{
			Text: fmt.Sprintf("the certificate expires in %s", e.Left.Round(time.Minute)), Mend: "renew it",
		})
	}
}
