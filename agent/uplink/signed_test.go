package uplink_test

import (
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/margolite/margolite/agent/margo"
	"github.com/margolite/margolite/agent/uplink"
	"github.com/margolite/margolite/agent/wfm"
	"github.com/margolite/margolite/test/expect"
	"github.com/margolite/margolite/test/pki"
	"github.com/margolite/margolite/test/wfmsim"
	"github.com/margolite/margolite/test/wfmsim/fault"
)

// AUTH-05: the id is on the medium before it is used, and survives a restart.
func TestAUTH05ClientIDIsKeptBeforeItIsUsed(t *testing.T) {
	s := newSite(t)
	w, _ := s.signed(margo.RC2, nil)

	t.Run("AUTH-05 an id that cannot be kept is not used", func(t *testing.T) {
		s.records.fail(func(verb string) error {
			if verb == "client id" {
				return errors.New("no space left")
			}
			return nil
		})
		u := s.start()
		for _, request := range []func() error{
			func() error { return ask(t.Context(), u) },
			func() error { return u.PutCapabilities(t.Context(), deviceID, capabilities(t)) },
		} {
			expect.ErrorWith(t, request(), "no space left", "error")
		}
		expect.Equal(t, w.Requests().Count("")-asked(w, wfmsim.EndpointOnboarding), 0, "requests besides onboarding")
	})
	t.Run("AUTH-05 the power goes between the answer and the record", func(t *testing.T) {
		// What was answered before is lost; the WFM knows the certificate.
		s.records.fail(func(string) error {
			expect.Equal(t, asked(w, wfmsim.EndpointManifest), 0, "polls before the id is kept")
			return nil
		})
		u := s.start()
		check(t, ask(t.Context(), u))
		id := expect.Value(w.WaitClient(t.Context()))(t)
		if known := u.Describe(); known.Client != id || scope(t, u) != w.URL()+"#"+id {
			t.Errorf("client is %s with scope %s, want %s", known.Client, scope(t, u), id)
		}
		s.records.fail(nil)
	})
	t.Run("AUTH-05 after a restart nobody is introduced again", func(t *testing.T) {
		before := asked(w, wfmsim.EndpointOnboarding)
		check(t, ask(t.Context(), s.start()))
		expect.Equal(t, asked(w, wfmsim.EndpointOnboarding), before, "onboardings")
	})
	t.Run("a record that cannot be read is made anew", func(t *testing.T) {
		s.records.set("client", []byte("{"))
		check(t, ask(t.Context(), s.start()))
		check(t, ask(t.Context(), s.start()))
		expect.Equal(t, strings.Count(s.log.String(), "device onboarded again"), 1, "lines of the log")
	})
	t.Run("the id that one WFM gave means nothing to another", func(t *testing.T) {
		other := newSite(t)
		elsewhere, _ := other.signed(margo.RC2, nil)
		other.records = s.records
		u := other.start()
		check(t, ask(t.Context(), u))
		expect.Equal(t, asked(elsewhere, wfmsim.EndpointOnboarding), 1, "onboardings")
	})
}

// AUTH-14: a device makes itself known to no server that it does not trust. That each
// certificate is given an id of its own, and keeps it, is shown by
// TestRenewedCertificateIsIntroduced and TestAUTH05ClientIDIsKeptBeforeItIsUsed.
func TestAUTH14EnrolmentIsAMatterOfTrust(t *testing.T) {
	s := newSite(t)
	w, _ := s.signed(margo.RC2, nil)
	stranger := expect.Value(pki.NewServerAuthority("Stranger", time.Now()))(t)
	s.options.CA = s.write("stranger.pem", stranger.RootPEM())
	expect.ErrorWith(t, expect.ErrorOf(s.start().Identity(t.Context())), "", "a server of another authority")
	if n := w.Requests().Count(""); n != 0 || s.records.count("client id") != 0 {
		t.Errorf("it was sent %d requests", n)
	}
}

// AUTH-04: it is done once, whoever asks first.
func TestAUTH04OnboardedOnceForEverybody(t *testing.T) {
	s := newSite(t)
	w, _ := s.signed(margo.RC2, nil)
	u := s.start()
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			expect.OK(t, ask(t.Context(), u))
		})
	}
	group.Wait()
	if n := asked(w, wfmsim.EndpointOnboarding); n != 1 || s.records.count("client id") != 1 {
		t.Errorf("onboarded %d times, kept %d times", n, s.records.count("client id"))
	}
}

// An id that is configured is used as it is.
func TestConfiguredClientIDNeedsNoOnboarding(t *testing.T) {
	s := newSite(t)
	w, authority := s.signed(margo.RC2, nil)
	signer := s.introduce(authority)
	check(t, w.Enroll("from-the-portal", signer.Chain[0]))
	s.options.ClientID = "from-the-portal"
	u := s.start()
	check(t, ask(t.Context(), u))
	check(t, w.Forget("from-the-portal"))
	for range 2 {
		expect.Error(t, ask(t.Context(), u), wfm.ErrClientUnknown, "unknown client")
	}
	if n := asked(w, wfmsim.EndpointOnboarding); n != 0 || s.records.count("client id") != 0 {
		t.Errorf("onboarded %d times", n)
	}
	check(t, w.Enroll("from-the-portal", signer.Chain[0]))
	text, err := u.Probe(t.Context())
	expect.True(t, err == nil && strings.Contains(text, "is reachable"), "%q, %v", text, err)
}

// A WFM that does not know the client any more is introduced to it again, once;
// with another id begins another count of versions.
func TestUnknownClientIsOnboardedAgain(t *testing.T) {
	s := newSite(t)
	w, authority := s.signed(margo.RC2, nil)
	signer := s.introduce(authority)
	u := s.start()
	check(t, ask(t.Context(), u))
	first := scope(t, u)
	id := u.Describe().Client

	check(t, w.Forget(id))
	expect.Error(t, ask(t.Context(), u), wfm.ErrClientUnknown, "poll")
	for range 3 {
		check(t, ask(t.Context(), u))
	}
	if again := scope(t, u); again != first || asked(w, wfmsim.EndpointOnboarding) != 2 {
		t.Errorf("scope was %s, is %s; onboarded %d times", first, again, asked(w, wfmsim.EndpointOnboarding))
	}

	check(t, w.Forget(id))
	check(t, w.Enroll("another", signer.Chain[0]))
	expect.Error(t, u.PutCapabilities(t.Context(), deviceID, capabilities(t)), wfm.ErrClientUnknown, "capabilities")
	if other := scope(t, u); other != w.URL()+"#another" || u.Audience() != other {
		t.Errorf("scope is %s, audience of reports is %s", other, u.Audience())
	}
	check(t, ask(t.Context(), u))
	check(t, ask(t.Context(), s.start()))
	expect.Equal(t, asked(w, wfmsim.EndpointOnboarding), 3, "onboardings")
}

// Where the desired state is in a repository nobody polls such a WFM: it is found
// out by what becomes of a report.
func TestUnknownClientOfReportsIsOnboardedAgain(t *testing.T) {
	s := newSite(t)
	w, publish := ways()["Git, reports by rc.2"](s)
	u := s.start()
	check(t, u.PutCapabilities(t.Context(), deviceID, capabilities(t)))
	publish(document(t, "1.0.0"))
	check(t, u.PostStatus(t.Context(), deploymentID, status(t, margo.Pending, 1)))
	check(t, w.Forget(u.Describe().Client))
	expect.ErrorWith(t, u.PostStatus(t.Context(), deploymentID, status(t, margo.Installing, 1)), "", "a report of an unknown client")
	check(t, u.PostStatus(t.Context(), deploymentID, status(t, margo.Installing, 1)))
	if n := asked(w, wfmsim.EndpointOnboarding); n != 2 || len(w.Statuses(deploymentID)) != 2 {
		t.Errorf("onboarded %d times, %d reports", n, len(w.Statuses(deploymentID)))
	}
}

// A certificate that was renewed is introduced before anything is signed with
// it, and after a restart in between as well.
func TestRenewedCertificateIsIntroduced(t *testing.T) {
	for _, restart := range []bool{false, true} {
		s := newSite(t)
		w, authority := s.signed(margo.RC2, nil)
		u := s.start()
		check(t, ask(t.Context(), u))
		before := scope(t, u)
		renewed := s.introduce(authority)
		if restart {
			u = s.start()
		}
		check(t, ask(t.Context(), u))
		if want := w.URL() + "#" + wfmsim.ClientID(renewed.Chain[0]); scope(t, u) != want || want == before {
			t.Errorf("scope was %s, is %s", before, scope(t, u))
		}
		for _, r := range w.Requests().Requests() {
			expect.True(t, r.Status < 400, "%s was answered %d", r.Path, r.Status)
		}
		expect.Equal(t, asked(w, wfmsim.EndpointOnboarding), 2, "onboardings")
	}
}

// AUTH-02: without an anchor of the operator's the WFM's own is adopted, if it
// is its own, and then no other is believed.
func TestAUTH02RootCertificateIsAdopted(t *testing.T) {
	published := func(root []byte) func(*wfmsim.Options) {
		return func(o *wfmsim.Options) {
			o.SVID, o.Root = expect.Value(public[0].IssueServer([]string{host}))(t).TLS(), root
		}
	}
	stranger := expect.Value(pki.NewServerAuthority("Stranger", time.Now()))(t)
	other := expect.Value(public[1].IssueServer([]string{host}))(t)
	for name, c := range map[string]struct {
		root    []byte
		adopted bool
		log     string
	}{
		"AUTH-02 its own":             {public[0].RootPEM(), true, ""},
		"AUTH-02 none":                {nil, false, "provides no root certificate"},
		"AUTH-02 that of another":     {stranger.RootPEM(), false, "does not match"},
		"AUTH-02 one that is no root": {[]byte("nonsense"), false, "root certificate"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			w, _ := s.signed(margo.RC2, published(c.root))
			s.options.CA = ""
			u := s.start()
			check(t, ask(t.Context(), u))
			expect.Contains(t, s.log.String(), c.log, "logged %s", s.log)
			w.SetSVID(other.TLS()) // which the system believes
			for what, u := range map[string]*uplink.Uplink{"a new connection": u, "a restart": s.start()} {
				expect.Value(w.Faults().Inject(fault.Fault{Kind: fault.Reset, Times: 1}))(t)
				_ = ask(t.Context(), u) // whoever has a connection loses it
				expect.Equal(t, ask(t.Context(), u) == nil, !c.adopted, "%s: another server is believed", what)
			}
			w.Faults().Clear("")
			if c.adopted { // the operator has the last word
				s.options.CA = s.write("ca.pem", public[1].RootPEM())
				check(t, ask(t.Context(), s.start()))
			}
		})
	}
}

// a client that waits to be approved is told so, and at work as soon as it is. How
// long it waits is shown by wfm.TestOnboardingThatIsRefused.
func TestA61PendingApproval(t *testing.T) {
	s := newSite(t)
	w, _ := s.signed(margo.RC2, func(o *wfmsim.Options) { o.Approval = true })
	u := s.start()
	for _, request := range []func() error{
		func() error { _, err := u.Identity(t.Context()); return err },
		func() error { return ask(t.Context(), u) },
		func() error { return u.PostStatus(t.Context(), deploymentID, status(t, margo.Installed, 1)) },
	} {
		expect.Error(t, request(), wfm.ErrNotApproved, "a request")
	}
	id := expect.Value(w.Approve(expect.Value(w.WaitPending(t.Context()))(t).Fingerprint))(t)
	check(t, ask(t.Context(), u))
	expect.Equal(t, u.Describe().Client, id, "client")
}

// A device whose clock is wrong is told so, where its signatures are refused for
// it: also while it is introduced.
func TestAUTH11WrongClockIsNamed(t *testing.T) {
	for name, by := range map[string]time.Duration{"behind": -20 * time.Minute, "ahead of": 20 * time.Minute} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			w, _ := s.signed(margo.RC2, nil)
			var off atomic.Int64
			off.Store(int64(by))
			s.now = func() time.Time { return time.Now().Add(time.Duration(off.Load())) }
			named := func(err error) {
				t.Helper()
				var known interface{ Mend() string }
				if !errors.Is(err, wfm.ErrUnauthenticated) || !errors.As(err, &known) || !strings.Contains(known.Mend(), "clock") ||
					!strings.Contains(err.Error(), "clock is 20m") || !strings.Contains(err.Error(), name+" the WFM's") {
					t.Errorf("got %v", err)
				}
			}
			u := s.start()
			named(ask(t.Context(), u))
			if known := u.Describe(); len(known.Warnings) != 1 || !strings.Contains(known.Warnings[0].Text, name) || known.Warnings[0].Mend == "" {
				t.Errorf("warnings are %+v", known.Warnings)
			}
			off.Store(0)
			check(t, ask(t.Context(), u))
			expect.Equal(t, len(u.Describe().Warnings), 0, "warnings")
			off.Store(int64(by))
			named(ask(t.Context(), u))
			expect.Equal(t, w.Replayed(), 0, "signatures came twice")
		})
	}
}

// A refusal that has nothing to do with the clock does not blame it.
func TestRefusedSignaturesAreNotAlwaysTheClocks(t *testing.T) {
	s := newSite(t)
	w, authority := s.signed(margo.RC2, nil)
	u := s.start()
	check(t, ask(t.Context(), u))
	check(t, w.Enroll(u.Describe().Client, expect.Value(authority.IssueSigner("stranger"))(t).Chain[0]))
	if err := ask(t.Context(), u); !errors.Is(err, wfm.ErrUnauthenticated) || strings.Contains(err.Error(), "the WFM's") {
		t.Errorf("got %v", err)
	}
}
