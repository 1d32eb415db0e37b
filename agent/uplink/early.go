package uplink

import (
	"crypto/tls"
	"errors"
	neturl "net/url"

	"github.com/margolite/margolite/agent/identity"
)

// learnEarly raises the lower bound of the present where a server was refused because
// its certificate is not valid yet, and this device's clock is known to be wrong: it
// was issued since, by an authority that is believed, so that time has come. Without,
// a device that lost its clock would never reach its WFM again. The next request does.
func (d Device) learnEarly(err error, o Options, root []byte, url string) {
	var refused *tls.CertificateVerificationError
	if !errors.As(err, &refused) {
		return
	}
	at, parseErr := neturl.Parse(url)
	if _, wrong := d.Clock.Wrong(); !wrong || parseErr != nil {
		return
	}
	config, tlsErr := d.serverTLS(o, root)
	if tlsErr != nil {
		return // the next request tells
	}
	if from, ok := identity.ValidFrom(config, at.Hostname(), refused.UnverifiedCertificates, d.Clock.Now()); ok {
		d.Clock.Learn(from)
	}
}
