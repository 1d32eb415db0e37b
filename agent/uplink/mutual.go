package uplink

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"io/fs"
	neturl "net/url"
	"os"
	"strings"

	"github.com/margolite/margolite/agent/control"
	"github.com/margolite/margolite/agent/identity"
	"github.com/margolite/margolite/agent/wfm"
)

// mutual is the way of rc.3: both sides authenticate with an X.509-SVID.
type mutual struct {
	connection
	identity identity.Options
	bundles  *identity.BundleSource // nil: the trust bundle is a file
}

func newMutual(o Options, url string, d Device) (*mutual, error) {
	w := &mutual{
		connection: connection{device: d, url: url, options: o},
		identity: identity.Options{
			Certificate: o.Certificate, Key: o.Key, TrustBundle: o.TrustBundle,
			WFMIDs: o.IDs, TLS12: o.TLS == "1.2", Now: d.Clock.Now, WrongClock: d.Clock.Wrong,
		},
	}
	if fetched := strings.HasPrefix(o.TrustBundle, "https://"); fetched || o.Service.Discovery != "" {
		service := identity.ServiceOptions{
			Discovery: o.Service.Discovery, CA: cmp.Or(o.Service.CA, o.CA), Pins: o.Service.Pins,
			TLS12: o.TLS == "1.2", Get: wfm.Get, Now: d.Clock.Now, WrongClock: d.Clock.Wrong,
		}
		if fetched {
			service.Bundle, w.identity.TrustBundle = o.TrustBundle, ""
		}
		s, err := identity.NewService(service)
		if err != nil {
			return nil, err
		}
		w.bundles = identity.NewBundleSource(identity.BundleOptions{
			Fetch: s.Bundle, Keeper: keeper{d.Records}, Interval: o.Service.Refresh,
			Silence: d.Silence, Accepted: d.Wake, Now: d.Clock.Now, Logger: d.Logger,
		})
	}
	w.load = w.connect
	w.files = []string{o.Certificate, o.Key, w.identity.TrustBundle, o.CA}
	return w, nil
}

func (w *mutual) connect() (*link, error) {
	files := w.identity
	if _, err := os.Stat(files.TrustBundle); w.bundles != nil && errors.Is(err, fs.ErrNotExist) {
		files.TrustBundle = "" // a preinstalled bundle serves until one is fetched
	}
	id, err := identity.Load(files)
	if err != nil {
		return nil, err
	}
	o := w.device.client(w.options, w.url)
	o.TLS, o.Trust = id.TLS(), id.Generation
	client, err := wfm.New(o)
	if err != nil {
		return nil, err
	}
	if w.bundles != nil {
		w.bundles.Follow(id)
	}
	w.warn(id.Warnings())
	_, name, _ := strings.Cut(id.ClientID(), "/client/")
	return &link{client: client, scope: id.WFMID(), id: name, identity: id}, nil
}

func (w *mutual) ended(err error) error {
	if refused, ok := errors.AsType[*identity.Error](err); ok && refused.Reason == identity.Untrusted && w.bundles != nil {
		w.bundles.Refresh() // the anchors may have been rotated
	}
	used := w.current.Load()
	if now := used.client.ServerTime(); !now.IsZero() && used.identity.Plausible(now) {
		w.device.Clock.Learn(now)
		if err := keepTime(w.device.Records, now); err != nil {
			w.device.Logger.Warn("cannot save the time for the next start", "error", err)
		}
	}
	return err
}

// probe first fetches the trust bundle if it comes from a URL.
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

func (w *mutual) describe(s *control.IdentityStatus) {
	if now := w.current.Load(); now != nil {
		s.Client = now.identity.ClientID()
		describeCertificate(s, now.identity.Expiry(w.device.Clock.Now()), now.identity.Warnings())
	}
	if w.bundles != nil {
		b := w.bundles.Status()
		s.TrustBundle = &control.TrustBundleStatus{
			TrustDomain: b.TrustDomain, Anchors: b.Anchors, Sequence: b.Sequence,
			Accepted: b.Accepted.UTC(), Checked: b.Checked.UTC(), Next: b.Next.UTC(),
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

// client returns the options common to all ways: all but the WFM's authentication.
func (d Device) client(o Options, url string) wfm.Options {
	return wfm.Options{
		URL: url, Authorization: o.Authorization.header(), Strict: o.Strict,
		Spool: d.Spool, Dial: d.Dial, Logger: d.Logger,
	}
}

// serverTLS authenticates the server at url by an ordinary certificate. A certificate refused only
// because the device's clock, known to be wrong, is before its validity raises the lower bound of
// the present; otherwise a device that lost its clock would never reach its WFM again.
func (d Device) serverTLS(o Options, root []byte, url string) (*tls.Config, error) {
	s := identity.ServerOptions{CA: o.CA, Root: root, TLS12: o.TLS == "1.2", Now: d.Clock.Now, WrongClock: d.Clock.Wrong, Early: d.Clock.Learn}
	if at, err := neturl.Parse(url); err == nil { // otherwise wfm.New reports the error
		s.Name = at.Hostname()
	}
	return identity.ServerTLS(s)
}
