package wfm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"

	"github.com/opencontainers/go-digest"

	"github.com/margolite/margolite/agent/margo"
)

// What the choice between the bundle and single documents counts with.
const (
	roundTrip       = 4 << 10 // bytes that could have been received while waiting for an answer
	assumedDocument = 2 << 10 // size of a document that the manifest gives none for
)

// Documents fetches deployment documents that the manifest refers to, as the
// bundle or one by one, whichever moves less; what one way does not give, the
// other is asked for once (DS-12). The result holds every document needed by
// its digest, verified; or there is an error and no result.
func (c *Client) Documents(ctx context.Context, m *Manifest, need []margo.DeploymentRef) (map[digest.Digest][]byte, error) {
	f := &fetch{client: c, manifest: m.StateManifest, got: make(map[digest.Digest][]byte)}
	for _, ref := range need {
		if _, known := f.got[ref.Digest]; !known {
			f.got[ref.Digest] = nil
			f.need = append(f.need, ref)
		}
	}
	if len(f.need) == 0 {
		return f.got, nil
	}

	ways := []func(context.Context) error{f.singles, f.bundle}
	switch {
	case m.Bundle == nil:
		ways = ways[:1]
	case f.bundleFirst():
		ways[0], ways[1] = ways[1], ways[0]
	}
	var before error
	for _, way := range ways {
		err := way(ctx)
		switch {
		case err == nil && before != nil:
			c.log.Warn("the WFM's documents could be had in one way only", "error", before)
			return f.got, nil
		case err == nil:
			return f.got, nil
		case before != nil:
			return nil, fmt.Errorf("%w; and %w", before, err)
		case !otherWayMayHelp(err):
			return nil, err
		}
		before = err
	}
	return nil, before
}

// otherWayMayHelp reports whether it is the content that is wrong: a WFM that
// cannot be reached, or refuses, will do so either way.
func otherWayMayHelp(err error) bool {
	for _, content := range []error{ErrSuperseded, ErrDigestMismatch, ErrTooLarge, ErrBundle, errEncoding, io.ErrUnexpectedEOF} {
		if errors.Is(err, content) {
			return true
		}
	}
	return false
}

// fetch is one call of Documents.
type fetch struct {
	client   *Client
	manifest *margo.StateManifest
	need     []margo.DeploymentRef
	got      map[digest.Digest][]byte // nil: still missing

	// template: URLs of the manifest are known not to work, those made from the
	// base URL are.
	template bool
}

// bundleFirst weighs bytes and round trips. Sizes are hints: a wrong one makes
// the transfer longer, never the result different (DS-13).
func (f *fetch) bundleFirst() bool {
	if f.manifest.Bundle.SizeBytes > uint64(f.client.limits.Bundle) {
		return false
	}
	if len(f.need) == len(f.manifest.Deployments) {
		return true // the first sync, or as good as
	}
	bundle := f.manifest.Bundle.SizeBytes
	if bundle == 0 {
		bundle = weight(f.manifest.Deployments)
	}
	return bundle+roundTrip < weight(f.need)+uint64(len(f.need))*roundTrip
}

func weight(refs []margo.DeploymentRef) uint64 {
	var sum uint64
	for _, ref := range refs {
		size := ref.SizeBytes
		if size == 0 {
			size = assumedDocument
		}
		sum += min(size, 1<<32) // keeps a nonsensical hint from overflowing
	}
	return sum
}

func (f *fetch) singles(ctx context.Context) error {
	limits := f.client.limits
	var total int64
	for _, ref := range f.need {
		if f.got[ref.Digest] != nil {
			continue
		}
		op := fmt.Sprintf("get document %s of deployment %s", ref.Digest, ref.ID)
		path, err := f.client.documentPath(ref.ID, ref.Digest.String())
		if err != nil {
			return fmt.Errorf("cannot %s: %w", op, err)
		}
		a, err := f.get(ctx, ref.URL, path, request{
			op:     op,
			method: http.MethodGet,
			header: http.Header{"Accept-Encoding": {"gzip"}},
			limit:  limits.Document,
		})
		if err != nil {
			return err
		}
		if digest.FromBytes(a.body) != ref.Digest {
			return fmt.Errorf("cannot %s: %w", op, ErrDigestMismatch)
		}
		if total += int64(len(a.body)); total > limits.Expanded {
			return fmt.Errorf("cannot %s: %w: all documents together have more than %d bytes", op, ErrTooLarge, limits.Expanded)
		}
		f.got[ref.Digest] = a.body
	}
	return nil
}

func (f *fetch) bundle(ctx context.Context) error {
	limits, ref := f.client.limits, f.manifest.Bundle
	op := fmt.Sprintf("get bundle %s", ref.Digest)
	path, err := f.client.bundlePath(ref.Digest.String())
	if err != nil {
		return fmt.Errorf("cannot %s: %w", op, err)
	}
	a, err := f.get(ctx, ref.URL, path, request{
		op:     op,
		method: http.MethodGet,
		header: http.Header{"Accept-Encoding": {"identity"}},
		limit:  limits.Bundle,
		raw:    true,
	})
	if err != nil {
		return err
	}
	archive, err := unwrapBundle(a, ref.Digest, limits.Bundle)
	if err != nil {
		return fmt.Errorf("cannot %s: %w", op, err)
	}
	documents, err := readBundle(archive, f.manifest.Deployments, limits)
	if err != nil {
		return fmt.Errorf("cannot use bundle %s: %w", ref.Digest, err)
	}
	for _, ref := range f.need {
		f.got[ref.Digest] = documents[ref.Digest]
	}
	return nil
}

// get fetches an artifact from the URL that the manifest gives or, where that
// leads nowhere, from the path that the interface defines below the base URL:
// some servers are mounted under a prefix and do not say so in their URLs.
func (f *fetch) get(ctx context.Context, written, path string, r request) (*answer, error) {
	var urls []*url.URL
	if u := f.resolve(written); u != nil && !f.template {
		urls = append(urls, u)
	}
	if u := f.client.endpoint(path); len(urls) == 0 || urls[0].String() != u.String() {
		urls = append(urls, u)
	}
	var (
		a   *answer
		err error
	)
	for i, u := range urls {
		r.url = u
		a, err = f.client.do(ctx, r)
		if err == nil {
			f.template = f.template || i > 0
			return a, nil
		}
		var refused *Error
		if !errors.As(err, &refused) || refused.Status != http.StatusNotFound {
			return nil, err
		}
		err = fmt.Errorf("%w: %w", ErrSuperseded, refused)
	}
	return nil, err
}

// resolve gives the URL that the manifest wrote, or nil where it leads away
// from the WFM: the device shows its certificate there only.
func (f *fetch) resolve(written string) *url.URL {
	u, err := f.client.base.Parse(written)
	if err != nil || !f.client.sameOrigin(u) {
		f.client.oddOrigin.Do(func() {
			f.client.log.Warn("the state manifest refers to another origin, which is not used", "url", written)
		})
		return nil
	}
	u.Fragment = ""
	return u
}
