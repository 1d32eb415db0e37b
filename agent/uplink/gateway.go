package uplink

import (
	"context"

	"github.com/margolite/margolite/agent/identity"
	"github.com/margolite/margolite/agent/wfm"
)

// gateway is the way to a WFM of rc.3 through a gateway that terminates TLS: it shows an ordinary
// certificate and requires a password or token.
type gateway struct{ connection }

func newGateway(o Options, url string, d Device) *gateway {
	w := &gateway{connection{device: d, url: url, options: o, files: []string{o.CA}}}
	w.load = w.connect
	return w
}

func (w *gateway) connect() (*link, error) {
	config, err := w.device.serverTLS(w.options, nil, w.url)
	if err != nil {
		return nil, err
	}
	o := w.device.client(w.options, w.url)
	o.TLS = config
	client, err := wfm.New(o)
	return &link{client: client, scope: w.url}, err
}

func (w *gateway) probe(ctx context.Context) (string, error) {
	return reach(ctx, w, "is reachable; the first poll shows whether it accepts the credentials")
}

// header returns a function for the Authorization header; nil if none is configured.
func (a Authorization) header() func() (string, error) {
	switch {
	case a.Basic != "":
		return identity.BasicFile(a.Basic)
	case a.Bearer != "":
		return identity.BearerFile(a.Bearer)
	}
	return nil
}
