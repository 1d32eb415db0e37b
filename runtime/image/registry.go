package image

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"time"

	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/margolite/margolite/runtime/pemfile"
	"github.com/margolite/margolite/runtime/registry"
	"github.com/margolite/margolite/runtime/tree"
)

// Registry is the configuration of one registry.
type Registry struct {
	PlainHTTP   bool     `yaml:"plainHTTP"`                   // the host itself speaks HTTP without TLS
	CA          string   `yaml:"ca" is:"path?"`               // file of PEM certificates, trusted beside those of the system
	Credentials string   `yaml:"credentials" is:"path?"`      // file in the form of Docker's config.json, without helpers
	Mirrors     []string `yaml:"mirrors" is:"host" most:"64"` // hosts that are asked before this one, in this order
	Insecure    bool     `yaml:"insecure"`                    // anybody is believed to be the host: its certificate is not verified
	Certificate string   `yaml:"certificate" is:"path?"`      // file of this device's certificate (PEM), shown to who wants one
	Key         string   `yaml:"key" is:"secret?"`            // file of its private key (PEM)
}

const (
	connectTimeout = 15 * time.Second
	answerTimeout  = 30 * time.Second
	idleTimeout    = 10 * time.Second // after which a connection is closed
	maxAuthority   = 1 << 20          // bytes of a file with certificates or a key
	maxHeader      = 256 << 10        // bytes of the header of an answer
)

// Check reads the files that the configuration of a registry, host, names, and returns problems.
func (r Registry) Check(host string) error {
	if _, err := r.tls(host); err != nil {
		return err
	}
	_, _, err := r.credentials(registry.HostOf(host), "")
	return err
}

// tls reads the authorities and the client certificate.
func (r Registry) tls(host string) (*tls.Config, error) {
	trust, err := readAuthorities(r.CA)
	if err != nil {
		return nil, fmt.Errorf("cannot trust registry %s: %w", host, err)
	}
	own, err := readCertificate(r.Certificate, r.Key)
	if err != nil {
		return nil, fmt.Errorf("cannot use the client certificate for registry %s: %w", host, err)
	}
	return &tls.Config{
		RootCAs:            trust,
		Certificates:       own,
		MinVersion:         tls.VersionTLS12,
		InsecureSkipVerify: r.Insecure, // the operator says so
	}, nil
}

// session is the hosts of a repository for one call. It reads configured files, which may change.
type session []host // archives, the mirrors, then the registry itself

type host struct {
	name    string
	network bool // its content comes from the network, and needs a slot
	images  *Images
	others  bool // there are other hosts to ask after it
	source
}

// Resolve is that of the source, with a deadline.
func (h host) Resolve(ctx context.Context, ref reference.Named) (v1.Descriptor, error) {
	ctx, cancel := h.asking(ctx)
	defer cancel()
	return h.source.Resolve(ctx, ref)
}

func (h host) asking(ctx context.Context) (context.Context, context.CancelFunc) {
	if !h.network {
		return ctx, func() {}
	}
	patience := 2 * h.images.rate.Window
	return context.WithTimeoutCause(ctx, patience, fmt.Errorf("%s did not answer within %s", h.name, patience))
}

// source has images: a registry, or archives.
type source interface {
	// Resolve describes the manifest or index of a reference with a tag or digest.
	Resolve(ctx context.Context, ref reference.Named) (v1.Descriptor, error)
	// Open reads a part of an image from an offset to its end, unverified.
	Open(ctx context.Context, in reference.Named, desc v1.Descriptor, offset int64) (io.ReadCloser, error)
	// Referrers lists what refers, or may refer, to a manifest.
	Referrers(ctx context.Context, in reference.Named, to digest.Digest) ([]v1.Descriptor, error)
}

func (i *Images) open(named reference.Named) (session, error) {
	var s session
	domain := reference.Domain(named)
	names := append(slices.Clone(i.o.Registries[domain].Mirrors), domain)
	for n, name := range names {
		client, err := i.httpClient(name)
		if err != nil {
			return nil, err
		}
		config := i.o.Registries[name]
		s = append(s, host{name: name, network: true, images: i, others: n < len(names)-1, source: registry.New(registry.Options{
			Host:      registry.HostOf(name),
			PlainHTTP: config.PlainHTTP,
			Client:    client,
			Pace:      &i.pace,
			Credentials: func(host string) (user, secret string, err error) {
				return config.credentials(host, reference.Path(named))
			},
		})})
	}
	return s, nil
}

// openFor opens the hosts of an image, preloaded archives first. There may be none.
func (i *Images) openFor(w Want) (session, error) {
	named, err := parse(w.Ref)
	if err != nil {
		return nil, bad(err)
	}
	var s session
	if w.Policy != Never {
		if s, err = i.open(named); err != nil {
			return nil, err
		}
	}
	if archives := i.preload.archives(); len(archives) > 0 {
		s = append(session{{name: i.preload.dir, images: i, source: archives}}, s...)
	}
	return s, nil
}

// try asks the hosts in order until one succeeds. The error of the registry, the last, takes precedence.
func (s session) try(ctx context.Context, log *slog.Logger, ask func(host) error) error {
	last := len(s) - 1
	if last < 0 {
		return errNever
	}
	for _, mirror := range s[:last] {
		err := ask(mirror)
		if err == nil || ctx.Err() != nil {
			return err
		}
		log.Debug("mirror did not help", "mirror", mirror.name, "error", withoutQueries(err.Error()))
	}
	return ask(s[last])
}

// httpClient reaches one host, and hosts it refers to.
func (i *Images) httpClient(name string) (*http.Client, error) {
	config, err := i.o.Registries[name].tls(name)
	if err != nil {
		return nil, err
	}
	return &http.Client{Transport: guard{i.plain, &http.Transport{
		Proxy:                  http.ProxyFromEnvironment,
		DialContext:            newDialer(registry.HostOf(name), i.o.Registries).dial,
		TLSClientConfig:        config,
		TLSHandshakeTimeout:    connectTimeout,
		ResponseHeaderTimeout:  answerTimeout,
		DisableCompression:     true,
		MaxIdleConns:           i.o.AtOnce,
		IdleConnTimeout:        idleTimeout,
		MaxResponseHeaderBytes: maxHeader,
	}}}, nil
}

// guard allows plain HTTP only to configured hosts, also for redirects and token services.
type guard struct {
	plain map[string]bool // by host[:port] on the wire
	next  *http.Transport
}

func (g guard) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Scheme != "https" && !g.plain[r.URL.Host] {
		return nil, fmt.Errorf("%s: %w; set plainHTTP: true in registries.%[1]s", r.URL.Host, errPlainHTTP)
	}
	return g.next.RoundTrip(r)
}

// readAuthorities returns the system's authorities and those in file; nil: the system's only.
func readAuthorities(file string) (*x509.CertPool, error) {
	if file == "" {
		return nil, nil
	}
	data, err := tree.ReadFile(file, maxAuthority)
	if err != nil {
		return nil, err
	}
	pool, err := x509.SystemCertPool()
	if err != nil {
		pool = x509.NewCertPool()
	}
	authorities, err := pemfile.Certificates(data, maxAuthority)
	switch {
	case err != nil:
		return nil, fmt.Errorf("%s: %w", file, err)
	case len(authorities) == 0:
		return nil, fmt.Errorf("no certificate in %s", file)
	}
	for _, a := range authorities {
		pool.AddCert(a)
	}
	return pool, nil
}

func readCertificate(certificate, key string) ([]tls.Certificate, error) {
	if certificate == "" && key == "" {
		return nil, nil
	}
	var blocks [2][]byte
	for n, file := range []string{certificate, key} {
		data, err := tree.ReadFile(file, maxAuthority)
		if err == nil {
			blocks[n], err = pemfile.Tidy(data)
		}
		if err != nil {
			return nil, fmt.Errorf("cannot use %s: %w", file, err)
		}
	}
	pair, err := tls.X509KeyPair(blocks[0], blocks[1])
	if err != nil {
		return nil, fmt.Errorf("cannot use %s with %s: %w", certificate, key, err)
	}
	return []tls.Certificate{pair}, nil
}
