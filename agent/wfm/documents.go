package wfm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"

	"github.com/opencontainers/go-digest"

	"github.com/margolite/margolite/agent/margo"
)

// Estimates for the choice between the bundle and single documents.
const (
	roundTrip       = 4 << 10 // bytes that could have been received while waiting for an answer
	assumedDocument = 2 << 10 // size of a document without one in the manifest
)

// Documents fetches deployment documents that the manifest refers to, as the bundle or one by
// one, whichever moves less, and once the other way if the first fails (DS-12). What does not
// match its digest ends the fetch: package margo says why. Each needed one is given to keep once,
// as soon as it is verified (AD-01), one at a time; keep must not hold on to the bytes. Those of
// a bundle are given only when it is right as a whole.
//
// nil says that all of them were given. With an error some may be missing; an error of keep ends
// the fetch and is returned unchanged.
func (c *Client) Documents(
	ctx context.Context, m *Manifest, need []margo.DeploymentRef, keep func(d digest.Digest, document []byte) error,
) error {
	f := &fetch{client: c, manifest: m.StateManifest, missing: make(map[digest.Digest]bool), keep: keep}
	for _, ref := range need {
		if !f.missing[ref.Digest] {
			f.missing[ref.Digest] = true
			f.need = append(f.need, ref)
		}
	}
	if len(f.need) == 0 {
		return nil
	}

	ways := []way{singles, bundle}
	switch {
	case m.Bundle == nil, c.options.Spool == nil && !c.options.Strict:
		ways = ways[:1]
	case c.options.Strict:
		ways = ways[1:]
	case f.bundleFirst():
		slices.Reverse(ways)
	}
	var before error
	for _, way := range ways {
		err := f.by(ctx, way)
		if statusOf(err) >= 500 {
			c.failedWay.Store(int32(way))
		}
		switch {
		case f.kept != nil:
			return f.kept
		case err == nil && before != nil:
			c.options.Logger.Warn("the WFM served the documents in one form only; wfm.strict: true refuses a manifest whose bundle is missing", "error", before)
			return nil
		case err == nil:
			return nil
		case before != nil:
			return fmt.Errorf("%w; and %w", before, err)
		case !otherWayMayHelp(err):
			return err
		}
		before = err
	}
	return before
}

type way int32

const (
	singles way = iota + 1
	bundle
)

func (f *fetch) by(ctx context.Context, w way) error {
	if w == bundle {
		return f.bundle(ctx)
	}
	return f.singles(ctx)
}

// otherWayMayHelp reports whether the fault lies in this artifact, in the room for it, or in the
// WFM's serving it. A WFM that is unreachable, or refuses, will do so either way.
func otherWayMayHelp(err error) bool {
	var failed *Error
	switch {
	case errors.Is(err, ErrDigestMismatch): // DS-18
		return false
	case errors.As(err, &failed) && failed.Status >= 500:
		return failed.RetryAfter == 0 // ERR-04; after that time the other way goes first
	}
	return isOfArtifact(err)
}

func isOfArtifact(err error) bool {
	for _, content := range []error{
		ErrSuperseded, ErrDigestMismatch, ErrTooLarge, ErrBundle, errEncoding, errSpool, errRange, io.ErrUnexpectedEOF,
	} {
		if errors.Is(err, content) {
			return true
		}
	}
	return false
}

type fetch struct {
	client   *Client
	manifest *margo.StateManifest
	need     []margo.DeploymentRef
	missing  map[digest.Digest]bool
	keep     func(digest.Digest, []byte) error
	kept     error // of keep: it ends the fetch

	// template: the manifest's URLs are known not to work, those made from the base URL are.
	template bool
}

// give gives a verified document to the caller if it is still missing.
func (f *fetch) give(d digest.Digest, document []byte) error {
	if !f.missing[d] {
		return nil
	}
	if f.kept = f.keep(d, document); f.kept != nil {
		return f.kept
	}
	delete(f.missing, d)
	if c := f.client; c.options.Dialect == margo.RC1 && !c.Habits().CapitalisedStates {
		if parsed, _ := margo.ParseDeployment(document); parsed != nil && parsed.Sandbox {
			c.learn(func(h *Habits) { h.CapitalisedStates = true })
		}
	}
	return nil
}

// bundleFirst weighs bytes and round trips. Sizes are hints: a wrong one makes the transfer
// longer, never the result different (DS-13).
func (f *fetch) bundleFirst() bool {
	if f.client.garbled.Load() {
		return true
	}
	if failed := f.client.failedWay.Swap(0); failed != 0 {
		return way(failed) == singles
	}
	if f.manifest.Bundle.SizeBytes > uint64(f.client.options.Limits.Bundle) {
		return false
	}
	if len(f.need) == len(f.manifest.Deployments) {
		return true // the first sync, or as good as
	}
	bundle := f.manifest.Bundle.SizeBytes
	if bundle == 0 {
		bundle = weight(f.manifest.Deployments)
	}
	if came, err := f.client.options.Spool.Size(f.manifest.Bundle.Digest); err == nil {
		bundle -= min(bundle, uint64(came)) // the transfer resumes there
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
	limits := f.client.options.Limits
	var total int64
	for _, ref := range f.need {
		if !f.missing[ref.Digest] {
			continue
		}
		r := request{
			op:       fmt.Sprintf("get document %s of deployment %s", ref.Digest, ref.ID),
			resource: "deployments/" + ref.ID + "/" + ref.Digest.String(),
			limit:    limits.Document,
		}
		var document []byte
		err := f.try(ctx, ref.URL, r, func(r request) error {
			a, err := f.client.do(ctx, r)
			if err != nil {
				return err
			}
			if digest.FromBytes(a.body) != ref.Digest { // DS-09, DS-18
				f.client.garbled.Store(true)
				return fmt.Errorf("cannot %s: %w", r.op, ErrDigestMismatch)
			}
			document = a.body
			return nil
		})
		if err != nil {
			return err
		}
		if total += int64(len(document)); total > limits.Expanded {
			return fmt.Errorf("cannot %s: %w: all documents together have more than %d bytes", r.op, ErrTooLarge, limits.Expanded)
		}
		if err := f.give(ref.Digest, document); err != nil {
			return err
		}
	}
	return nil
}

// bundle reads the bundle twice: only its end shows whether it may be used (DS-16).
func (f *fetch) bundle(ctx context.Context) error {
	select {
	case f.client.spooling <- struct{}{}:
		defer func() { <-f.client.spooling }()
	case <-ctx.Done():
		return ctx.Err()
	}
	limits, ref := f.client.options.Limits, f.manifest.Bundle
	r := request{
		op:       fmt.Sprintf("get bundle %s", ref.Digest),
		resource: "bundles/" + ref.Digest.String(),
		header:   http.Header{"Accept-Encoding": {"identity"}},
		limit:    limits.Bundle,
	}
	p, err := openPart(f.client.options.Spool, ref.Digest, limits.Bundle)
	if err != nil {
		return fmt.Errorf("cannot %s: %w", r.op, err)
	}
	err = f.try(ctx, ref.URL, r, func(r request) error {
		return f.client.receive(ctx, r, p)
	})
	if err != nil {
		return err
	}
	for _, each := range []func(digest.Digest, []byte) error{
		func(digest.Digest, []byte) error { return ctx.Err() },
		f.give,
	} {
		if err = f.read(p, each); err != nil {
			break
		}
	}
	if errors.Is(err, ErrBundle) {
		err = errors.Join(fmt.Errorf("cannot use bundle %s: %w", ref.Digest, err), p.restart())
	}
	return err
}

func (f *fetch) read(p *part, each func(digest.Digest, []byte) error) error {
	archive, err := p.open()
	if err != nil {
		return err
	}
	defer archive.Close()
	return readBundle(archive, f.manifest.All(), f.client.options.Limits, each)
}

// try fetches an artifact from the manifest's URL or, if that leads nowhere, from its resource
// below the base URL: some servers omit their mount prefix from URLs, some still write
// those of an earlier revision. get is called with the request, and checks the answer.
func (f *fetch) try(ctx context.Context, written string, r request, get func(request) error) error {
	own, err := f.client.endpoint(r.resource)
	if err != nil {
		return fmt.Errorf("cannot %s: %w", r.op, err)
	}
	urls := []*url.URL{own}
	if u := f.resolve(written); u != nil && u.String() != own.String() {
		urls = []*url.URL{u, own}
	}
	for i, u := range urls {
		r.url = u
		err = get(r)
		status := statusOf(err)
		switch {
		case err == nil:
			f.template = f.template || i > 0
			return nil
		case ctx.Err() != nil:
			return err
		case status == http.StatusNotFound, status == http.StatusGone:
			err = fmt.Errorf("%w: %w", ErrSuperseded, err)
		case !isOfArtifact(err):
			return err
		}
	}
	return err
}

// resolve gives the URL that the manifest wrote, or nil if it is unusable. One that leads to
// another server is not followed: servers near a device may trust it, and a WFM has to serve the
// interface's own path anyway.
func (f *fetch) resolve(written string) *url.URL {
	if written == "" || f.template {
		return nil
	}
	u, err := f.client.base.Parse(written)
	if err != nil || !f.client.sameOrigin(u) {
		f.client.warnOnce("the state manifest has a URL that does not lead to the WFM; asking for the path of the interface")
		return nil
	}
	u.Fragment = ""
	return u
}
