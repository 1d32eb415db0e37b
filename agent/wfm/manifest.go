package wfm

import (
	"context"
	"fmt"
	"mime"
	"net/http"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/margolite/margolite/agent/margo"
)

// Manifest is a state manifest as it came.
type Manifest struct {
	*margo.StateManifest
	Raw    []byte        // the exact bytes, decoded
	ETag   string        // as received, for the next poll; may be empty, weak or odd
	Digest digest.Digest // of Raw, computed here; what comparisons should use
	Date   time.Time     // the WFM's present; zero if it gave none
}

// Manifest polls the desired state. With the ETag of the manifest that the
// caller holds, the error is ErrNotModified as long as that is the current one.
// Whether the version may be accepted is for the caller to say.
func (c *Client) Manifest(ctx context.Context, etag string) (*Manifest, error) {
	const op = "get state manifest"
	header := http.Header{
		"Accept":          {margo.ManifestMediaType}, // DS-03; one type only, so that no signed form comes
		"Accept-Encoding": {"gzip"},
	}
	if etag != "" {
		header.Set("If-None-Match", etag) // DS-04
	}
	a, err := c.do(ctx, request{op: op, method: http.MethodGet, url: c.endpoint("api/v1/deployments"), header: header, limit: c.limits.Manifest})
	switch {
	case err != nil:
		return nil, err
	case a.status == http.StatusNotModified:
		return nil, ErrNotModified
	}
	if err := c.checkManifestType(a.header.Get("Content-Type")); err != nil {
		return nil, fmt.Errorf("cannot %s: %w", op, err)
	}
	parsed, err := margo.ParseStateManifest(a.body)
	if err != nil {
		return nil, err
	}
	m := &Manifest{StateManifest: parsed, Raw: a.body, ETag: a.header.Get("ETag"), Digest: digest.FromBytes(a.body)}
	m.Date, _ = http.ParseTime(a.header.Get("Date"))
	if want := `"` + m.Digest.String() + `"`; m.ETag != want {
		c.oddETag.Do(func() {
			c.log.Warn("the WFM's ETag is not the digest of its state manifest; the digest is used", "etag", m.ETag, "digest", m.Digest)
		})
	}
	return m, nil
}

// checkManifestType applies A-20: a signed manifest or a page must not be
// parsed as a plain one.
func (c *Client) checkManifestType(contentType string) error {
	mediaType, _, err := mime.ParseMediaType(contentType)
	switch {
	case err == nil && mediaType == margo.ManifestMediaType:
		return nil
	case err == nil && mediaType == "application/json":
		c.oddContentType.Do(func() {
			c.log.Warn("the WFM sends its state manifest with another content type", "type", mediaType, "want", margo.ManifestMediaType)
		})
		return nil
	}
	return fmt.Errorf("%w: Content-Type %.100q", ErrContentType, contentType)
}
