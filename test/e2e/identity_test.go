package e2e

import (
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/margolite/margolite/agent/control"
	"github.com/margolite/margolite/agent/identity"
	"github.com/margolite/margolite/test/pki"
	"github.com/margolite/margolite/test/plant"
	"github.com/margolite/margolite/test/wfmsim"
	"github.com/margolite/margolite/test/wfmsim/fault"
	"github.com/margolite/margolite/test/wfmsim/mis"
)

// Certificates and anchors are replaced under an agent that runs: no poll fails,
// and nothing is asked over connections that rest on the former ones.
func TestID02ID13ID21CertificatesAndAnchorsAreReplacedInPlace(t *testing.T) {
	long(t, "the rest of identity")
	r := newRig(t, "embedded")
	r.running()
	r.install(r.Deployment(demoID, nil))
	r.quiet()
	before := r.services(demoID)
	next, err := pki.NewAuthority(plant.TrustDomain, time.Now())
	check(t, err)
	both := &identity.TrustBundle{Anchors: []*x509.Certificate{r.Authority.Root, next.Root}, Sequence: 2}
	r.WFM.SetBundle(both)
	shows := func(by *pki.Authority) {
		svid, err := by.IssueWFM(plant.WFM)
		check(t, err)
		r.WFM.SetSVID(svid.TLS())
	}

	log := r.logLength()
	for i, step := range []struct {
		name string
		do   func()
	}{
		{"ID-02 the device's certificate is renewed", func() { check(t, r.Provision(r.Authority, r.Authority.Bundle())) }},
		{"ID-21 the bundle has two anchors", func() { check(t, r.Provision(r.Authority, both)) }},
		{"the WFM's certificate moves to the new one", func() {
			shows(next)
			check(t, r.Provision(r.Authority, both))
		}},
		{"ID-02 the device's certificate follows", func() { check(t, r.Provision(next, both)) }},
		{"ID-21 the new anchor alone is left", func() {
			check(t, r.Provision(next, next.Bundle()))
			r.WFM.SetBundle(next.Bundle())
		}},
	} {
		t.Run(step.name, func(t *testing.T) {
			r.t = t
			// What is on its way over the former connection is waited for.
			all := r.since(0)
			former, asked := all[len(all)-1].From, r.asked()
			step.do()
			r.synced()
			if s := r.status().WFM; s.LastError != "" {
				t.Errorf("the WFM cannot be polled any more: %s", s.LastError)
			}
			taken := r.asked()
			r.refusesChart(r.publishedAndSynced(1, i))
			for _, q := range r.since(taken) {
				if q.From == former {
					t.Errorf("%s was asked for over the former connection", q.Path)
				}
			}
			for _, q := range r.since(asked) {
				if q.Status >= 400 {
					t.Errorf("%s was answered %d", q.Path, q.Status)
				}
			}
		})
	}
	r.t = t
	r.untouched(demoID, before)
	if lines := r.logged(log, "cannot poll"); len(lines) > 0 {
		t.Errorf("polls failed: %q", lines)
	}

	// Who still shows what the former anchor signed is not believed any more.
	shows(r.Authority)
	r.reconnect()
	n := r.asked()
	if err := r.sync(); err == nil || len(r.since(n)) > 0 {
		t.Errorf("a WFM of the former anchor was asked %+v: %v", r.since(n), err)
	}
	shows(next)
	r.reconnect()
	r.synced()
}

// A key that others may read is not used, and mending its mode is enough.
func TestID25KeysAreForTheirOwnerOnly(t *testing.T) {
	long(t, "the rest of identity")
	r := newRig(t, "embedded")
	r.running()
	r.quiet()
	log := r.logLength()
	check(t, os.Chmod(r.Identity.Key, 0o644))
	check(t, r.Provision(r.Authority, r.Authority.Bundle())) // the mode stays
	check(t, r.sync())
	if lines := r.logged(log, "level=WARN", "others than its owner"); len(lines) == 0 {
		t.Error("the exposed key is not mentioned")
	}
	check(t, os.Chmod(r.Identity.Key, 0o600))
	check(t, r.sync())
	if lines := r.logged(log, "identity reloaded"); len(lines) == 0 {
		t.Error("the mended key is not taken over")
	}
}

// A server that is not the WFM gets no request, whatever is wrong with its
// certificate; status and check name it, and what runs keeps running.
func TestID05ID06OtherServersGetNoRequest(t *testing.T) {
	long(t, "the rest of identity")
	r := newRig(t, "embedded")
	r.running()
	r.install(r.Deployment(demoID, nil))
	r.quiet()
	before := r.services(demoID)
	for _, test := range []struct {
		name string
		flaw pki.Flaw
		says string
	}{
		{"ID-09 expired", pki.Expired, "expired"},
		{"ID-09 not valid yet", pki.NotYetValid, "not yet valid"},
		{"ID-05 of an authority that nobody knows", pki.UnknownAuthority, "unknown authority"},
		{"ID-05 an authority itself", pki.CALeaf, "may sign certificates"},
		{"ID-05 of another trust domain", pki.ForeignDomain, "trust domain"},
		{"ID-05 two URIs", pki.TwoURIs, "URI SANs"},
		{"ID-05 no URI", pki.NoURI, "URI SANs"},
		{"ID-06 another WFM", pki.WrongID, "is not the WFM of this device"},
		{"ID-06 a client", pki.ClientID, "is not the WFM of this device"},
	} {
		t.Run(test.name, func(t *testing.T) {
			r.t = t
			r.inject(fault.Fault{Endpoint: wfmsim.EndpointHandshake, Kind: fault.Certificate, What: string(test.flaw)})
			r.reconnect()
			n := r.asked()
			if err := r.sync(); err == nil || !strings.Contains(err.Error(), test.says) {
				t.Errorf("a poll ended with %v, want %q", err, test.says)
			}
			if s := r.status().WFM; !strings.Contains(s.LastError, test.says) || s.Reachable {
				t.Errorf("status says %+v, want %q", s, test.says)
			}
			if all := r.since(n); len(all) > 0 {
				t.Errorf("the server was asked %+v", all)
			}
			r.untouched(demoID, before)
			if test.flaw == pki.WrongID {
				out, err := r.margolite("check", "--json")
				if err == nil || !strings.Contains(out, test.says) {
					t.Errorf("check says %s: %v", out, err)
				}
			}
			r.WFM.Faults().Clear("")
		})
	}
	r.t = t
	r.reconnect()
	r.synced()
}

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

// Without an anchor a pinned key proves who the identity service is. Where
// neither does, nothing that it says is believed, and the WFM is not called.
func TestID14ID16ID28PinnedIdentityService(t *testing.T) {
	long(t, "the rest of identity")
	r := newRig(t, "embedded")
	s := r.newService()
	pinned := func(pin string) plant.Settings {
		set := usual
		set.WFM = map[string]string{
			"trustBundle":     s.BundleURL(),
			"identityService": fmt.Sprintf("{pins: [%q]}", pin),
		}
		return set
	}
	other := sha256.Sum256([]byte("another key"))
	check(t, r.Configure(pinned(base64.StdEncoding.EncodeToString(other[:]))))
	r.running()
	r.eventually("the service is not believed", func() error {
		b := r.status().Identity.TrustBundle
		if b == nil || !strings.Contains(b.LastError, "did not prove") {
			return fmt.Errorf("the trust bundle is %+v", b)
		}
		return nil
	})
	if err := r.sync(); err == nil || r.asked() > 0 {
		t.Errorf("without a trust bundle the WFM was asked %+v: %v", r.since(0), err)
	}
	if n := s.Requests().Count(""); n > 0 {
		t.Errorf("the service that did not prove who it is had %d requests", n)
	}
	out, err := r.margolite("check", "--json")
	if err == nil || !strings.Contains(out, "wfm.identityService") {
		t.Errorf("check says %s: %v", out, err)
	}

	check(t, r.Reconfigure(pinned(s.pin)))
	r.synced()
	r.refusesChart(r.publishedAndSynced(1, 1))
}

// A device whose clock is behind the day on which its program was built knows
// that it is wrong, says so, and works by the later time.
func TestID09AWrongClockIsNamed(t *testing.T) {
	long(t, "the rest of identity")
	program := filepath.Join(programs.dir, "margolite-tomorrow")
	built := time.Now().Add(36 * time.Hour)
	cmd := exec.Command("go", "build", "-trimpath", "-o", program, "-tags", "faults,grpcnotrace,osusergo,netgo,no_rdt",
		"-ldflags", fmt.Sprintf("-s -w -X github.com/margolite/margolite/build.time=%d", built.Unix()),
		"github.com/margolite/margolite/cmd/margolite")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	r := newRig(t, "embedded")
	r.Upgrade(program)
	r.running()
	r.refusesChart(r.publishChart(1, 1))
	named := func(advice []control.Advice) bool {
		for _, a := range advice {
			if containsAll(a.Text, "clock is wrong", built.UTC().Format(time.DateOnly)) && a.Mend == "set the clock" {
				return true
			}
		}
		return false
	}
	if s := r.status(); !named(s.Identity.Warnings) {
		t.Errorf("status warns of %+v", s.Identity.Warnings)
	}
	out, err := exec.Command(program, "--config", r.ConfigFile(), "check").CombinedOutput()
	if err != nil || !containsAll(string(out), "warning  clock", "set the clock") {
		t.Errorf("check says %s: %v", out, err)
	}

	// By the clock that is wrong this certificate would still be good.
	flawed, err := r.Authority.IssueWFM(plant.WFM, pki.Valid(time.Now().Add(-time.Hour), built.Add(-time.Hour)))
	check(t, err)
	r.WFM.SetSVID(flawed.TLS())
	r.reconnect()
	n := r.asked()
	if err := r.sync(); err == nil || !containsAll(err.Error(), "expired", "clock is wrong") || len(r.since(n)) > 0 {
		t.Errorf("a certificate that is expired in truth was accepted: %v", err)
	}
	good, err := r.Authority.IssueWFM(plant.WFM)
	check(t, err)
	r.WFM.SetSVID(good.TLS())
	r.synced()
}
