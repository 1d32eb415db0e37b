package uplink_test

import (
	"context"
	"crypto/x509"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/margolite/margolite/agent/identity"
	"github.com/margolite/margolite/agent/uplink"
	"github.com/margolite/margolite/test/expect"
	"github.com/margolite/margolite/test/pki"
	"github.com/margolite/margolite/test/wfmsim/mis"
)

// identityService publishes the bundle that the site has as a file.
func (s *site) identityService(t *testing.T) *mis.Server {
	t.Helper()
	authority := expect.Value(pki.NewServerAuthority("MIS", time.Now()))(t)
	service := expect.Value(mis.New(mis.Options{
		TrustDomain: trustDomain, Bundle: expect.Value(readBundle(s.options.TrustBundle))(t), Certificate: expect.Value(authority.IssueServer([]string{host}))(t).TLS(),
	}))(t)
	check(t, service.Start(""))
	t.Cleanup(func() { _ = service.Close() })
	s.options.Service.CA = s.write("mis.pem", authority.RootPEM())
	return service
}

func readBundle(file string) (*identity.TrustBundle, error) {
	content, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	return identity.ParseTrustBundle(content)
}

// ID-14, ID-24, ID-28: the bundle is fetched by URL or by discovery; until it
// is there no connection is made, and then it outlives a restart without the
// service.
func TestID24ID28TrustBundleIsFetchedAndKept(t *testing.T) {
	for _, how := range []string{"by URL", "by discovery"} {
		t.Run(how, func(t *testing.T) {
			s := newSite(t)
			w, _ := s.mutual(nil)
			service := s.identityService(t)
			if s.options.TrustBundle = service.BundleURL(); how == "by discovery" {
				s.options.TrustBundle, s.options.Service.Discovery = "", service.DiscoveryURL()
			}
			u := s.start()
			fails(t, ask(t.Context(), u), identity.NoBundle)
			if known := u.Describe(); known.TrustBundle == nil || !known.TrustBundle.Accepted.IsZero() || len(known.Warnings) != 1 {
				t.Errorf("described as %+v", known)
			}
			expect.Equal(t, w.Requests().Count(""), 0, "requests")
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error)
			go func() { done <- u.Run(ctx) }()
			check(t, service.Requests().WaitCount(ctx, mis.EndpointBundle, 1))
			expect.Eventually(t, "the WFM is reached", func() bool { return ask(ctx, u) == nil })
			cancel()
			check(t, <-done)
			known := u.Describe()
			if b := known.TrustBundle; b.TrustDomain != trustDomain || b.Anchors != 1 || b.Accepted.IsZero() || b.LastError != "" {
				t.Errorf("bundle is described as %+v", b)
			}
			expect.Equal(t, s.records.count("trust bundle"), 1, "writes")

			check(t, service.Close())
			again := s.start()
			check(t, ask(t.Context(), again))
			expect.ErrorWith(t, expect.ErrorOf(again.Probe(t.Context())), "", "a probe without the service")
			check(t, service.Start(""))
			text, err := again.Probe(t.Context())
			expect.True(t, err == nil && strings.Contains(text, "accepts this device's certificate"), "%q, %v", text, err)
		})
	}
}

// A WFM whose anchor is taken off the trust bundle gets no further request, although the
// connection to it was alive, and is accepted again once the anchor is back. The device
// is not restarted. That no session is resumed is shown by identity.TestID13NothingIsResumed.
func TestID13ID21AWFMTakenOffTheBundleIsRefusedAtTheNextRequest(t *testing.T) {
	for _, how := range []string{"a file", "fetched"} {
		t.Run(how, func(t *testing.T) {
			s := newSite(t)
			w, authority := s.mutual(nil)
			service := s.identityService(t)
			if how == "fetched" {
				s.options.TrustBundle = service.BundleURL()
			}
			device, dials := s.device(), 0
			device.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
				dials++
				return (&net.Dialer{}).DialContext(ctx, network, address)
			}
			u := expect.Value(uplink.New(s.options, device))(t)
			publish := func(bundle *identity.TrustBundle) {
				t.Helper()
				s.write("bundle.json", expect.Value(pki.MarshalBundle(bundle))(t))
				service.SetBundle(bundle)
				if how == "fetched" {
					_, _ = u.Probe(t.Context()) // fetches it now
				}
			}
			other := expect.Value(pki.NewAuthority(trustDomain, time.Now()))(t)
			both := &identity.TrustBundle{Anchors: []*x509.Certificate{authority.Root, other.Root}}

			publish(both)
			check(t, ask(t.Context(), u))
			before := dials
			check(t, ask(t.Context(), u))
			expect.Require(t, dials == before, "the connection was not kept")
			requests := w.Requests().Count("")
			publish(other.Bundle())
			fails(t, ask(t.Context(), u), identity.Untrusted)
			expect.Equal(t, w.Requests().Count(""), requests, "requests")
			publish(both)
			check(t, ask(t.Context(), u))
		})
	}
}

// A bundle that is out of date is asked for as soon as the WFM's certificate
// leads to none of its anchors.
func TestID23OutdatedBundleIsAskedForEarly(t *testing.T) {
	s := newSite(t)
	w, _ := s.mutual(nil)
	service := s.identityService(t)
	s.options.TrustBundle = service.BundleURL()
	// The bundle of before the rotation was kept by the former start.
	expect.Value(s.start().Probe(t.Context()))(t)
	other := expect.Value(pki.NewAuthority(trustDomain, time.Now()))(t)
	w.SetSVID(expect.Value(other.IssueWFM(wfmID))(t).TLS())
	both := other.Bundle()
	former := expect.Value(readBundle(s.file("bundle.json")))(t)
	both.Anchors = append(both.Anchors, former.Anchors...)
	service.SetBundle(both)

	u := s.start()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- u.Run(ctx) }()
	fails(t, ask(ctx, u), identity.Untrusted)
	expect.Eventually(t, "the WFM is reached", func() bool { return ask(ctx, u) == nil })
	cancel()
	check(t, <-done)
}
