package uplink

import (
	"context"
	"sync"

	"github.com/margolite/margolite/agent/identity"
	"github.com/margolite/margolite/agent/wfm"
)

// gateway is the way to a WFM of rc.3 through a gateway that terminates TLS: it shows
// an ordinary certificate, and wants a password or a token.
type gateway struct {
	still
	device  Device
	url     string
	options Options

	mu      sync.Mutex
	client  *wfm.Client // nil: to be made
	watched files
}

func newGateway(o Options, url string, d Device) *gateway {
	return &gateway{device: d, url: url, options: o, watched: files{names: []string{o.CA}}}
}

func (w *gateway) open(context.Context) (api, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if replaced := w.watched.replaced(); w.client != nil && !replaced {
		return w.client, nil
	}
	client, err := w.connect()
	switch {
	case err == nil:
		w.watched.accepted()
		if w.client != nil {
			w.client.CloseIdle()
		}
		w.client = client
	case w.client == nil:
		return nil, err
	default:
		w.watched.refused(err, w.device.Logger)
	}
	return w.client, nil
}

func (w *gateway) connect() (*wfm.Client, error) {
	o, err := w.device.client(w.options, w.url)
	if err != nil {
		return nil, err
	}
	o.TLS = o.OtherOrigins
	return wfm.New(o)
}

func (w *gateway) ended(err error) error {
	w.device.learnEarly(err, w.options, nil, w.url)
	return err
}

func (w *gateway) scope() string { return w.url }

func (w *gateway) audience() string { return w.url }

func (w *gateway) probe(ctx context.Context) (string, error) {
	return reach(ctx, w, "is reachable; the first poll shows whether it accepts the credentials")
}

func (w *gateway) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.client != nil {
		w.client.CloseIdle()
	}
}

// header gives the value of the header of this name, nil where none is wanted.
func (a Authorization) header() func() (string, error) {
	switch {
	case a.Basic != "":
		return identity.BasicFile(a.Basic)
	case a.Bearer != "":
		return identity.BearerFile(a.Bearer)
	}
	return nil
}
