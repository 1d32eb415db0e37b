package registry

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/remotes"
	"github.com/containerd/containerd/v2/core/remotes/docker"
	"github.com/containerd/log"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/sirupsen/logrus"

	"github.com/margolite/margolite/runtime/fault"
)

const (
	// MaxManifest is the maximum size of a manifest or index in bytes, as registries limit it.
	MaxManifest  = 4 << 20
	maxRedirects = 10
	userAgent    = "margolite"
)

var (
	// ErrContent says that other content arrived than was requested.
	ErrContent = &fault.Error{Code: fault.Garbled, Err: errors.New("the registry sent different content")}
	// ErrOld says that there is only a manifest in Docker's first format, which cannot be verified.
	ErrOld = &fault.Error{Code: fault.InvalidPackage, Err: errors.New("its manifest format is too old to be verified; push it again")}
	// ErrPage says that something else answered for a registry, as captive portals and proxies do.
	ErrPage = errors.New("a captive portal answered instead")
	// errRange says that a registry does not send the rest of a part.
	errRange = fmt.Errorf("%w: it cannot continue the download", ErrContent)
)

// Options are the options of a Client.
type Options struct {
	Host      string       // on the wire, host[:port]: see HostOf
	PlainHTTP bool         // it speaks HTTP without TLS
	Client    *http.Client // how hosts are reached; only its transport is used
	Pace      *Pace        // nil: one of its own
	// Credentials returns, for a host on the wire, nothing, a user and password, or only a token.
	Credentials func(host string) (user, secret string, err error)
}

// Client reads from one host. It is safe for concurrent use. Besides the errors of this package
// and of the connection, it returns containerd's: errdefs.ErrNotFound for a missing object,
// remotes/errors.ErrUnexpectedStatus or docker.ErrInvalidAuthorization for other refusals.
type Client struct {
	host       string
	pace       *Pace
	resolver   remotes.Resolver
	authorizer *authorizer
}

// New returns a client for one host. It requests nothing yet.
func New(o Options) *Client {
	agent := http.Header{"User-Agent": {userAgent}}
	authorizing := func() docker.Authorizer {
		return docker.NewDockerAuthorizer(
			docker.WithAuthCreds(o.Credentials),
			docker.WithAuthHeader(agent),
			docker.WithAuthClient(&http.Client{
				Transport: tokens{o.Client.Transport, o.PlainHTTP}, CheckRedirect: Redirect, Timeout: tokenTimeout,
			}),
		)
	}
	c := &Client{
		host:       o.Host,
		pace:       cmp.Or(o.Pace, &Pace{}),
		authorizer: &authorizer{create: authorizing, current: authorizing(), turn: make(chan struct{}, 1)},
	}
	host := docker.RegistryHost{
		Client:       &http.Client{Transport: transport{o.Client.Transport}, CheckRedirect: c.redirect},
		Authorizer:   c.authorizer,
		Host:         o.Host,
		Scheme:       "https",
		Path:         "/v2",
		Capabilities: docker.HostCapabilityPull | docker.HostCapabilityResolve | docker.HostCapabilityReferrers,
	}
	if o.PlainHTTP {
		host.Scheme = "http"
	}
	c.resolver = docker.NewResolver(docker.ResolverOptions{
		Hosts:   func(string) ([]docker.RegistryHost, error) { return []docker.RegistryHost{host}, nil },
		Headers: agent,
	})
	return c
}

// HostOf returns the host of a registry on the wire, which differs from its name for Docker Hub.
func HostOf(registry string) string {
	host, _ := docker.DefaultHost(registry) // which never fails
	return host
}

// redirect keeps authorization from other ports and subdomains, to which net/http would pass it.
func (c *Client) redirect(next *http.Request, via []*http.Request) error {
	if err := Redirect(next, via); err != nil {
		return err
	}
	next.Header.Del("Authorization")
	return c.authorizer.Authorize(next.Context(), next)
}

// Resolve describes the manifest or index of a reference. For a tag, the registry is trusted.
func (c *Client) Resolve(ctx context.Context, ref reference.Named) (v1.Descriptor, error) {
	_, desc, err := c.resolver.Resolve(begin(ctx, &transfer{}), ref.String())
	if errors.As(err, new(*http.MaxBytesError)) {
		err = errBig
	}
	if err != nil {
		return v1.Descriptor{}, err
	}
	if images.IsIndexType(desc.MediaType) || images.IsManifestType(desc.MediaType) {
		return desc, nil
	}
	// Plain file servers and some proxies send a generic type; the manifest has its own.
	desc.MediaType = v1.MediaTypeImageManifest
	body, err := c.Open(ctx, ref, desc, 0)
	if err != nil {
		return v1.Descriptor{}, err
	}
	defer body.Close()
	data, err := io.ReadAll(io.LimitReader(body, desc.Size))
	if err != nil {
		return v1.Descriptor{}, err
	}
	if desc.Digest.Algorithm().FromBytes(data) != desc.Digest {
		return v1.Descriptor{}, fmt.Errorf("%w: it is not %s", ErrContent, desc.Digest)
	}
	desc.MediaType, err = FormOf(data)
	return desc, err
}

const schema1 = "application/vnd.docker.distribution.manifest.v1+"

// FormOf finds the media type of a manifest or index in its bytes.
func FormOf(data []byte) (string, error) {
	var form struct {
		SchemaVersion json.RawMessage `json:"schemaVersion"`
		MediaType     string          `json:"mediaType"`
		Manifests     json.RawMessage `json:"manifests"`
	}
	if err := json.Unmarshal(data, &form); err != nil {
		return "", fmt.Errorf("%w: cannot read manifest: %w", ErrContent, err)
	}
	switch mediaType := plain(form.MediaType); {
	case string(form.SchemaVersion) == "1", strings.HasPrefix(mediaType, schema1):
		return "", ErrOld
	case mediaType != "":
		return mediaType, nil
	case form.Manifests != nil:
		return v1.MediaTypeImageIndex, nil
	}
	return v1.MediaTypeImageManifest, nil
}

// Open reads a part of an image from an offset: a manifest or index, by its media type, or a
// blob. An interrupted download continues after a pause; io.EOF means that it is complete.
// Nothing is requested, and no registry error returned, before the first Read. URLs in the
// descriptor are ignored.
func (c *Client) Open(ctx context.Context, in reference.Named, desc v1.Descriptor, offset int64) (io.ReadCloser, error) {
	t := &transfer{part: true, size: desc.Size, pace: c.pace, key: c.host + " " + desc.Digest.String()}
	ctx = begin(ctx, t)
	fetcher, err := c.resolver.Fetcher(ctx, in.String())
	if err != nil {
		return nil, err
	}
	body, err := fetcher.Fetch(ctx, v1.Descriptor{MediaType: desc.MediaType, Digest: desc.Digest, Size: desc.Size})
	if err != nil {
		return nil, err
	}
	if _, err := body.(io.Seeker).Seek(offset, io.SeekStart); err != nil {
		return nil, errors.Join(err, body.Close())
	}
	return body, nil
}

// WithCounter has Open count bytes received, even discarded ones: some registries ignore ranges.
func WithCounter(ctx context.Context, bytes *atomic.Int64) context.Context {
	return context.WithValue(ctx, counterKey{}, bytes)
}

type counterKey struct{}

// Referrers lists what refers to a manifest, if anything. The answer is not verified.
func (c *Client) Referrers(ctx context.Context, in reference.Named, to digest.Digest) ([]v1.Descriptor, error) {
	t := &transfer{}
	ctx = begin(ctx, t)
	fetcher, err := c.resolver.Fetcher(ctx, in.String())
	if err != nil {
		return nil, err
	}
	list, err := fetcher.(remotes.ReferrersFetcher).FetchReferrers(ctx, to)
	if t.referrers != nil {
		return nil, t.referrers // containerd forgets this error when the fallback tag doesn't exist
	}
	if errors.As(err, new(*json.SyntaxError)) || errors.As(err, new(*json.UnmarshalTypeError)) {
		err = fmt.Errorf("%w: %w", ErrContent, err)
	}
	if err != nil {
		return nil, err
	}
	for n := range list {
		m := &list[n]
		if err := m.Digest.Validate(); err != nil {
			return nil, fmt.Errorf("%w: cannot read referrers: %w", ErrContent, err)
		}
		m.URLs, m.Data = nil, nil
	}
	return list, nil
}

// begin returns the context of one call, in which containerd logs nothing below a panic.
func begin(ctx context.Context, t *transfer) context.Context {
	t.came, _ = ctx.Value(counterKey{}).(*atomic.Int64)
	silent := &log.Entry{Logger: &logrus.Logger{Level: logrus.PanicLevel}}
	return context.WithValue(log.WithLogger(ctx, silent), transferKey{}, t)
}
