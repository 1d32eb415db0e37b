package wfmsim

import (
	"crypto/tls"
	"io"
	"log"
	"net/http"
	"strings"
	"sync"

	"github.com/opencontainers/go-digest"

	"github.com/margolite/margolite/agent/margo"
	"github.com/margolite/margolite/test/wfmsim/internal/serving"
	"github.com/margolite/margolite/test/wfmsim/record"
)

// Depot is another https server that holds documents and bundles, as a content
// delivery network would. It belongs to others: nothing that a device is known by
// is to be shown to it. It serves whoever asks and remembers what it was shown.
type Depot struct {
	wfm      *Server
	server   serving.Server
	requests *record.Log

	mu    sync.Mutex
	shown []string
}

func newDepot(wfm *Server, certificate tls.Certificate) *Depot {
	d := &Depot{wfm: wfm, requests: record.New(record.Options{Header: []string{"Range", "If-Range", "User-Agent"}})}
	config := &tls.Config{
		MinVersion:   tls.VersionTLS12,
		NextProtos:   []string{"http/1.1"},
		Certificates: []tls.Certificate{certificate},
		Time:         wfm.now,
		ClientAuth:   tls.RequestClientCert, // whoever has one at hand shows it
	}
	d.server = serving.Server{Handler: http.HandlerFunc(d.route), TLS: config, Log: log.New(io.Discard, "", 0)}
	return d
}

// URL is the origin.
func (d *Depot) URL() string { return "https://" + d.server.Address() }

// Requests is the memory of what was asked.
func (d *Depot) Requests() *record.Log { return d.requests }

// Shown lists the credentials that came with requests, each as what it was and
// where; there should be none.
func (d *Depot) Shown() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return append([]string{}, d.shown...)
}

// note remembers credentials, not their values.
func (d *Depot) note(r *http.Request) {
	var shown []string
	for _, name := range []string{"Authorization", "Proxy-Authorization", "Cookie", "Signature", "Signature-Input"} {
		if r.Header.Get(name) != "" {
			shown = append(shown, name+" at "+r.URL.Path)
		}
	}
	if r.TLS != nil && len(r.TLS.PeerCertificates) > 0 {
		shown = append(shown, "a certificate at "+r.URL.Path)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.shown) < maxShown {
		d.shown = append(d.shown, shown...)
	}
}

// maxShown bounds what is remembered of credentials.
const maxShown = 1000

func (d *Depot) route(w http.ResponseWriter, r *http.Request) {
	d.note(r)
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		parts := strings.Split(strings.TrimPrefix(r.URL.Path, "/"), "/")
		c := call{w: w, r: r}
		switch {
		case r.Method != http.MethodGet && r.Method != http.MethodHead:
			http.Error(w, "only to be read", http.StatusMethodNotAllowed)
			return
		case len(parts) == 4 && parts[1] == "deployments":
			name := digest.Digest(parts[3])
			if body, ok := d.wfm.document(parts[0], parts[2], name); ok {
				c.serve("application/yaml", quoted(name), body)
				return
			}
		case len(parts) == 3 && parts[1] == "bundles":
			name := digest.Digest(parts[2])
			if body, ok := d.wfm.bundleBytes(parts[0], name); ok {
				c.serve(margo.BundleMediaType, quoted(name), body)
				return
			}
		}
		http.NotFound(w, r)
	})
	d.requests.Wrap(EndpointDepot, d.wfm.faults.Wrap(EndpointDepot, handler)).ServeHTTP(w, r)
}
