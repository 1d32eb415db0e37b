package uplink

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/margolite/margolite/agent/control"
	"github.com/margolite/margolite/agent/identity"
	"github.com/margolite/margolite/agent/wfm"
)

// mutual is the way of rc.3: both sides show an X.509-SVID.
type mutual struct {
	device  Device
	url     string
	options Options
	files   identity.Options
	bundles *identity.BundleSource // nil: the trust bundle is a file
	times   chronicle

	mu       sync.Mutex
	identity *identity.Identity
	client   *wfm.Client // nil: to be made
	watched  files
	anchors  files // of other servers
}

func newMutual(o Options, url string, d Device) (*mutual, error) {
	w := &mutual{device: d, url: url, options: o, times: chronicle{records: d.Records}, files: identity.Options{
		Certificate: o.Certificate, Key: o.Key, TrustBundle: o.TrustBundle,
		WFMIDs: o.IDs, TLS12: o.TLS12, Now: d.Clock.Now, WrongClock: d.Clock.Wrong,
	}}
	if fetched := strings.HasPrefix(o.TrustBundle, "https://"); fetched || o.Service.Discovery != "" {
		service := identity.ServiceOptions{
			Discovery: o.Service.Discovery, CA: cmp.Or(o.Service.CA, o.CA), Pins: o.Service.Pins,
			TLS12: o.TLS12, Now: d.Clock.Now, WrongClock: d.Clock.Wrong,
		}
		if fetched {
			service.Bundle, w.files.TrustBundle = o.TrustBundle, ""
		}
		s, err := identity.NewService(service)
		if err != nil {
			return nil, err
		}
		w.bundles = identity.NewBundleSource(identity.BundleOptions{
			Service: s, Keeper: keeper{d.Records}, Interval: o.Service.Refresh,
			Silence: d.Silence, Accepted: d.Wake, Now: d.Clock.Now, Logger: d.Logger,
		})
	}
	w.watched.names = []string{o.Certificate, o.Key, w.files.TrustBundle}
	w.anchors.names = []string{o.CA}
	return w, nil
}

func (w *mutual) open(context.Context) (api, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.follows(); err != nil {
		return nil, err
	}
	return w.client, nil
}

// follows makes the client, or brings it up to what the files are now. With an
// error there is none. The caller holds mu.
func (w *mutual) follows() error {
	replaced, moved := w.watched.replaced(), w.anchors.replaced()
	if w.client == nil {
		return w.load()
	}
	if replaced {
		if err := w.identity.Reload(); err != nil {
			w.watched.refused(err, w.device.Logger)
		} else {
			w.watched.accepted()
			w.device.Logger.Info("identity reloaded", "expires", w.identity.NotAfter())
			w.follow()
		}
	}
	if moved {
		former := w.client
		if err := w.connect(w.identity); err != nil {
			w.anchors.refused(err, w.device.Logger)
		} else {
			w.anchors.accepted()
			former.CloseIdle()
		}
	}
	return nil
}

func (w *mutual) load() error {
	files := w.files
	if _, err := os.Stat(files.TrustBundle); w.bundles != nil && errors.Is(err, fs.ErrNotExist) {
		files.TrustBundle = "" // one that the device came with is good to have until another one is fetched
	}
	id, err := identity.Load(files)
	if err != nil {
		return err
	}
	if err := w.connect(id); err != nil {
		return err
	}
	w.identity = id
	w.follow()
	for _, warning := range id.Warnings() {
		w.device.Logger.Warn("identity needs attention", "error", warning, "mend", warning.Mend())
	}
	return nil
}

// connect makes the client. The caller holds mu.
func (w *mutual) connect(id *identity.Identity) error {
	o, err := w.device.client(w.options, w.url)
	if err != nil {
		return err
	}
	o.TLS, o.Trust = id.TLS(), id.Generation
	client, err := wfm.New(o)
	if err == nil {
		w.client = client
	}
	return err
}

// follow gives the identity the trust bundle that was fetched.
func (w *mutual) follow() {
	if w.bundles != nil {
		w.bundles.Follow(w.identity)
	}
}

func (w *mutual) ended(err error) error {
	var refused *identity.Error
	if errors.As(err, &refused) && refused.Reason == identity.Untrusted && w.bundles != nil {
		w.bundles.Refresh() // the anchors may have been rotated
	}
	w.mu.Lock()
	id, client := w.identity, w.client
	w.mu.Unlock()
	if now := client.ServerTime(); !now.IsZero() && id.Plausible(now) {
		w.device.Clock.Learn(now)
		if err := w.times.keep(now); err != nil {
			w.device.Logger.Warn("cannot save the time for the next start", "error", err)
		}
	}
	return err
}

func (w *mutual) scope() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.identity.WFMID()
}

func (w *mutual) audience() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.follows() != nil {
		return w.url
	}
	return w.identity.WFMID()
}

// probe fetches the trust bundle first, if it is to be fetched.
func (w *mutual) probe(ctx context.Context) (string, error) {
	if _, err := w.open(ctx); err != nil {
		return "", err
	}
	if w.bundles != nil {
		if err := w.bundles.Fetch(ctx); err != nil {
			return "", err
		}
	}
	return reach(ctx, w, "is reachable and accepts this device's certificate")
}

// clientID is what the certificate calls this client of the WFM; empty: it was not read
// yet.
func (w *mutual) clientID() string {
	w.mu.Lock()
	id := w.identity
	w.mu.Unlock()
	if id == nil {
		return ""
	}
	_, client, _ := strings.Cut(id.ClientID(), "/client/")
	return client
}

func (w *mutual) describe(s *control.IdentityStatus) {
	w.mu.Lock()
	id := w.identity
	w.mu.Unlock()
	if id != nil {
		s.Client = id.ClientID()
		describeCertificate(s, id.Expiry(w.device.Clock.Now()), id.Warnings())
	}
	if w.bundles != nil {
		b := w.bundles.Status()
		s.TrustBundle = &control.TrustBundleStatus{TrustDomain: b.TrustDomain, Anchors: b.Anchors, Sequence: b.Sequence}
		for _, t := range []struct {
			at time.Time
			to **time.Time
		}{{b.Accepted, &s.TrustBundle.Accepted}, {b.Checked, &s.TrustBundle.Checked}, {b.Next, &s.TrustBundle.Next}} {
			if at := t.at.UTC(); !at.IsZero() {
				*t.to = &at
			}
		}
		if b.Err != nil {
			s.TrustBundle.LastError = b.Err.Error()
		}
	}
}

func (w *mutual) run(ctx context.Context) error {
	if w.bundles == nil {
		return still{}.run(ctx)
	}
	return w.bundles.Run(ctx)
}

func (w *mutual) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.client != nil {
		w.client.CloseIdle()
	}
}

// describeCertificate tells how long the device's certificate is good for.
func describeCertificate(s *control.IdentityStatus, e identity.Expiry, warnings []*identity.Error) {
	expires := e.NotAfter.UTC()
	s.Expires = &expires
	for _, w := range warnings {
		s.Warnings = append(s.Warnings, control.Advice{Text: w.Error(), Mend: w.Mend()})
	}
	if e.Level == slog.LevelWarn {
		s.Warnings = append(s.Warnings, control.Advice{
			Text: fmt.Sprintf("the certificate expires in %s", e.Left.Round(time.Minute)), Mend: "renew it",
		})
	}
}

// client gives the options that the clients of every way share: all but how the WFM proves
// who it is.
func (d Device) client(o Options, url string) (wfm.Options, error) {
	others, err := d.serverTLS(o, nil)
	return wfm.Options{
		URL: url, OtherOrigins: others, Authorization: o.Authorization.header(),
		Limits: o.Limits, Strict: o.Strict, Spool: d.Spool, Dial: d.Dial, Logger: d.Logger,
	}, err
}

// serverTLS authenticates servers that show an ordinary certificate.
func (d Device) serverTLS(o Options, root []byte) (*tls.Config, error) {
	return identity.ServerTLS(identity.ServerOptions{CA: o.CA, Root: root, TLS12: o.TLS12, Now: d.Clock.Now})
}
