package identity

import (
	"crypto/x509"
	"log/slog"
	"time"
)

// earlyNotice is the longest time before its end that a certificate is worth a
// word, however long it lives.
const earlyNotice = 30 * 24 * time.Hour

// Expiry is what is left of the device's certificate.
type Expiry struct {
	NotAfter time.Time
	Left     time.Duration // negative: expired since then
	// Level is how much it matters: Info, nothing has to be done; Warn, less than
	// a third of its life is left, or 30 days where that is less; Error, it has
	// expired.
	Level slog.Level
}

// Expiry tells what is left at the given time. Renewal is the operator's; here
// is only the reminder.
func (i *Identity) Expiry(now time.Time) Expiry { return expiry(i.current.Load().chain, now) }

// Expiry tells what is left at the given time, as that of an Identity.
func (d *Device) Expiry(now time.Time) Expiry { return expiry(d.chain, now) }

func expiry(chain []*x509.Certificate, now time.Time) Expiry {
	e := Expiry{NotAfter: notAfter(chain)}
	e.Left = e.NotAfter.Sub(now)
	switch life := chain[0].NotAfter.Sub(chain[0].NotBefore); {
	case e.Left < 0:
		e.Level = slog.LevelError
	case e.Left < min(life/3, earlyNotice):
		e.Level = slog.LevelWarn
	default:
		e.Level = slog.LevelInfo
	}
	return e
}

// NotAfter is when the device's certificate, or an intermediate it needs,
// expires. From then on the device is offline, and nothing more than that.
func (i *Identity) NotAfter() time.Time { return notAfter(i.current.Load().chain) }

func notAfter(chain []*x509.Certificate) time.Time {
	earliest := chain[0].NotAfter
	for _, c := range chain[1:] {
		if c.NotAfter.Before(earliest) {
			earliest = c.NotAfter
		}
	}
	return earliest
}
