package wfm_test

import (
	"crypto/tls"
	"testing"

	"github.com/margolite/margolite/agent/wfm"
)

// A look at the WFM is no request, and yet shows whether it accepts the certificate of
// the device.
func TestReachSendsNoRequest(t *testing.T) {
	d := newTrust(t)
	s := d.serve(t, "one")
	c := client(t, d.device(t), s.URL)
	if err := c.Reach(t.Context()); err != nil {
		t.Error(err)
	}
	unknown := client(t, d.device(t), s.URL, func(o *wfm.Options) {
		o.TLS = &tls.Config{InsecureSkipVerify: true} // shows no certificate
	})
	if err := unknown.Reach(t.Context()); err == nil {
		t.Error("the WFM accepts a device without a certificate")
	}
	if took := s.took(); len(took) > 0 {
		t.Errorf("requests %q", took)
	}
	s.Close()
	if err := c.Reach(t.Context()); err == nil {
		t.Error("a WFM that is gone is within reach")
	}
}
