package wfm

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"syscall"
	"time"

	"github.com/margolite/margolite/runtime/port"
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
				return err
			}
			near, err := port.Near(at.Addr())
			if near {
				err = errNear
			}
			return err
		}
	}
	return c
}

// isNearHost says that a host is named such that it is on this device or its link.
func isNearHost(host string) bool {
	at, _ := netip.ParseAddr(host) // the zero one of a name is not near
	near, _ := port.Near(at)
	return near || strings.EqualFold(host, "localhost")
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
