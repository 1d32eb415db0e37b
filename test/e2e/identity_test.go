package e2e

import (
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/margolite/margolite/test/pki"
	"github.com/margolite/margolite/test/plant"
	"github.com/margolite/margolite/test/wfmsim/mis"
)

// service is a Margo Identity Service beside the plant, with a certificate of an
// authority of its own.
type service struct {
	*mis.Server
	ca  string // file
	pin string // of its key
}

func (r *rig) newService() *service {
	r.t.Helper()
	authority, err := pki.NewServerAuthority("identity service", time.Now())
	check(r.t, err)
	certificate, err := authority.IssueServer([]string{"127.0.0.1"})
	check(r.t, err)
	server, err := mis.New(mis.Options{
		TrustDomain: plant.TrustDomain, Bundle: r.Authority.Bundle(), Certificate: certificate.TLS(),
	})
	check(r.t, err)
	check(r.t, server.Start(""))
	r.t.Cleanup(func() { check(r.t, server.Close()) })
	sum := sha256.Sum256(certificate.Chain[0].RawSubjectPublicKeyInfo)
	s := &service{server, filepath.Join(r.dir, "service.pem"), base64.StdEncoding.EncodeToString(sum[:])}
	check(r.t, os.WriteFile(s.ca, authority.RootPEM(), 0o644))
	return s
}

// The trust bundle comes from the identity service, and is there without it from
// then on; a device that was off while the anchors were replaced gets the new
// ones as soon as it needs them.
func TestID18ID24TrustBundleOfTheIdentityService(t *testing.T) {
	r := newRig(t, "embedded")
	s := r.newService()
	fetched := usual
	fetched.WFM = map[string]string{
		"trustBundle":     "",
		"identityService": fmt.Sprintf("{discovery: %q, ca: %q}", s.DiscoveryURL(), s.ca),
	}
	check(t, r.Configure(fetched))
	r.running()
	r.synced()
	r.refusesChart(r.publishedAndSynced(1, 1))
	b := r.status().Identity.TrustBundle
	if b == nil || b.Anchors != 1 || b.TrustDomain != plant.TrustDomain || b.Accepted == nil {
		t.Errorf("status says of the trust bundle %+v", b)
	}
	if n := s.Requests().Count(mis.EndpointDiscovery); n == 0 {
		t.Error("the discovery document was not asked for")
	}

	t.Run("ID-24 without the service after a restart", func(t *testing.T) {
		r.t = t
		r.Kill()
		check(t, s.Close())
		r.running()
		r.refusesChart(r.publishedAndSynced(1, 2))
		check(t, s.Start(""))
	})
	t.Run("ID-22 anchors replaced while the device was off", func(t *testing.T) {
		r.t = t
		r.stop()
		next, err := pki.NewAuthority(plant.TrustDomain, time.Now())
		check(t, err)
		bundle := next.Bundle()
		bundle.Sequence = 2
		s.SetBundle(bundle)
		svid, err := next.IssueWFM(plant.WFM)
		check(t, err)
		r.WFM.SetSVID(svid.TLS())
		r.WFM.SetBundle(bundle)
		client, err := next.IssueClient(plant.WFM, plant.Client)
		check(t, err)
		_, err = pki.WriteFiles(filepath.Dir(r.Identity.Key), client, bundle)
		check(t, err)
		r.running()
		r.synced()
		r.refusesChart(r.publishedAndSynced(1, 3))
		if b := r.status().Identity.TrustBundle; b == nil || b.Sequence != 2 {
			t.Errorf("status says of the trust bundle %+v", b)
		}
	})
	r.t = t
}
