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

// connection is what the ways to the interface of a WFM have in common: a client that
// is made of files, and made anew when one of them is replaced.
type connection struct {
	still
	device  Device
	url     string
	options Options
	files   []string              // looked at with each request
	load    func() (*link, error) // makes a link of what they hold now

	opening sync.Mutex           // one open at a time, also while the device is onboarded
	seen    string               // of the files when they were looked at last; empty: not known
	logged  string               // why what replaced them is not in use, to log it once
	current atomic.Pointer[link] // nil: to be made
}

// link is a client of a WFM, and what it is made of; it never changes.
type link struct {
	client   *wfm.Client
	scope    string
	id       string             // that the WFM knows the client by; empty: none, or not given yet
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

// follow gives the link that the files and the records make now: all of them
// together, or as long as something is wrong with them the former link. The
// caller holds opening.
func (c *connection) follow() (*link, error) {
	var seen strings.Builder // tells whether a file was replaced, or may be read by others than before
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
	c.seen = "" // looked at again with the next request, whatever was in the way
	if text := err.Error(); text != c.logged {
		c.logged = text
		c.device.Logger.Warn("cannot load a replaced file; the previous one stays in use", "error", err)
	}
	return now, nil
}

// use gives the former connections up.
func (c *connection) use(next *link) {
	if former := c.current.Swap(next); former != nil {
		former.client.CloseIdle()
	}
}

// warn logs what is wrong with the device's own certificate.
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

// clientID is known also before the WFM is in reach.
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

// describeCertificate tells how long the device's certificate is good for.
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
