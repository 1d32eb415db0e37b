package main

import (
	"context"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/margolite/margolite/agent/identity"
	"github.com/margolite/margolite/agent/margo"
	"github.com/margolite/margolite/agent/wfm"
)

// connection is the way to the WFM, made when it is needed and not before: a
// device whose certificate is missing, broken or expired is offline, and
// nothing more than that. Files that are replaced in place are taken over with
// the next request (ID-02).
type connection struct {
	url    string
	files  identity.Options
	logger *slog.Logger
	spool  wfm.Spool // for bundles; nil: a temporary file

	mu       sync.Mutex
	identity *identity.Identity
	client   *wfm.Client // nil: to be tried again
	stamps   [3]stamp    // of the files as client took them over, or tried to
}

// stamp tells whether a file was replaced.
type stamp struct {
	modified time.Time
	size     int64
}

// open gives the client, or says why there is none.
func (c *connection) open() (*wfm.Client, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var now [3]stamp
	for i, name := range []string{c.files.Certificate, c.files.Key, c.files.TrustBundle} {
		if info, err := os.Stat(name); err == nil {
			now[i] = stamp{info.ModTime(), info.Size()}
		}
	}
	if c.client == nil {
		client, err := c.load()
		if err != nil {
			return nil, err
		}
		c.client, c.stamps = client, now
	}
	if now != c.stamps {
		c.stamps = now
		if err := c.identity.Reload(); err != nil {
			c.logger.Warn("cannot take over the replaced identity; the former one stays in use", "error", err)
		} else {
			c.logger.Info("identity reloaded", "expires", c.identity.NotAfter())
			c.client.CloseIdle()
		}
	}
	return c.client, nil
}

func (c *connection) load() (*wfm.Client, error) {
	id, err := identity.Load(c.files)
	if err != nil {
		return nil, err
	}
	for _, w := range id.Warnings() {
		c.logger.Warn("identity needs attention", "error", w, "mend", w.Mend())
	}
	client, err := wfm.New(wfm.Options{URL: c.url, TLS: id.TLS(), Logger: c.logger, Spool: c.spool})
	if err != nil {
		return nil, err
	}
	c.identity = id
	return client, nil
}

// Identity implements agent.WFM.
func (c *connection) Identity() (string, error) {
	if _, err := c.open(); err != nil {
		return "", err
	}
	return c.identity.WFMID(), nil
}

// Manifest implements agent.WFM.
func (c *connection) Manifest(ctx context.Context, etag string) (*wfm.Manifest, error) {
	client, err := c.open()
	if err != nil {
		return nil, err
	}
	return client.Manifest(ctx, etag)
}

// Documents implements agent.WFM.
func (c *connection) Documents(ctx context.Context, m *wfm.Manifest, need []margo.DeploymentRef, keep func(digest.Digest, []byte) error) error {
	client, err := c.open()
	if err != nil {
		return err
	}
	return client.Documents(ctx, m, need, keep)
}

// PostStatus implements agent.WFM.
func (c *connection) PostStatus(ctx context.Context, deploymentID string, body []byte) error {
	client, err := c.open()
	if err != nil {
		return err
	}
	return client.PostStatus(ctx, deploymentID, body)
}

// PutCapabilities implements agent.WFM.
func (c *connection) PutCapabilities(ctx context.Context, deviceID string, body []byte) error {
	client, err := c.open()
	if err != nil {
		return err
	}
	return client.PutCapabilities(ctx, deviceID, body)
}
