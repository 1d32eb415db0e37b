package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/margolite/margolite/agent/margo"
	"github.com/margolite/margolite/test/plant"
	"github.com/margolite/margolite/test/wfmsim"
	"github.com/margolite/margolite/test/wfmsim/fault"
)

// hears waits until the WFM heard exactly these states of a deployment, in this
// order. Before rc.3 a report does not say which revision it is about.
func (r *rig) hears(id string, want ...margo.State) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), time.Minute)
	defer cancel()
	var heard []margo.State
	err := r.WFM.WaitStatus(ctx, id, func(reports []wfmsim.Report) bool {
		heard = nil
		for _, report := range reports {
			heard = append(heard, report.Status.State)
		}
		return slices.Equal(heard, want)
	})
	if err != nil {
		r.t.Fatalf("the WFM heard %v, want %v", heard, want)
	}
}

// The life of a deployment is the same whichever way the WFM is reached, and
// every request is authenticated as that way has it.
func TestTheLifeOfADeploymentEachWay(t *testing.T) {
	spiffeID := "spiffe://" + plant.TrustDomain + "/margo/wfm/" + plant.WFM
	for name, c := range map[string]struct {
		way    plant.Way
		check  []string // what margolite check says
		status []string // what margolite status says
	}{
		"AUTH-04 AUTH-08 CAP-06 ST-18 rc.2": {
			plant.Way{Revision: wfmsim.RC2},
			[]string{"identity: valid until", "is within reach; whether it knows this device is not asked"},
			[]string{"CLIENT, certificate good for"},
		},
		"AUTH-04 AUTH-08 CAP-06 ST-18 rc.1": {
			plant.Way{Revision: wfmsim.RC1},
			[]string{"identity: valid until", "is within reach; whether it knows this device is not asked"},
			[]string{"CLIENT, certificate good for"},
		},
		"a gateway that wants a password": {plant.Way{Gateway: "Basic"}, []string{"wfm: https://", "within reach"}, nil},
		"a gateway that wants a token":    {plant.Way{Gateway: "Bearer"}, []string{"wfm: https://", "within reach"}, nil},
		"AUTH-12 DS-27 DS-28 POL-13 a Git repository": {
			plant.Way{Repository: true},
			[]string{
				"identity: " + spiffeID + "/client/" + plant.Client + ", valid until", "wfm: git+https://", "#main:devices is at commit ",
				spiffeID + ", which hears the reports, is within reach",
			},
			[]string{"git+https://", spiffeID + "/client/" + plant.Client + ", certificate good for"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRigBy(t, c.way)
			r.running()
			r.publish(r.Deployment(demoID, nil))
			r.hears(demoID, margo.Pending, margo.Installing, margo.Installed)
			if a := r.answers(8090); a.Greeting != "Hello" {
				t.Errorf("the application says %+v", a)
			}
			known, err := r.WFM.WaitDevice(t.Context(), r.ClientID(), plant.Device)
			check(t, err)
			if known.Properties.ID != plant.Device {
				t.Errorf("the WFM knows %+v", known.Properties)
			}

			out, err := r.margolite("check")
			if err != nil || !containsAll(out, c.check...) {
				t.Errorf("check says %s, %v", out, err)
			}
			out, err = r.margolite("status")
			want := slices.Clone(c.status)
			for i := range want {
				want[i] = strings.ReplaceAll(want[i], "CLIENT", r.ClientID())
			}
			if err != nil || !containsAll(out, append(want, "reachable", "installed")...) || strings.Contains(out, "attention") {
				t.Errorf("status says %s, %v", out, err)
			}

			// A restart needs nothing but what is on the medium.
			r.stop()
			before := r.WFM.Requests().Count(wfmsim.EndpointCapabilities)
			r.running()
			r.publish(r.Deployment(demoID, map[string]any{"GREETING": "Servus"}))
			r.hears(demoID, margo.Pending, margo.Installing, margo.Installed, margo.Pending, margo.Installing, margo.Installed)
			if a := r.answers(8090); a.Greeting != "Servus" {
				t.Errorf("the application says %+v", a)
			}
			if n := r.WFM.Requests().Count(wfmsim.EndpointCapabilities) - before; n != 0 {
				t.Errorf("capabilities were reported %d times after a restart", n)
			}
			if n := r.WFM.Requests().Count(wfmsim.EndpointOnboarding); r.WFM.Revision() != wfmsim.RC3 && n != 1 {
				t.Errorf("onboarded %d times", n)
			}

			r.remove(demoID)
			r.hears(demoID, margo.Pending, margo.Installing, margo.Installed, margo.Pending, margo.Installing, margo.Installed,
				margo.Removing, margo.Removed)
			r.isAsBefore(t.Context())
			for _, request := range r.WFM.Requests().Requests() {
				if request.Status >= 400 {
					t.Errorf("%s %s was answered %d", request.Method, request.Path, request.Status)
				}
				has := r.WFM.Revision() != wfmsim.RC3 && request.Endpoint != wfmsim.EndpointRoot
				if signs := request.Header["Signature-Input"] != ""; signs != has {
					t.Errorf("%s %s: signed %t", request.Method, request.Path, signs)
				}
			}
			if n := r.WFM.Requests().Count(wfmsim.EndpointManifest); c.way.Repository && n != 0 {
				t.Errorf("the WFM that hears the reports was asked %d times for the desired state", n)
			}
			if n := r.WFM.Replayed(); n != 0 {
				t.Errorf("%d signatures came twice", n)
			}
			log, err := os.ReadFile(r.LogFile())
			check(t, err)
			for _, secret := range []string{plant.GatewaySecret, plant.GatewayToken, plant.RepositoryToken} {
				if strings.Contains(string(log), secret) {
					t.Errorf("the log tells %q", secret)
				}
			}
		})
	}
}

// A device waits to be approved as long as people take, and is let in as soon as
// somebody says so on it. With a clock that is wrong it says what to mend.
func TestA61AUTH11ApprovalAndTheClock(t *testing.T) {
	long(t, "the rest of the program")
	var ahead atomic.Int64 // of the WFM's clock
	r := newRigBy(t, plant.Way{Revision: wfmsim.RC2, Change: func(o *wfmsim.Options) {
		o.Approval = true
		o.Now = func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }
	}})
	r.running()
	r.publish(r.Deployment(demoID, nil))
	waiting, err := r.WFM.WaitPending(t.Context())
	check(t, err)
	r.eventually("status says why nothing happens", func() error {
		s := r.status().WFM
		if s.Waiting != "refused" || !strings.Contains(s.LastError, "has not approved this client") {
			return fmt.Errorf("it says %+v", s)
		}
		return nil
	})
	if s := r.status().WFM; s.NextPoll == nil || time.Until(*s.NextPoll) < 9*time.Minute || s.SilentUntil != nil {
		t.Errorf("the next poll is at %v, silence until %v", s.NextPoll, s.SilentUntil)
	}
	_, err = r.WFM.Approve(waiting.Fingerprint)
	check(t, err)
	out, err := r.margolite("sync")
	if err != nil {
		t.Fatalf("sync after the approval: %v %s", err, out)
	}
	r.hears(demoID, margo.Pending, margo.Installing, margo.Installed)

	const skew = 20 * time.Minute
	ahead.Store(int64(skew))
	_, err = r.WFM.Faults().Inject(fault.Fault{Kind: fault.Clock, Wait: 1}) // it tells the time that it goes by
	check(t, err)
	const named = "this device's clock is 20m0s behind the WFM's"
	if _, err := r.margolite("sync"); err == nil || !containsAll(err.Error(), "401", named) {
		t.Errorf("sync with a wrong clock: %v", err)
	}
	out, err = r.margolite("status")
	if err != nil || !containsAll(out, "attention", named+"; mend: set this device's clock") {
		t.Errorf("status says %s, %v", out, err)
	}
	out, _ = r.margolite("check")
	if !containsAll(out, "identity: "+named+"; mend: set this device's clock") {
		t.Errorf("check says %s", out)
	}
	log, err := os.ReadFile(r.LogFile())
	check(t, err)
	if !containsAll(string(log), named, `mend="set this device's clock"`) {
		t.Error("the log does not name the clock")
	}
	r.answers(8090) // what runs keeps running
	ahead.Store(0)
	r.WFM.Faults().Clear("")
	if out, err := r.margolite("sync"); err != nil {
		t.Errorf("sync with the clock set: %v %s", err, out)
	}
	r.remove(demoID)
	r.hears(demoID, margo.Pending, margo.Installing, margo.Installed, margo.Removing, margo.Removed)
}

// DS-06: a branch that was set back is refused until the operator accepts it;
// and that nobody hears reports keeps nobody from the repository.
func TestDS06DS27RepositoryThatWasSetBack(t *testing.T) {
	long(t, "the rest of the protocol")
	r := newRigBy(t, plant.Way{Repository: true})
	check(t, r.WFM.Close())
	r.running()
	first := r.publish(r.Deployment(demoID, nil))
	good, err := r.Repository.Repository.Git("", "rev-parse", "refs/heads/main")
	check(t, err)
	r.answers(8090)
	if s := r.status(); s.Outbox == 0 || s.WFM.LastError != "" {
		t.Errorf("%d reports wait, the last poll failed with %q", s.Outbox, s.WFM.LastError)
	}
	if out, err := r.margolite("check"); err == nil || !containsAll(out, "reports cannot be delivered") {
		t.Errorf("check says %s, %v", out, err)
	}
	check(t, r.WFM.Start(""))
	r.await(demoID, margo.Installed, first.Version)
	second := r.install(r.Deployment(demoID, map[string]any{"GREETING": "Bad idea"}))

	check(t, r.Repository.Repository.Reset(good))
	r.eventually("the older commit is refused", func() error {
		if s := r.status().WFM; s.RefusedManifest == nil || s.RefusedManifest.Version != first.Version {
			return fmt.Errorf("status is %+v", s)
		}
		return nil
	})
	if a := r.answers(8090); a.Greeting != "Bad idea" {
		t.Errorf("the application says %+v", a)
	}
	if out, err := r.margolite("accept-rollback"); err == nil {
		t.Errorf("accepted without being asked: %s", out)
	}
	out, err := r.margolite("accept-rollback", "--yes")
	if err != nil || !containsAll(out, fmt.Sprint(first.Version), fmt.Sprint(second.Version), "changed") {
		t.Fatalf("accept-rollback says %s, %v", out, err)
	}
	r.eventually("the former revision runs", func() error {
		if a, err := plant.Ask(t.Context(), 8090); err != nil || a.Greeting != "Hello" {
			return errors.Join(err, fmt.Errorf("the application says %+v", a))
		}
		return nil
	})
	r.await(demoID, margo.Installed, first.Version)
	if s := r.status(); s.Manifest.Version != first.Version || s.WFM.RefusedManifest != nil {
		t.Errorf("manifest is %+v, refused %+v", s.Manifest, s.WFM.RefusedManifest)
	}
	last := r.WFM.Statuses(demoID)
	if got := last[len(last)-1].Status; got.AdoptedVersion != first.Version {
		t.Errorf("the WFM heard last %+v", got)
	}
	r.await(demoID, margo.Removed, r.remove(demoID))
}
