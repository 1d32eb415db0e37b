package wfm

import (
	"context"
	"crypto/tls"
	"fmt"
	"net/http"

	"github.com/margolite/margolite/agent/identity"
	"github.com/margolite/margolite/agent/margo"
)

// Get requests a document of at most limit bytes from the identity service, or returns the known
// one if it has not changed. Each request has its own connection: requests are days apart and
// must be authenticated anew.
func Get(ctx context.Context, config *tls.Config, op string, known identity.Fetched, limit int64) (identity.Fetched, error) {
	at, err := margo.HTTPS(known.URL)
	if err != nil {
		return identity.Fetched{}, fmt.Errorf("cannot %s: %w", op, err)
	}
	o := Options{TLS: config, Timeout: defaultTimeout, Limits: Limits{}.WithDefaults()}
	c := &Client{options: o, wire: newConnections(o)}
	defer c.wire.retire()
	header := http.Header{"Accept": {"application/json"}}
	a, err := c.do(ctx, request{
		op: op, who: "the identity service", url: at, header: header, etag: known.ETag, limit: limit,
	})
	switch {
	case err != nil:
		return identity.Fetched{}, err
	case a.status == http.StatusNotModified:
		return known, nil
	}
	return identity.Fetched{Data: a.body, URL: known.URL, ETag: a.etag}, nil
}
