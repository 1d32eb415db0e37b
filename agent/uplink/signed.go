package uplink

import (
	"context"
	"errors"
	"sync/atomic"

	"github.com/margolite/margolite/agent/control"
	"github.com/margolite/margolite/agent/identity"
	"github.com/margolite/margolite/agent/wfm"
)

// signed is the way of the revisions before rc.3: the server shows an ordinary certificate; the
// device signs its requests and has an id from the WFM.
type signed struct {
	connection
	unknown atomic.Bool // the WFM no longer knows the id
}

func newSigned(o Options, url string, d Device) *signed {
	w := &signed{connection: connection{device: d, url: url, options: o, files: []string{o.Certificate, o.Key, o.CA}}}
	w.load = w.read
	return w
}

func (w *signed) open(ctx context.Context) (api, error) {
	w.opening.Lock()
	defer w.opening.Unlock()
	now, err := w.follow()
	if err != nil {
		return nil, err
	}
	if w.options.ClientID == "" && (now.id == "" || now.record.Certificate != now.device.Fingerprint() || w.unknown.Load()) {
		next, err := w.onboard(ctx, now)
		if err != nil {
			return nil, w.blame(now, err)
		}
		w.use(next)
		w.unknown.Store(false)
		w.device.Logger.Info("the WFM knows this device", "client", next.id)
	}
	return w.current.Load().client, nil
}

func (w *signed) read() (*link, error) {
	id, err := identity.LoadDevice(identity.Options{
		Certificate: w.options.Certificate, Key: w.options.Key, Now: w.device.Clock.Now,
	})
	if err != nil {
		return nil, err
	}
	record, err := readClient(w.device.Records)
	if err != nil {
		w.device.Logger.Warn("device onboarded again", "error", err)
	}
	if record.URL != w.url {
		record = client{URL: w.url} // the present record belongs to another WFM
	}
	if w.options.ClientID != "" {
		record.ID = w.options.ClientID
	}
	w.warn(id.Warnings())
	return w.meet(id, record)
}

func (w *signed) meet(id *identity.Device, record client) (*link, error) {
	config, err := w.device.serverTLS(w.options, record.Root, w.url)
	if err != nil {
		return nil, err
	}
	o := w.device.client(w.options, w.url)
	o.TLS, o.Dialect, o.ClientID, o.Habits, o.Sign = config, w.options.Revision, record.ID, record.Habits, id.Sign
	c, err := wfm.New(o)
	if err != nil {
		return nil, err
	}
	return w.link(id, c, record), nil
}

func (w *signed) link(id *identity.Device, c *wfm.Client, record client) *link {
	// A new id starts a new count of versions.
	return &link{client: c, scope: w.url + "#" + record.ID, id: record.ID, device: id, record: record}
}

// onboard introduces the device to the WFM and keeps the id that it assigns (AUTH-04, AUTH-05). It
// can safely be repeated after a power cut before the id was kept.
func (w *signed) onboard(ctx context.Context, now *link) (*link, error) {
	id, err := now.client.Onboard(ctx, now.device.CertificatePEM())
	if err != nil {
		return nil, err
	}
	record := client{URL: w.url, ID: id, Certificate: now.device.Fingerprint(), Root: now.record.Root}
	if w.options.CA == "" && len(record.Root) == 0 {
		record.Root = w.root(ctx, now)
	}
	if err := record.keep(w.device.Records); err != nil {
		return nil, err
	}
	if len(record.Root) == len(now.record.Root) {
		// It knows that nothing was reported to this WFM yet.
		return w.link(now.device, now.client, record), nil
	}
	return w.meet(now.device, record)
}

// root asks the WFM, over an already trusted connection, for its own anchor, and returns it if it
// verifies that same WFM: from then on no other anchor is trusted (AUTH-02). A WFM may have none.
func (w *signed) root(ctx context.Context, now *link) []byte {
	root, err := now.client.RootCertificate(ctx)
	if err != nil {
		w.device.Logger.Debug("the WFM provides no root certificate", "error", err)
		return nil
	}
	next, err := w.meet(now.device, client{URL: w.url, Root: root})
	if err == nil {
		_, err = next.client.RootCertificate(ctx)
		next.client.CloseIdle()
	}
	if err != nil {
		w.device.Logger.Warn("the WFM's root certificate does not match its server certificate; ignoring it", "error", err)
		return nil
	}
	return root
}

func (w *signed) ended(err error) error {
	if errors.Is(err, wfm.ErrClientUnknown) {
		w.unknown.Store(true)
	}
	w.keepHabits()
	return w.blame(w.current.Load(), err)
}

func (w *signed) keepHabits() {
	now := w.current.Load()
	if now.client.Habits() == now.record.Habits {
		return
	}
	next := *now
	next.record.Habits = now.client.Habits()
	if err := next.record.keep(w.device.Records); err != nil {
		w.device.Logger.Warn("cannot save what this WFM supports for the next start", "error", err)
		return
	}
	w.current.CompareAndSwap(now, &next)
}

// blame names the device's clock if it is the likely cause: each signature contains a time.
func (w *signed) blame(a *link, err error) error {
	if !errors.Is(err, wfm.ErrUnauthenticated) {
		return err
	}
	if skew := skewOf(a.client, w.device.Clock.Now()); skew != "" {
		return &clockError{err, skew}
	}
	return err
}

// probe does not onboard the device: the operator decides that by starting the agent.
func (w *signed) probe(ctx context.Context) (string, error) {
	w.opening.Lock()
	next, err := w.follow()
	w.opening.Unlock()
	if err != nil {
		return "", err
	}
	_, err = next.client.RootCertificate(ctx)
	if _, answered := errors.AsType[*wfm.Error](err); err != nil && !answered {
		return "", err
	}
	return w.url + " is reachable; whether it knows this device was not checked", nil
}

func (w *signed) describe(s *control.IdentityStatus) {
	now := w.current.Load()
	if now == nil {
		return
	}
	s.Client = now.id
	describeCertificate(s, now.device.Expiry(w.device.Clock.Now()), now.device.Warnings())
	if skew := skewOf(now.client, w.device.Clock.Now()); skew != "" {
		s.Warnings = append(s.Warnings, control.Advice{Text: skew, Mend: mendClock})
	}
}
