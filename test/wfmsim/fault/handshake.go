package fault

import (
	"crypto/tls"
	"fmt"
	"time"
)

// Handshake is the endpoint of a server's TLS handshakes: Delay, Stall and
// Certificate apply to it.
const Handshake = "handshake"

// stalled is how long a handshake takes that makes no progress: longer than
// anybody waits, and not for ever, because net/http does not end it.
const stalled = 5 * time.Minute

// Handshakes makes a server's handshakes fail on demand. Flawed issues what is
// shown while a fault of kind Certificate applies.
func (s *Switches) Handshakes(config *tls.Config, flawed func(flaw string) (tls.Certificate, error)) {
	usual := config.Clone()
	config.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		bent := usual.Clone()
		for _, f := range s.Take(Handshake, "", "") {
			switch f.Kind {
			case Delay, Stall:
				if f.Kind == Stall {
					f.Wait = stalled
				}
				if !wait(hello.Context(), f.Wait) {
					return nil, hello.Context().Err()
				}
			case Certificate:
				certificate, err := flawed(f.What)
				if err != nil {
					return nil, fmt.Errorf("cannot issue certificate with flaw %s: %w", f.What, err)
				}
				bent.GetCertificate, bent.Certificates = nil, []tls.Certificate{certificate}
			}
		}
		return bent, nil
	}
}
