package uplink_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/margolite/margolite/agent"
	"github.com/margolite/margolite/agent/identity"
	"github.com/margolite/margolite/agent/margo"
	"github.com/margolite/margolite/agent/uplink"
	"github.com/margolite/margolite/agent/wfm"
	"github.com/margolite/margolite/store"
	"github.com/margolite/margolite/test/expect"
	"github.com/margolite/margolite/test/gitserver"
	"github.com/margolite/margolite/test/pki"
	"github.com/margolite/margolite/test/wfmsim"
	"github.com/margolite/margolite/test/wfmsim/fault"
)

var _ agent.WFM = (*uplink.Uplink)(nil)

// ways are all there are. Each gives the WFM that hears reports, nil where
// nobody does, and makes a document part of the desired state.
func ways() map[string]func(s *site) (*wfmsim.Server, func(document []byte)) {
	published := func(s *site, w *wfmsim.Server, client func() string) func([]byte) {
		return func(document []byte) {
			s.t.Helper()
			expect.Value(w.Publish(client(), document))(s.t)
		}
	}
	fixed := func() string { return clientID }
	old := func(revision margo.Revision) func(*site) (*wfmsim.Server, func([]byte)) {
		return func(s *site) (*wfmsim.Server, func([]byte)) {
			w, _ := s.signed(revision, nil)
			return w, published(s, w, func() string {
				return expect.Value(w.WaitClient(s.t.Context()))(s.t)
			})
		}
	}
	behind := func(scheme, secret string) func(*site) (*wfmsim.Server, func([]byte)) {
		return func(s *site) (*wfmsim.Server, func([]byte)) {
			w, _ := s.gateway(scheme, secret)
			return w, published(s, w, fixed)
		}
	}
	fromGit := func(reports func(*site) (*wfmsim.Server, func([]byte))) func(*site) (*wfmsim.Server, func([]byte)) {
		return func(s *site) (*wfmsim.Server, func([]byte)) {
			var w *wfmsim.Server
			var too func([]byte)
			if reports != nil {
				w, too = reports(s)
			}
			server := s.repository()
			return w, func(document []byte) {
				s.t.Helper()
				expect.Value(server.Repository.Commit(gitserver.Change{Files: map[string]string{"app.yaml": string(document)}}))(s.t)
				if too != nil {
					too(document) // reports are about what the WFM knows
				}
			}
		}
	}
	mutual := func(s *site) (*wfmsim.Server, func([]byte)) {
		w, _ := s.mutual(nil)
		return w, published(s, w, fixed)
	}
	return map[string]func(s *site) (*wfmsim.Server, func([]byte)){
		"mutual TLS": mutual,
		"rc.2":       old(margo.RC2),
		"rc.1":       old(margo.RC1),
		"Basic":      behind("Basic", "gw:secret"),
		"Bearer":     behind("Bearer", "token"),
		"Git":        fromGit(nil),
		"Git, reports on a branch": func(s *site) (*wfmsim.Server, func([]byte)) {
			w, publish := fromGit(nil)(s)
			expect.Value(s.git.Repository.Git("", "config", "http.receivepack", "true"))(s.t)
			s.options.Git.Report = uplink.GitReport{Branch: "state", Path: deviceID}
			return w, publish
		},
		"Git, reports by mutual TLS": fromGit(mutual),
		"Git, reports by rc.2":       fromGit(old(margo.RC2)),
		"Git, reports by Bearer":     fromGit(behind("Bearer", "token")),
	}
}

// The whole conversation goes each way, with every request authenticated as
// that way has it. Nothing is asked before somebody wants something.
func TestID01AUTH08TheConversationGoesEachWay(t *testing.T) {
	for name, begin := range ways() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			w, publish := begin(s)
			u := s.start()
			if u.Describe().Client != "" || u.Audience() == "" || w != nil && w.Requests().Count("") != 0 {
				t.Errorf("described as %+v for %q", u.Describe(), u.Audience())
			}
			// A probe asks for nothing that could introduce the device.
			_, err := u.Probe(t.Context())
			expect.Equal(t, err != nil, s.git != nil, "the probe of a repository without a branch fails: %v", err)
			for _, endpoint := range []string{
				wfmsim.EndpointOnboarding, wfmsim.EndpointCapabilities, wfmsim.EndpointStatus, wfmsim.EndpointManifest,
			} {
				expect.Equal(t, w != nil && asked(w, endpoint) > 0, false, "the probe asks for %s", endpoint)
			}
			first := scope(t, u)
			if name == "mutual TLS" && u.ClientID() != clientID {
				t.Errorf("the client is %q", u.ClientID())
			}
			check(t, u.PutCapabilities(t.Context(), deviceID, capabilities(t)))
			publish(document(t, "1.0.0"))
			m := poll(t, u)
			expect.Require(t, len(m.Deployments) == 1, "manifest is %s", m.Raw)
			expect.Error(t, expect.ErrorOf(u.Manifest(t.Context(), m.ETag)), wfm.ErrNotModified, "second poll")
			version := m.Version
			if s.options.Git.Branch != "" && w != nil {
				version = max(w.Version(clientID), 1) // what who only hears reports knows
			}
			for _, state := range []margo.State{margo.Pending, margo.Installing, margo.Installed} {
				check(t, u.PostStatus(t.Context(), deploymentID, status(t, state, version)))
			}
			if w != nil {
				if heard := w.Statuses(deploymentID); len(heard) != 3 || len(w.Devices("")) != 1 {
					t.Errorf("the WFM heard %d reports and knows %d devices", len(heard), len(w.Devices("")))
				}
				expect.Equal(t, w.Replayed(), 0, "signatures came twice")
			}
			if branch := s.options.Git.Report.Branch; branch != "" {
				told, err := s.git.Repository.Git("", "log", "--format=%s", branch)
				if lines := strings.Split(strings.TrimSpace(told), "\n"); err != nil || len(lines) != 4 {
					t.Errorf("the branch tells %q, %v, want the capabilities and three states", lines, err)
				}
			}

			// After a restart everything is as before.
			again := s.start()
			expect.Equal(t, scope(t, again), first, "scope")
			expect.Error(t, expect.ErrorOf(again.Manifest(t.Context(), m.ETag)), wfm.ErrNotModified, "after a restart")
			if w != nil && w.Revision() != margo.RC3 && asked(w, wfmsim.EndpointOnboarding) > 1 {
				t.Errorf("onboarded %d times", asked(w, wfmsim.EndpointOnboarding))
			}
			text := expect.Value(again.Probe(t.Context()))(t)
			if !strings.Contains(text, strings.TrimPrefix(s.options.URL, "https://")) && !strings.Contains(text, wfmID) {
				t.Errorf("%q does not say what was reached", text)
			}
			known := again.Describe()
			if s.options.Certificate != "" && (known.Client == "" || known.Expires.IsZero() || len(known.Warnings) > 0) {
				t.Errorf("described as %+v", known)
			}
			for _, secret := range []string{"gw:secret", "Bearer token"} {
				expect.True(t, !strings.Contains(s.log.String(), secret), "the log tells %q", secret)
			}
		})
	}
}

// Options that cannot be meant change nothing.
func TestConfigureRefusesWhatCannotBeMeant(t *testing.T) {
	s := newSite(t)
	s.mutual(nil)
	u := s.start()
	before := scope(t, u)
	wrong := s.options
	wrong.URL = "git+http://127.0.0.1/gw.git"
	expect.ErrorWith(t, u.Configure(wrong), "", "a repository over http was taken")
	wrong = s.options
	wrong.TrustBundle, wrong.Service.Pins = "https://mis.example/bundle", []string{"nonsense"}
	expect.ErrorWith(t, u.Configure(wrong), "", "nonsense was taken for a pin")
	expect.ErrorWith(t, expect.ErrorOf(uplink.New(wrong, s.device())), "", "a pin at the start")
	expect.Equal(t, scope(t, u), before, "scope")
}

// The configuration changes from any way to any other while requests are under
// way: each request goes the one or the other, and succeeds.
func TestConfigureWhileRequestsRun(t *testing.T) {
	var all []uplink.Options
	first := newSite(t)
	for _, name := range []string{"mutual TLS", "rc.2", "Bearer", "Git"} {
		s := newSite(t)
		_, publish := ways()[name](s)
		if name == "Git" {
			publish(document(t, "1.0.0"))
		}
		all = append(all, s.options)
	}
	first.options = all[0]
	u := first.start()
	ctx, cancel := context.WithCancel(t.Context())
	var group sync.WaitGroup
	running := make(chan error, 1)
	go func() { running <- u.Run(ctx) }()
	for range 3 {
		group.Go(func() {
			for ctx.Err() == nil {
				if _, err := u.Identity(ctx); err != nil && ctx.Err() == nil {
					t.Errorf("identity: %v", err)
				}
				if _, err := u.Manifest(ctx, ""); err != nil && ctx.Err() == nil {
					t.Errorf("manifest: %v", err)
				}
				u.Describe()
				u.Audience()
			}
		})
	}
	for i := range 24 {
		check(t, u.Configure(all[(i+1)%len(all)]))
		check(t, ask(t.Context(), u))
	}
	cancel()
	group.Wait()
	expect.OK(t, <-running)
}

func ask(ctx context.Context, u *uplink.Uplink) error {
	_, err := u.Manifest(ctx, "")
	return err
}

// Files that are missing leave the device offline; it is back with the first request after
// they are there. What else is wrong with files is shown by identity.TestLoadNamesWhatIsWrongWithTheFiles.
func TestFilesThatAreMissing(t *testing.T) {
	s := newSite(t)
	w, _ := s.mutual(nil)
	options := s.options
	s.options.Certificate, s.options.Key = s.file("later.pem"), s.file("later.key")
	u := s.start()
	fails(t, expect.ErrorOf(u.Identity(t.Context())), identity.Missing)
	fails(t, ask(t.Context(), u), identity.Missing)
	fails(t, u.PostStatus(t.Context(), deploymentID, status(t, margo.Installed, 1)), identity.Missing)
	fails(t, expect.ErrorOf(u.Probe(t.Context())), identity.Missing)
	expect.Equal(t, u.Describe().Expires.IsZero(), true, "an expiry is unknown")
	expect.Equal(t, w.Requests().Count(""), 0, "requests")
	check(t, os.Rename(options.Certificate, s.file("later.pem")))
	check(t, os.Rename(options.Key, s.file("later.key")))
	check(t, ask(t.Context(), u))
	if known := u.Describe(); !strings.HasSuffix(known.Client, "/client/"+clientID) || known.Expires.IsZero() {
		t.Errorf("described as %+v", known)
	}
}

// ID-02: what is replaced is taken over with the next request, and half of it
// is not: until the rest is there the previous one stays in use.
func TestID02ReplacedFilesAreFollowed(t *testing.T) {
	s := newSite(t)
	w, authority := s.mutual(func(o *wfmsim.Options) { o.Clients = nil })
	u := s.start()
	check(t, ask(t.Context(), u))
	next := expect.Value(authority.IssueClient(wfmID, "renamed"))(t)
	key := expect.Value(next.KeyPEM())(t)
	s.write("device.pem", next.CertificatePEM())
	for range 3 {
		check(t, ask(t.Context(), u))
	}
	expect.Equal(t, strings.Count(s.log.String(), "the previous one stays in use"), 1, "warnings in %s", s.log)
	s.write("device.key", key)
	// The mode is all that is wrong, and all that changes; then a bundle without anchors (ID-22).
	check(t, os.Chmod(s.file("device.key"), 0o640))
	check(t, ask(t.Context(), u))
	check(t, os.Chmod(s.file("device.key"), 0o600))
	good := expect.Value(os.ReadFile(s.options.TrustBundle))(t)
	s.write("bundle.json", []byte(`{"keys":[]}`))
	check(t, ask(t.Context(), u))
	s.write("bundle.json", good)
	check(t, ask(t.Context(), u))
	requests := w.Requests().Requests()
	var clients []string
	for _, r := range requests {
		clients = append(clients, r.Client)
	}
	want := append(slices.Repeat([]string{clientID}, 6), "renamed")
	expect.Equal(t, clients, want, "the WFM was asked by")
}

// Anchors of gateways, and of servers of rc.2, are replaced with the next
// request as well; a file that is no good changes nothing.
func TestReplacedAnchorsAreFollowed(t *testing.T) {
	for _, name := range []string{"Bearer", "rc.2"} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			w, _ := ways()[name](s)
			u := s.start()
			check(t, ask(t.Context(), u))
			for range 2 {
				s.write("ca.pem", []byte("nonsense"))
				check(t, ask(t.Context(), u))
				check(t, ask(t.Context(), u))
			}
			expect.Equal(t, strings.Count(s.log.String(), "the previous one stays in use"), 1, "warnings in %s", s.log)
			w.SetSVID(expect.Value(public[1].IssueServer([]string{host}))(t).TLS())
			s.write("ca.pem", public[1].RootPEM())
			check(t, ask(t.Context(), u))
		})
	}
}

// A gateway's credentials are followed when they are rotated, and a
// refusal says that it is they. That a token's file is read again as well is shown by
// wfm.TestCredentialsAreOneLineOfAFile.
func TestAUTH12GatewaysCredentialsAreRotated(t *testing.T) {
	s := newSite(t)
	w, _ := s.gateway("Basic", "gw:first")
	u := s.start()
	check(t, ask(t.Context(), u))
	w.SetAuthorization(credentials("Basic", "gw:second"))
	err := ask(t.Context(), u)
	if !errors.Is(err, wfm.ErrUnauthenticated) || strings.Contains(err.Error(), "first") {
		t.Errorf("with the former credentials: %v", err)
	}
	s.write("secret", []byte("gw:second\n"))
	check(t, ask(t.Context(), u))
	check(t, os.Remove(s.file("secret")))
	fails(t, ask(t.Context(), u), identity.Missing)
	s.write("secret", nil)
	fails(t, ask(t.Context(), u), identity.NoSecret)
	if !u.Describe().Expires.IsZero() || scope(t, u) != w.URL() {
		t.Errorf("described as %+v with scope %s", u.Describe(), scope(t, u))
	}
}

// That the WFM which hears the reports is out of reach keeps nothing from the
// repository, and the other way round.
func TestRepositoryAndReportsGoTheirOwnWays(t *testing.T) {
	s := newSite(t)
	w, _ := s.mutual(nil)
	server := s.repository()
	first := expect.Value(server.Repository.Commit(gitserver.Change{Files: map[string]string{"app.yaml": string(document(t, "1.0.0"))}}))(t)
	expect.Value(w.Publish(clientID, document(t, "1.0.0")))(t)
	check(t, w.Close())
	u := s.start()
	expect.Equal(t, scope(t, u), s.options.URL+"#main", "scope")
	expect.Equal(t, poll(t, u).ETag, `"`+first+`"`, "manifest")
	var beside interface{ Beside() bool }
	err := u.PutCapabilities(t.Context(), deviceID, capabilities(t))
	expect.True(t, errors.As(err, &beside) && beside.Beside(), "capabilities: %v", err)
	if again, _ := wfm.Retry(err); !again {
		t.Errorf("not to be tried again: %v", err)
	}
	if text, err := u.Probe(t.Context()); err == nil || !strings.Contains(err.Error(), "reports cannot be delivered") {
		t.Errorf("probe: %s, %v", text, err)
	}
	check(t, w.Start(""))
	check(t, server.Close())
	check(t, u.PostStatus(t.Context(), deploymentID, status(t, margo.Installed, w.Version(clientID))))
	if err := ask(t.Context(), u); err == nil || errors.As(err, &beside) {
		t.Errorf("poll of a server that is gone: %v", err)
	}
	if got := u.Audience(); !strings.HasSuffix(got, "/margo/wfm/"+wfmID) {
		t.Errorf("audience is %s", got)
	}

	// Nobody wants them any more.
	check(t, server.Start())
	s.options.Reports = ""
	check(t, u.Configure(s.options))
	expect.Equal(t, u.Audience(), "nobody", "audience of reports")
	heard := w.Requests().Count("")
	check(t, u.PostStatus(t.Context(), deploymentID, status(t, margo.Installed, 1)))
	check(t, u.PutCapabilities(t.Context(), deviceID, capabilities(t)))
	expect.Equal(t, w.Requests().Count(""), heard, "requests")
}

// A device that lost its clock reaches a WFM, or its gateway, whose certificate was
// renewed meanwhile: only who is believed anyway can tell it so.
func TestACertificateOfTheFutureMendsALostClock(t *testing.T) {
	const day = 24 * time.Hour
	lost := func() time.Time { return time.Now().Add(-40 * day) }
	for name, c := range map[string]struct {
		known    time.Duration // before the present; 0: nothing is known
		stranger bool          // another authority is believed
		want     bool
	}{
		"a renewed certificate":          {20 * day, false, true},
		"somebody else":                  {20 * day, true, false},
		"a clock that may well be right": {0, false, false},
	} {
		for kind, connect := range map[string]func(*site){
			"gateway": func(s *site) { s.gateway("Bearer", "token") },
			"signed":  func(s *site) { s.signed(margo.RC2, nil) },
		} {
			t.Run(kind+" "+name, func(t *testing.T) {
				s := newSite(t)
				s.now = lost
				if c.known != 0 {
					check(t, s.records.Commit("time", store.Change{Settings: map[string][]byte{"time": fmt.Append(nil, time.Now().Add(-c.known).Unix())}}))
				}
				connect(s)
				if c.stranger {
					s.write("ca.pem", expect.Value(pki.NewServerAuthority("Stranger", time.Now()))(t).RootPEM())
				}
				u := s.start()
				var refused *tls.CertificateVerificationError
				expect.Equal(t, !errors.As(ask(t.Context(), u), &refused), c.want, "accepted")
			})
		}
	}
}

// What a WFM says about time is kept, once a day, for devices without a clock.
func TestKnownTimeIsWrittenOnceADay(t *testing.T) {
	s := newSite(t)
	w, _ := s.mutual(nil)
	if at, err := uplink.KnownTime(s.records); err != nil || !at.IsZero() {
		t.Errorf("at first %v, %v", at, err)
	}
	u := s.start()
	shifted := func(by time.Duration) {
		t.Helper()
		w.Faults().Clear("")
		if by != 0 {
			expect.Value(w.Faults().Inject(fault.Fault{Kind: fault.Clock, Wait: by}))(t)
		}
		check(t, ask(t.Context(), u))
	}
	kept := func(writes int, about time.Duration) {
		t.Helper()
		at, err := uplink.KnownTime(s.records)
		if off := time.Until(at) - about; err != nil || off < -time.Minute || off > time.Minute || s.records.count("time") != writes {
			t.Errorf("%d writes, %s from now, %v; want %d and %s", s.records.count("time"), time.Until(at), err, writes, about)
		}
	}
	shifted(0)
	kept(1, 0)
	shifted(0)
	shifted(23 * time.Hour)
	kept(1, 0)
	shifted(25 * time.Hour)
	kept(2, 25*time.Hour)
	shifted(1000 * 24 * time.Hour) // the certificates are not valid then
	kept(2, 25*time.Hour)

	// The next start begins there, and names a clock that is before it.
	again := s.start()
	known := again.Describe()
	if len(known.Warnings) != 1 || !strings.Contains(known.Warnings[0].Text, "clock is wrong") || known.Warnings[0].Mend != "set the clock" {
		t.Errorf("warnings are %+v", known.Warnings)
	}
	// What cannot be read is replaced, and not complained about for ever.
	s.records.set("time", []byte("yesterday"))
	expect.ErrorWith(t, expect.ErrorOf(uplink.KnownTime(s.records)), "", "yesterday as a time")
	u = s.start()
	shifted(0)
	kept(3, 0)
	// A disk that is full is tried again.
	s.records.set("time", []byte("0"))
	s.records.fail(func(string) error { return errors.New("no space") })
	u = s.start()
	shifted(0)
	s.records.fail(nil)
	shifted(0)
	kept(4, 0)
}

// Run ends with its context, whatever the way is and however often it changed.
func TestRunEnds(t *testing.T) {
	s := newSite(t)
	s.mutual(nil)
	service := s.identityService(t)
	s.options.TrustBundle = service.BundleURL()
	file := newSite(t)
	file.mutual(nil)
	u := s.start()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- u.Run(ctx) }()
	for range 5 {
		check(t, u.Configure(file.options))
		check(t, u.Configure(s.options))
	}
	scope(t, u)
	check(t, service.Requests().WaitCount(t.Context(), "", 1)) // the last way is looked after
	cancel()
	expect.OK(t, <-done)
	expect.OK(t, u.Run(ctx))
}
