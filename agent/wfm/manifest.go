package wfm

import (
	"bytes"
	"context"
	"fmt"
	"net/http"

	"github.com/opencontainers/go-digest"

	"github.com/margolite/margolite/agent/margo"
)

// Manifest is a state manifest as it came.
type Manifest struct {
	*margo.StateManifest
	Raw    []byte        // the exact bytes, decoded
	ETag   string        // as received, for the next poll; may be empty, weak or odd
	Digest digest.Digest // of Raw, computed here; what comparisons should use
}

// Manifest polls the desired state. While the manifest with the caller's ETag is current, the
// error is ErrNotModified. Whether the version is acceptable is for the caller to say.
func (c *Client) Manifest(ctx context.Context, etag string) (*Manifest, error) {
	const op = "get state manifest"
	accept := !c.acceptAny.Load()
	a, err := c.poll(ctx, op, etag, accept)
	if accept && statusOf(err) == http.StatusNotAcceptable {
		// Only the plain type was asked for; a WFM that does not know its own name for it may
		// still send it as the default.
		if again, retryErr := c.poll(ctx, op, etag, false); retryErr == nil {
			a, err = again, nil
			c.acceptAny.Store(true)
			c.warnOnce("the WFM rejects the media type of its state manifest in Accept; leaving it out", "type", margo.ManifestMediaType)
		}
	}
	switch {
	case err != nil:
		return nil, err
	case a.status == http.StatusNotModified:
		return nil, ErrNotModified
	}
	if err := c.checkManifestType(a); err != nil {
		return nil, fmt.Errorf("cannot %s: %w", op, err)
	}
	parsed, err := margo.ParseStateManifest(a.body)
	if err != nil {
		return nil, err
	}
	if c.options.Strict {
		parsed.RefuseOddIDs()
	}
	m := &Manifest{StateManifest: parsed, Raw: a.body, ETag: a.etag, Digest: digest.FromBytes(a.body)}
	if want := `"` + m.Digest.String() + `"`; m.ETag != want {
		c.warnOnce("the WFM's ETag is not the digest of its state manifest; using the digest", "etag", m.ETag, "digest", m.Digest)
	}
	return m, nil
}

func (c *Client) poll(ctx context.Context, op, etag string, accept bool) (*answer, error) {
	r := request{op: op, resource: "deployments", etag: etag, own: true, limit: margo.MaxManifestBytes} // DS-04
	if accept {
		r.header = http.Header{"Accept": {margo.ManifestMediaType}} // DS-03; one type only, so that no signed form comes
	}
	return c.do(ctx, r)
}

// checkManifestType applies A-20: a signed manifest or a page must not be parsed as a plain one.
// Generic types, as file servers and proxies send, leave it to the body.
func (c *Client) checkManifestType(a *answer) error {
	switch mediaType := mediaTypeOf(a.header); mediaType {
	case margo.ManifestMediaType:
		return nil
	case "application/json", "application/octet-stream", "text/plain", "":
		if !bytes.HasPrefix(bytes.TrimSpace(a.body), []byte("{")) {
			break
		}
		c.warnOnce("the WFM sends its state manifest with an unexpected content type", "type", mediaType, "want", margo.ManifestMediaType)
		return nil
	}
	return fmt.Errorf("%w: Content-Type %.100q", ErrContentType, a.header.Get("Content-Type"))
}
