package identity

import (
	"crypto/x509"
	"time"
)

// earlyNotice is the longest time before its end that a certificate is worth a
// word, however long it lives.
const earlyNotice = 30 * 24 * time.Hour

// Expiry is what is left of the device's certificate.
type Expiry struct {
	NotAfter time.Time
	Left     time.Duration // negative: expired since then
	Soon     bool          // less than a third of its life is left, or 30 days where that is less
}

// Expiry tells what is left at the given time. Renewal is the operator's; here
// is only the reminder.
func (i *Identity) Expiry(now time.Time) Expiry { return expiry(i.chain, now) }

// Expiry tells what is left at the given time, as that of an Identity.
func (d *Device) Expiry(now time.Time) Expiry { return expiry(d.chain, now) }

func expiry(chain []*x509.Certificate, now time.Time) Expiry {
	e := Expiry{NotAfter: notAfter(chain)}
	e.Left = e.NotAfter.Sub(now)
	life := chain[0].NotAfter.Sub(chain[0].NotBefore)
	e.Soon = e.Left >= 0 && e.Left < min(life/3, earlyNotice)
	return e
}

// notAfter is when a certificate, or an intermediate it needs, expires. From then on
// the device is offline, and nothing more than that.
func notAfter(chain []*x509.Certificate) time.Time {
	earliest := chain[0].NotAfter
	for _, c := range chain[1:] {
		if c.NotAfter.Before(earliest) {
			earliest = c.NotAfter
		}
	}
	return earliest
}
