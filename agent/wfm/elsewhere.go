package wfm

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"syscall"
	"time"
)

// What a manifest refers to may lie on another server than the WFM, a store of
// artifacts for example. The digests protect the content; what is to be
// protected here is the device, and its network:
//
//   - Nothing of the device is shown: no certificate, no header with
//     credentials, no signature, no cookie.
//   - It is https, and the certificate has to be good by ordinary anchors. No
//     proxy of the environment, no redirect.
//   - The device does not talk to itself, by whichever of its addresses, nor to
//     its link: what listens there trusts who is near. A WFM that is itself reached this way, on a desk, can
//     refer to its neighbours. Private addresses are where plants keep their
//     servers, and allowed.
//   - Neither the content nor a reason goes to the WFM: it learns no more than
//     that its template was asked, too.
//   - Bounds are those of the WFM's answers, and after a few failures the
//     template is used without asking elsewhere first.
const maxStrangers = 3

// errNear is an address that a manifest cannot make the device talk to.
var errNear = errors.New("it is an address of this device or of its local link")

// otherOrigins makes the connections to servers that are not the WFM at base.
func otherOrigins(base *url.URL, config *tls.Config, timeout time.Duration) *connections {
	if config == nil {
		config = &tls.Config{MinVersion: tls.VersionTLS12}
	}
	config = config.Clone()
	config.Certificates, config.GetClientCertificate = nil, nil
	c := &connections{tls: config, timeout: timeout, age: maxConnectionAge}
	if !isNearHost(base.Hostname()) {
		c.control = func(_, address string, _ syscall.RawConn) error {
			at, err := netip.ParseAddrPort(address)
			if err != nil {
				return errNear
			}
			near, err := isNear(at.Addr())
			switch {
			case err != nil:
				return fmt.Errorf("cannot determine whether %s is an address of this device: %w", at.Addr(), err)
			case near:
				return errNear
			}
			return nil
		}
	}
	return c
}

// isNearHost says that a host is named such that it is on this device or its link.
func isNearHost(host string) bool {
	if strings.EqualFold(host, "localhost") {
		return true
	}
	at, err := netip.ParseAddr(host)
	if err != nil {
		return false
	}
	near, err := isNear(at)
	return near && err == nil
}

// isNear says that an address is one of this device's, those of the networks of
// workloads among them, or leads to nobody but it and its link.
func isNear(at netip.Addr) (bool, error) {
	at = at.Unmap().WithZone("")
	if at.IsLoopback() || at.IsLinkLocalUnicast() || at.IsMulticast() || at.IsUnspecified() {
		return true, nil
	}
	addresses, err := net.InterfaceAddrs()
	if err != nil {
		return false, err
	}
	for _, a := range addresses {
		if own, err := netip.ParsePrefix(a.String()); err == nil && own.Addr() == at {
			return true, nil
		}
	}
	return false, nil
}

// elsewhereError is the text of an error of another server: it must not be
// taken for an answer of the WFM, whose words have consequences.
func elsewhereError(u *url.URL, err error) error {
	var refused *Error
	if errors.As(err, &refused) {
		return fmt.Errorf("%s answered %d %s", u.Host, refused.Status, http.StatusText(refused.Status))
	}
	return fmt.Errorf("%s: %v", u.Host, err)
}
