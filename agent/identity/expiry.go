package identity

import (
	"crypto/x509"
	"slices"
	"time"
)

// earlyNotice bounds how long before its end a certificate of any lifetime is reported.
const earlyNotice = 30 * 24 * time.Hour

// Expiry is the remaining life of the device's certificate.
type Expiry struct {
	NotAfter time.Time
	Left     time.Duration // negative: expired
	Soon     bool          // less than a third of its life, at most 30 days, is left
}

// Expiry tells what is left at the given time. Renewal is the operator's task.
func (k *keyPair) Expiry(now time.Time) Expiry {
	e := Expiry{NotAfter: notAfter(k.chain)}
	e.Left = e.NotAfter.Sub(now)
	life := k.chain[0].NotAfter.Sub(k.chain[0].NotBefore)
	e.Soon = e.Left >= 0 && e.Left < min(life/3, earlyNotice)
	return e
}

// notAfter is when a certificate or a needed intermediate expires. From then on the device is
// offline, and no more than that.
func notAfter(chain []*x509.Certificate) time.Time {
	return slices.MinFunc(chain, func(a, b *x509.Certificate) int { return a.NotAfter.Compare(b.NotAfter) }).NotAfter
}
